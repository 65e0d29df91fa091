"""Run configuration: every knob, its default, and what it may be.

How run-config keys become fields is in ``app_kit.run_config``.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

from app_kit import run_config
from app_kit.partition import PARTITIONERS
from app_kit.run_config import Scalar, key_of
from pina_app.method_table import METHODS
from strategies import pina
from strategies.aggregation import SKIPS, not_coded
from strategies.clustering.normality import RESCALES
from strategies.release import RELEASES

PRESETS = Path(__file__).parent / "presets"
INITS = ("auto", *pina.INITS, "lora-sketch")


@dataclasses.dataclass(frozen=True)
class PinaConfig:
    """Settings of a run; see the README for what each one does.

    Raises
    ------
    ValueError
        On creation, naming the key, its value and what is allowed.
    """

    # what runs, and where it is written
    preset: str = "none"
    methods: str = "pina"
    run_dir: str = "runs"
    resume: bool = False
    # data
    dataset: str = "digits"
    rotations: str = "0,180"
    rotation_shares: str = "equal"
    clients: int = 50
    clients_per_node: int = 25
    images_per_client: int = 0
    partitioner: str = "iid"
    dirichlet_alpha: float = 0.5
    augmented_copies: int = 0
    test_images: int = 0
    held_out: float = 0.0
    classes: int | None = None
    public_data: str = "digits"
    whitening_damping: float = 0.1
    # model
    model: str = "digits-vit"
    weights: str = "digits"
    image_size: int = 0
    trainable: str = "lora+head"
    lora_targets: str = "last.value"
    device: str = "auto"
    cache_dir: str | None = "~/.cache/fedclusters"
    cache_gb: float = 20.0
    feature_dtype: str = "float32"
    # the method
    clusters: int = 2
    init: str = "auto"
    init_rounds: int = 0
    init_q: float = 1.0
    embedding_size: int = 0
    prototype_weight: float = 1.0
    rounds: int = 40
    q: float = 0.5
    epochs: int = 10
    batch_size: int = 50
    learning_rate: float = 0.2
    proximal_mu: float = 1.0
    clip: float = 1.0
    rescale: str = "count"
    skip: str = "energy"
    equal_norm_rounds: int = 10
    release: str = "auto"
    smallest_share: float = 0.5
    server_momentum: float = 0.0
    # privacy
    private: bool = True
    epsilon: float | None = 2.0
    delta: float | None = None
    noise_multiplier: float | None = None
    init_noise_multiplier: float | None = None
    init_share: float | None = None
    epsilon_for: str = "outside"
    max_participations: int | None = None
    noise_cohort_size: int | None = 10_000
    secure_sum: str = "trusted"
    # how it runs
    simulation: bool = True
    seed: int | None = 0
    round_timeout_s: float = 3600.0
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        """Check every value, then the combinations."""
        for field, allowed, good in self._ranges():
            if not good:
                raise ValueError(f"{key_of(field)} = {getattr(self, field)!r}: must be {allowed}")
        self._check_combinations()

    def _ranges(self) -> list[tuple[str, str, bool]]:
        """(field, what is allowed, whether it holds)."""
        positive = (
            "rounds",
            "clients",
            "clients_per_node",
            "epochs",
            "batch_size",
            "evaluate_every",
        )
        not_negative = (
            "images_per_client",
            "augmented_copies",
            "test_images",
            "image_size",
            "equal_norm_rounds",
            "embedding_size",
        )
        above_zero = (
            "clip",
            "learning_rate",
            "dirichlet_alpha",
            "round_timeout_s",
            "cache_gb",
            "whitening_damping",
        )
        optional = ("epsilon", "noise_multiplier", "init_noise_multiplier")
        one_of = {
            "partitioner": PARTITIONERS,
            "trainable": ("lora+head", "head"),
            "device": ("auto", "cpu", "cuda"),
            "feature_dtype": ("float32", "bfloat16"),
            "init": INITS,
            "rescale": RESCALES,
            "skip": SKIPS,
            "release": ("auto", *RELEASES),
            "epsilon_for": ("outside", "server"),
            "secure_sum": ("trusted",),
        }
        return [
            *((f, ">= 1", getattr(self, f) >= 1) for f in positive),
            *((f, ">= 0", getattr(self, f) >= 0) for f in not_negative),
            *((f, "> 0", getattr(self, f) > 0) for f in above_zero),
            *((f, "> 0 or 'none'", (v := getattr(self, f)) is None or v > 0) for f in optional),
            *((f, f"one of {a}", getattr(self, f) in a) for f, a in one_of.items()),
            (
                "methods",
                f"a comma-separated list without repetition from {METHODS}",
                len(set(self.method_list)) == len(self.method_list) > 0
                and set(self.method_list) <= set(METHODS),
            ),
            ("rotations", "a comma-separated list of 0, 90, 180, 270", self._rotations_good()),
            (
                "rotation_shares",
                "'equal', or a number > 0 for each rotation, comma-separated",
                self._shares_good(),
            ),
            ("clusters", f"in [1, clients = {self.clients}]", 1 <= self.clusters <= self.clients),
            (
                "init_rounds",
                ">= 2 or 0 (what the initialisation needs)",
                self.init_rounds >= 2 or self.init_rounds == 0,
            ),
            ("clip", "<= 1e6", self.clip <= 1e6),
            ("q", "in (0, 1]", 0 < self.q <= 1),
            ("init_q", "in (0, 1]", 0 < self.init_q <= 1),
            ("held_out", "in [0, 1)", 0 <= self.held_out < 1),
            ("prototype_weight", ">= 0", self.prototype_weight >= 0),
            ("proximal_mu", ">= 0", self.proximal_mu >= 0),
            ("smallest_share", "in [0, 1]", 0 <= self.smallest_share <= 1),
            ("server_momentum", "in [0, 1)", 0 <= self.server_momentum < 1),
            (
                "init_share",
                "in (0, 1) or 'none'",
                self.init_share is None or 0 < self.init_share < 1,
            ),
            (
                "delta",
                "in (0, 1) or 'none' (K^-1.1)",
                self.delta is None or 0 < self.delta < 1,
            ),
            (
                "max_participations",
                ">= 1 or 'none'",
                self.max_participations is None or self.max_participations >= 1,
            ),
            (
                "noise_cohort_size",
                ">= 1 or 'none' (the real cohort)",
                self.noise_cohort_size is None or self.noise_cohort_size >= 1,
            ),
            ("seed", ">= 0 or 'none'", self.seed is None or self.seed >= 0),
            ("classes", ">= 2 or 'none'", self.classes is None or self.classes >= 2),
        ]

    def _rotations_good(self) -> bool:
        parts = [part.strip() for part in self.rotations.split(",")]
        return set(parts) <= {"0", "90", "180", "270"} and len(set(parts)) == len(parts)

    def _shares_good(self) -> bool:
        if self.rotation_shares == "equal":
            return True
        try:
            shares = self.share_list
        except ValueError:
            return False
        return len(shares) == len(self.rotation_list) and all(0 < s < math.inf for s in shares)

    def _check_combinations(self) -> None:
        digits = self.dataset == "digits"
        sketches = "init = 'lora-sketch'" if self.init == "lora-sketch" else ""
        sketches = "method pina-paper" if "pina-paper" in self.method_list else sketches
        points = self.init == "server-points" or "feddp-kmeans" in self.method_list
        excluded = not_coded(self.rescale, self.server_momentum)
        rules: list[tuple[object, str]] = [
            (
                not self.simulation and "oracle" in self.method_list,
                "methods = 'oracle': needs simulation = true; no device knows its true cluster",
            ),
            (
                not self.simulation and self.seed is not None,
                f"seed = {self.seed}: must be 'none' with simulation = false; a known seed voids "
                "the privacy guarantee",
            ),
            (
                self.simulation and self.classes is not None,
                f"classes = {self.classes}: needs simulation = false; a simulation takes them from "
                "its dataset",
            ),
            (
                "oracle" in self.method_list and len(self.rotation_list) != self.clusters,
                f"clusters = {self.clusters}: the oracle method needs one cluster a rotation "
                f"({len(self.rotation_list)})",
            ),
            (
                self.private and self.epsilon is None and self.noise_multiplier is None,
                "epsilon = 'none': a private run needs epsilon or noise-multiplier",
            ),
            (
                self.weights == "digits" and not (digits and self.model == "digits-vit"),
                f"weights = 'digits': need dataset = 'digits', model = 'digits-vit'; for "
                f"{self.dataset!r} and {self.model!r} set model (a timm ViT) and weights "
                "('pretrained', a file or 'none')",
            ),
            (
                self.model == "digits-vit" and self.weights == "pretrained",
                "weights = 'pretrained': model = 'digits-vit' has none; use 'digits' or 'none'",
            ),
            (
                not digits and self.public_data == "digits",
                f"public-data = 'digits': dataset = {self.dataset!r} needs a file of public "
                "images (.npz), 'synthetic' or 'none'",
            ),
            (
                not self.simulation and self.held_out > 0,
                f"held-out = {self.held_out}: needs simulation = true; no test result leaves a "
                "device",
            ),
            (
                self.clients < len(self.rotation_list),
                f"clients = {self.clients}: must be at least one for each of the "
                f"{len(self.rotation_list)} rotations",
            ),
            (
                digits and self.partitioner == "natural",
                "partitioner = 'natural': the digits have no writers; use 'iid' or 'dirichlet'",
            ),
            (
                sketches and self.trainable == "head",
                f"trainable = 'head': {sketches} needs the LoRA vector; use 'lora+head'",
            ),
            (
                sketches and self.lora_targets != "last.value",
                f"lora-targets = {self.lora_targets!r}: {sketches} needs 'last.value'",
            ),
            (
                points and self.public_data == "none",
                "public-data = 'none': init = 'server-points' (feddp-kmeans) needs public images",
            ),
            (
                points and not (self.simulation or self.images_per_client),
                "images-per-client = 0: init = 'server-points' (feddp-kmeans) needs to know how "
                "many images a typical device has",
            ),
            (
                self.release == "coded" and self.init in ("lora-sketch", "random"),
                f"init = {self.init!r}: release = 'coded' needs clusters that are known before "
                "training; use an initialisation by secure sums, or release = 'slots'",
            ),
            (
                self.init == "discriminant" and self.public_data == "none",
                "public-data = 'none': init = 'discriminant' needs public images, in whose units "
                "it clips; use init = 'private-whitening'",
            ),
            (
                self.init == "private-whitening" and self.public_data != "none",
                "init = 'private-whitening': takes the place of public images, and public-data = "
                f"{self.public_data!r} has some; use init = 'discriminant', or public-data = "
                "'none'",
            ),
            (
                "rr-cluster" in self.method_list and self.rescale != "count",
                f"rescale = {self.rescale!r}: method rr-cluster needs the counts of 'count'",
            ),
            (
                self.release == "coded" and bool(excluded),
                f"{excluded} with release = 'coded'; use release = 'slots'",
            ),
        ]
        for broken, message in rules:
            if broken:
                raise ValueError(message)

    @property
    def dimensions(self) -> int:
        """m of the embedding: as configured, or 64, and 96 for a projection that knows nothing.

        At most the features' width. Without public data 96 start CIFAR-10 better than 64 or 128
        (``experiments/pina/without_public_data.py``).
        """
        return self.embedding_size or (96 if self.public_data == "none" else 64)

    @property
    def method_list(self) -> list[str]:
        """Methods to run, in order."""
        return [part.strip() for part in self.methods.split(",") if part.strip()]

    @property
    def rotation_list(self) -> list[int]:
        """Rotations in degrees; client groups take them in turn."""
        return [int(part) for part in self.rotations.split(",")]

    def local_steps(self, images: int) -> int:
        """Local SGD steps of a client with so many images."""
        return self.epochs * -(-images // self.batch_size)

    @property
    def share_list(self) -> list[float]:
        """Share of the clients that each rotation has, up to a common factor; empty if equal."""
        equal = self.rotation_shares == "equal"
        return [] if equal else [float(part) for part in self.rotation_shares.split(",")]

    @property
    def nodes(self) -> int:
        """Simulated nodes that host all clients."""
        return -(-self.clients // self.clients_per_node)

    @property
    def partition_seed(self) -> int:
        """Seed of the simulated split into clients; secret randomness never comes from it."""
        return 0 if self.seed is None else self.seed

    def to_run_config(self) -> dict[str, Scalar]:
        """Kebab-case keys and values as Flower's run config takes them."""
        return run_config.to_run_config(self)


def from_run_config(values: Mapping[str, Scalar]) -> PinaConfig:
    """Build the configuration from run-config keys, see ``app_kit.run_config.build``."""
    return run_config.build(PinaConfig, PRESETS, values)
