"""From a configuration to a strategy: PINA and what it is compared with, under one privacy layer.

Every method spends the whole epsilon on its own planned composition: FedAvg and the oracle have
no initialisation to pay for, so their training noise is a little lower than PINA's.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from pina_app import choices
from pina_app.config import PinaConfig
from pina_app.model import LORA_B, initial_model
from strategies import wire
from strategies.aggregation import Aggregation
from strategies.clustered import ClusteredStrategy
from strategies.clustering.initialisation import DEFAULT_ROUNDS
from strategies.clustering.public_statistics import PublicStatistics
from strategies.pina import PINA
from strategies.privacy.calibration import Event, calibrate
from strategies.privacy.ledger import Ledger
from strategies.privacy.plan import PrivacyPlan, Stage
from strategies.randomness import stream

RANDOM_B = 0.02
"""Standard deviation of B with ``init = "random"``."""


def method_plan(config: PinaConfig, method: str) -> PrivacyPlan:
    """The privacy plan of one method; ``epsilon_*`` are None where none is claimed."""
    init = choices.initialisation(config).value if method == "pina" else "random"
    plan = choices.privacy_plan(config, init)
    if method == "pina" and config.init == "lora-sketch":
        return _with_sketches(config, plan)
    return plan


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
    return Aggregation(
        threshold=config.clip,
        # One cluster has nothing to rescale: its divisor is the expected cohort.
        rescale="none" if method == "fedavg" else config.rescale,
        skip=config.skip,
        equal_norm_rounds=config.equal_norm_rounds,
        server_momentum=config.server_momentum,
        release=choices.release(config).value if method in ("pina", "oracle") else "slots",
    )


def create_strategy(
    config: PinaConfig,
    method: str,
    statistics: PublicStatistics,
    ledger_path: Path | None,
    server_points: NDArray[np.float64] | None = None,
) -> ClusteredStrategy:
    """The strategy of one method, with its ledger; ``server_points`` for that initialisation."""
    plan = method_plan(config, method)
    pina = method == "pina"
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
        "clusters": 1 if method == "fedavg" else config.clusters,
        "plan": plan,
        "aggregation": method_aggregation(config, method),
        "ledger": Ledger(ledger_path, method, plan.delta, plan.budget, plan.max_participations),
        "seed": config.seed if config.simulation else None,
        "public": public,
    }
    if not pina:
        return ClusteredStrategy(assignment="single" if method == "fedavg" else "oracle", **common)
    return PINA(
        init=choices.initialisation(config).value,
        embedding_size=len(statistics.embedding),
        prototype_rounds=choices.prototype_rounds(config),
        sketch_array=LORA_B,
        server_points=server_points,
        **common,
    )


def initial_models(
    config: PinaConfig, method: str, width: int, classes: int, lora_size: int | None = None
) -> list[wire.Model]:
    """Where the cluster models of a method start."""
    printed = method == "pina" and config.init in ("lora-sketch", "random")
    count = 1 if method == "fedavg" else config.clusters
    models = [
        initial_model(width, classes, random_head=printed, lora_size=lora_size)
        for _ in range(count)
    ]
    if method == "pina" and config.init == "random":
        rng = stream(config.seed if config.simulation else None, "random-init")
        for model in models:
            model[LORA_B] = (RANDOM_B * rng.standard_normal(model[LORA_B].size)).astype(np.float32)
    if config.trainable == "head":
        for model in models:
            del model[LORA_B]
    return models
