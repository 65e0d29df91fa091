"""From a configuration to a strategy: PINA and what it is compared with, under one privacy layer.

Every method spends the whole epsilon on its own planned composition: FedAvg and the oracle have
no initialisation to pay for, so their training noise is a little lower than PINA's.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from pina_app import choices
from pina_app.config import PinaConfig
from pina_app.method_table import Method, method_of
from pina_app.model import HEAD_WEIGHT, LORA_B, RANDOM_HEAD, initial_model
from strategies import wire
from strategies.aggregation import Aggregation
from strategies.clustered import ClusteredStrategy
from strategies.clustering.initialisation import DEFAULT_ROUNDS, FIRST_PHASES
from strategies.clustering.public_statistics import PublicStatistics
from strategies.fednova import FedNova
from strategies.pina import PINA
from strategies.privacy.calibration import Event, calibrate
from strategies.privacy.ledger import Ledger
from strategies.privacy.plan import PrivacyPlan, Stage
from strategies.randomness import stream
from strategies.release import CONTRAST
from strategies.rr_cluster import RRCluster
from strategies.sketched_pina import SketchedPINA

RANDOM_B = 0.02
"""Standard deviation of a random B."""


def entry_of(config: PinaConfig, method: str) -> Method:
    """The entry of a method in the table; ``pina`` has the initialisation that is chosen."""
    return method_of(method, choices.initialisation(config).value)


def method_plan(config: PinaConfig, method: str) -> PrivacyPlan:
    """The privacy plan of one method; ``epsilon_*`` are None where none is claimed."""
    entry = entry_of(config, method)
    # A client that adds the noise itself does not know of a crowd.
    own = dataclasses.replace(config, noise_cohort_size=None) if entry.local_noise else config
    plan = choices.privacy_plan(own, entry.init or "random")
    return _with_sketches(config, plan) if entry.init == "lora-sketch" else plan


def _with_sketches(config: PinaConfig, plan: PrivacyPlan) -> PrivacyPlan:
    """Add the unsampled local releases of the printed method; no epsilon covers them.

    Without a given noise it is what one unsampled Gaussian release would need for epsilon: the
    server sees who sent a sketch, so the sampled z of training must not be used.
    """
    z = config.init_noise_multiplier
    if not config.private:
        z = 0.0
    elif z is None and config.epsilon is not None:
        z = calibrate(lambda value: [Event(value)], config.epsilon, plan.delta)
    elif z is None:
        z = config.noise_multiplier or 0.0
    rounds = config.init_rounds or DEFAULT_ROUNDS["lora-sketch"]
    sketches = Stage(z, config.init_q, rounds, config.init_q * config.clients, noise_scale=1.0)
    return dataclasses.replace(plan, init=sketches, epsilon_outside=None, epsilon_server=None)


def method_aggregation(config: PinaConfig, method: str) -> Aggregation:
    """What one method does with its secure sums."""
    entry = entry_of(config, method)
    steps = _typical_steps(config) if method == "fednova" else 1
    release = choices.release(config).value if _knows_clusters(entry) else "slots"
    return Aggregation(
        threshold=config.clip / steps,  # FedNova's updates are those of a single step
        rescale=entry.rescale or config.rescale,
        skip=entry.skip or config.skip,
        equal_norm_rounds=config.equal_norm_rounds,
        server_momentum=config.server_momentum,
        release=release,
        contrast=choices.contrast(config) if release == "coded" else CONTRAST,
    )


def _knows_clusters(entry: Method) -> bool:
    """Whether clients know their cluster before training, as a coded release needs."""
    return entry.assignment == "oracle" or entry.init in FIRST_PHASES


def _typical_steps(config: PinaConfig) -> int:
    """Local steps of a client with the configured number of images, or with one batch of them.

    FedNova's scale is public: it must not come from the clients' data.
    """
    images = config.images_per_client * max(1, config.augmented_copies)
    return config.local_steps(images or config.batch_size)


def create_strategy(
    config: PinaConfig,
    method: str,
    statistics: PublicStatistics,
    ledger_path: Path | None,
    server_points: NDArray[np.float64] | None = None,
    classes: int = 0,
) -> ClusteredStrategy:
    """The strategy of one method, with its ledger.

    ``server_points`` and ``classes`` are for the initialisations of PINA that need them.
    """
    entry = entry_of(config, method)
    plan = method_plan(config, method)
    public: RecordDict = wire.public_content(
        {
            "mean": statistics.mean,
            "embedding": statistics.embedding,
            "head": statistics.head,
            "centred": np.array(float(statistics.centred), dtype=np.float32),
        }
    )
    common: dict[str, Any] = {
        "name": method,
        "clients": config.clients,
        "clusters": _number_of_models(config, entry),
        "plan": plan,
        "aggregation": method_aggregation(config, method),
        "ledger": Ledger(ledger_path, method, plan.delta, plan.budget, plan.max_participations),
        "seed": config.seed if config.simulation else None,
        "public": public,
        "local_noise": entry.local_noise,
    }
    if entry.init == "lora-sketch":
        return SketchedPINA(sketch_array=LORA_B, **common)
    if entry.init is not None:
        return PINA(
            init=entry.init,
            embedding_size=len(statistics.embedding),
            server_points=server_points,
            classes=classes,
            **common,
        )
    if method == "fednova":
        return FedNova(effective_steps=_typical_steps(config), **common)
    if method == "rr-cluster":
        return RRCluster(smallest_share=config.smallest_share / config.clusters, **common)
    return ClusteredStrategy(assignment=entry.assignment, **common)


def train_config(config: PinaConfig, method: str) -> ConfigRecord:
    """What a method tells the clients' training beside the request."""
    return ConfigRecord({wire.PROXIMAL_MU: config.proximal_mu} if method == "fedprox" else {})


def _number_of_models(config: PinaConfig, entry: Method) -> int:
    return 1 if entry.clusters == "one" else config.clusters


def initial_models(
    config: PinaConfig, method: str, width: int, classes: int, lora_size: int | None = None
) -> list[wire.Model]:
    """Where the cluster models of a method start."""
    entry = entry_of(config, method)
    models = [
        initial_model(width, classes, random_head=entry.start != "zero", lora_size=lora_size)
        for _ in range(_number_of_models(config, entry))
    ]
    rng = stream(config.seed if config.simulation else None, "random-init")
    for model in models if entry.start in ("random-B", "random") else ():
        model[LORA_B] = (RANDOM_B * rng.standard_normal(model[LORA_B].size)).astype(np.float32)
        if entry.start == "random":
            drawn = RANDOM_HEAD * rng.standard_normal(model[HEAD_WEIGHT].shape)
            model[HEAD_WEIGHT] = drawn.astype(np.float32)
    if config.trainable == "head":
        for model in models:
            del model[LORA_B]
    return models
