"""Run configuration of the wireless app: every knob, its default, and what it may be.

Keys that the two apps share (``pyproject.toml`` has each key once) have one default; the paper's
learning rate and batch size are in the presets.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from app_kit import run_config
from app_kit.run_config import Scalar, key_of
from strategies.wireless.channel import Channel
from strategies.wireless.links import check_periods

METHODS = ("proposed", "random", "similarity", "fedavg")
PRESETS = Path(__file__).parent / "presets"
SHAPE = re.compile(r"[1-9]\d*x[1-9]\d*x[13]")


@dataclasses.dataclass(frozen=True)
class WirelessConfig:
    """Settings of a run; see the README for what each one does.

    Raises
    ------
    ValueError
        On creation, naming the key, its value and what is allowed.
    """

    # what runs, and where it is written
    preset: str = "none"
    method: str = "proposed"
    run_dir: str = "runs"
    resume: bool = False
    # data
    dataset: str = "digits"
    devices: int = 100
    clients_per_node: int = 25
    images_per_client: int = 0
    dirichlet_alpha: float = 0.5
    test_images: int = 0
    classes: int | None = None
    image_shape: str | None = None
    # network
    positions: str = "none"
    radius_m: float = 100.0
    server_x_m: float = 1000.0
    server_y_m: float = 0.0
    candidates: int = 0
    capacity: int = 15
    # clustering
    alpha: float = 0.5
    beta: float | None = None
    weighting: str = "paper"
    plan_sweeps: int = 200
    gradient_sketch: int = 0
    # training
    iterations: int = 200
    tau1: int = 1
    tau2: int = 2
    batch_size: int = 50
    learning_rate: float = 0.2
    # radio
    bandwidth_hz: float = 1e6
    transmit_power_w: float = 0.01
    noise_dbm_per_hz: float = -173.0
    band: str = "per-device"
    directions: str = "uplink"
    fading: bool = False
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
        at_least_one = (
            *("devices", "clients_per_node", "capacity", "plan_sweeps", "iterations"),
            *("tau1", "tau2", "batch_size", "evaluate_every"),
        )
        not_negative = ("images_per_client", "test_images", "gradient_sketch")
        above_zero = ("dirichlet_alpha", "radius_m", "learning_rate", "round_timeout_s")
        one_of = {
            "method": METHODS,
            "weighting": ("paper", "size"),
            "band": ("per-device", "shared"),
            "directions": ("uplink", "both"),
        }
        most = f"in [0, devices = {self.devices}] (0: all devices)"
        return [
            *((f, ">= 1", getattr(self, f) >= 1) for f in at_least_one),
            *((f, ">= 0", getattr(self, f) >= 0) for f in not_negative),
            *((f, "> 0", getattr(self, f) > 0) for f in above_zero),
            *((f, f"one of {a}", getattr(self, f) in a) for f, a in one_of.items()),
            ("candidates", most, 0 <= self.candidates <= self.devices),
            ("alpha", "in [0, 1]", 0 <= self.alpha <= 1),
            ("seed", ">= 0 or 'none'", self.seed is None or self.seed >= 0),
            ("classes", ">= 2 or 'none'", self.classes is None or self.classes >= 2),
            (
                "image_shape",
                "HEIGHTxWIDTHxCHANNELS with 1 or 3 channels, as '28x28x1', or 'none'",
                self.image_shape is None or bool(SHAPE.fullmatch(self.image_shape)),
            ),
        ]

    def _check_combinations(self) -> None:
        self._check_deployment()
        if self.beta is not None and abs(self.alpha + self.beta - 1) > 1e-9:
            raise ValueError(
                f"beta = {self.beta!r}: must be 1 - alpha = {1 - self.alpha:g}; leave it 'none' to "
                "have it follow alpha"
            )
        check_periods(self.tau1, self.tau2)
        period = self.tau1 if self.method == "fedavg" else self.tau2
        if self.iterations % period:
            raise ValueError(
                f"iterations = {self.iterations}: must be a multiple of {period}, so that the run "
                "ends with a global model"
            )
        self.channel(1)

    def _check_deployment(self) -> None:
        """What real devices need, and what only a simulation has."""
        if self.simulation:
            for field in ("classes", "image_shape"):
                if getattr(self, field) is not None:
                    raise ValueError(
                        f"{key_of(field)} = {getattr(self, field)!r}: needs simulation = false; a "
                        "simulation takes it from its dataset"
                    )
            return
        if (self.classes is None) != (self.image_shape is None):
            raise ValueError(
                f"classes = {self.classes}, image-shape = {self.image_shape!r}: give both (the "
                "model must fit the devices' data), or neither, for those of dataset"
            )
        if self.seed is not None:
            raise ValueError(
                f"seed = {self.seed}: must be 'none' with simulation = false; its randomness comes "
                "from the operating system"
            )
        if self.positions == "none":
            raise ValueError(
                "positions = 'none': simulation = false needs a CSV file with the devices' places "
                "(id, x_m, y_m), in the order of their client-id"
            )

    def channel(self, parameters: int) -> Channel:
        """The radio links for a model of so many float32 parameters."""
        return Channel(
            bandwidth_hz=self.bandwidth_hz,
            transmit_power_w=self.transmit_power_w,
            noise_dbm_per_hz=self.noise_dbm_per_hz,
            model_bits=32.0 * parameters,
            band=self.band,  # type: ignore[arg-type]
            directions=self.directions,  # type: ignore[arg-type]
            fading=self.fading,
        )

    @property
    def clients(self) -> int:
        """Devices, as the data split calls them."""
        return self.devices

    @property
    def partitioner(self) -> str:
        """The paper's split; a large ``dirichlet-alpha`` makes it even."""
        return "dirichlet"

    @property
    def nodes(self) -> int:
        """Simulated nodes that host all devices."""
        return -(-self.devices // self.clients_per_node)

    @property
    def partition_seed(self) -> int:
        """Seed of the simulated split, the drawn positions and the choice of test images."""
        return 0 if self.seed is None else self.seed

    @property
    def run_seed(self) -> int | None:
        """Seed of the initial model, the plan and fading; None: the operating system's."""
        return self.partition_seed if self.simulation else None

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """``image-shape`` as numbers."""
        if self.image_shape is None:
            return None
        height, width, channels = map(int, self.image_shape.split("x"))
        return height, width, channels

    def to_run_config(self) -> dict[str, Scalar]:
        """Kebab-case keys and values as Flower's run config takes them."""
        return run_config.to_run_config(self)


def from_run_config(values: Mapping[str, Scalar]) -> WirelessConfig:
    """Build the configuration from run-config keys, see ``app_kit.run_config.build``."""
    return run_config.build(WirelessConfig, PRESETS, values)
