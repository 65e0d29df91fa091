"""What ``init = "auto"`` and ``release = "auto"`` stand for in a configuration.

The rule (``strategies.rule``) looks at the noise of PINA's own plan, so that the oracle, with which
PINA is compared, gets the same release. It never chooses what other settings exclude.
"""

import dataclasses
from functools import lru_cache

import torch

from app_kit.sources import is_hub_id, open_source
from pina_app.config import PinaConfig
from pina_app.model import create_backbone
from pina_app.tails import create_tail
from strategies.aggregation import not_coded
from strategies.clustering.initialisation import (
    DEFAULT_ROUNDS,
    DEFAULT_SHARES,
    FIRST_PHASES,
    fewest_rounds,
)
from strategies.privacy.plan import LARGE_CROWD_SHARE, PrivacyPlan, Stage, plan_privacy
from strategies.rule import (
    Choice,
    choose_contrast,
    choose_init,
    choose_release,
    noise_of_release,
)

CLASSES = 10
"""Taken for a data set that is not at hand (a hub id, a file elsewhere) when the rule is asked."""


def privacy_plan(config: PinaConfig, init: str) -> PrivacyPlan:
    """The plan of a run with an initialisation by secure sums, or of one without, for other names.

    ``init = "lora-sketch"`` has other releases, which are not planned here.

    Raises
    ------
    ValueError
        If the initialisation needs more releases than are configured.
    """
    initialised = init in FIRST_PHASES
    fewest = fewest_rounds(init, config.clusters) if initialised else 0
    if 0 < config.init_rounds < fewest:
        raise ValueError(
            f"init-rounds = {config.init_rounds}: init = {init!r} with {config.clusters} clusters "
            f"needs at least {fewest}, or 0 (its default, {DEFAULT_ROUNDS[init]})"
        )
    releases = (config.init_rounds or DEFAULT_ROUNDS[init]) if initialised else 0
    share = config.init_share or DEFAULT_SHARES.get(init)
    if share is None and config.init == "auto":
        share = LARGE_CROWD_SHARE
    return plan_privacy(
        clients=config.clients,
        sampling=config.q,
        rounds=config.rounds,
        init_releases=releases,
        init_sampling=config.init_q,
        private=config.private,
        epsilon=config.epsilon,
        noise_multiplier=config.noise_multiplier,
        init_noise_multiplier=config.init_noise_multiplier if initialised else None,
        init_share=share,
        epsilon_for=config.epsilon_for,
        max_participations=config.max_participations,
        noise_cohort_size=config.noise_cohort_size,
        delta=config.delta,
    )


@lru_cache(maxsize=16)
def initialisation(config: PinaConfig) -> Choice:
    """The initialisation, and the rule's reason (empty if it is configured)."""
    if config.init != "auto":
        return Choice(config.init, "")
    own = config.public_data in ("synthetic", "none")
    public = config.public_data if own else "images"
    if not config.private:
        return choose_init(config.clients, 0.0, config.clusters, public)
    plan = privacy_plan(config, "secure-kmeans")
    assert plan.init is not None
    noise = plan.init.noise_multiplier
    return choose_init(_crowd(plan, plan.init), noise, config.clusters, public)


@lru_cache(maxsize=16)
def release(config: PinaConfig) -> Choice:
    """The layout of the training release, and the rule's reason (empty if it is configured)."""
    if config.release != "auto":
        return Choice(config.release, "")
    if not config.private:
        return Choice("slots", "no noise")
    if excluded := not_coded(config.rescale, config.server_momentum):
        return Choice("slots", excluded + " for 'coded'")
    init = initialisation(config).value
    if init not in FIRST_PHASES:
        return Choice("slots", "no prototypes")
    plan = privacy_plan(config, init)
    noise = plan.train.noise_multiplier
    return choose_release(_crowd(plan, plan.train), noise, config.clusters, update_size(config))


@lru_cache(maxsize=16)
def contrast(config: PinaConfig) -> float:
    """Weight of the contrasts where the release is "coded"."""
    if not config.private:
        return choose_contrast(0.0)
    init = initialisation(config).value
    plan = privacy_plan(config, init if init in FIRST_PHASES else "random")
    noise = plan.train.noise_multiplier
    crowd = _crowd(plan, plan.train)
    return choose_contrast(noise_of_release(crowd, noise, config.clusters, update_size(config)))


def explain(config: PinaConfig) -> str:
    """One line on what is used and why."""
    parts = []
    for key, choice in (("init", initialisation(config)), ("release", release(config))):
        reason = f" (auto: {choice.reason})" if choice.reason else ""
        parts.append(f"{key} = {choice.value}{reason}")
    if release(config).value == "coded":
        parts.append(f"contrast = {contrast(config):g}")
    return "; ".join(parts)


@lru_cache(maxsize=16)
def update_size(config: PinaConfig) -> int:
    """D: numbers that a client trains."""
    with torch.random.fork_rng():  # a model without weights draws random ones
        backbone = create_backbone(dataclasses.replace(config, weights="none"))
        tail = create_tail(backbone, config.lora_targets)
    lora = tail.lora.size if config.trainable == "lora+head" else 0
    return _classes(config) * (int(tail.width) + 1) + int(lora)


def _classes(config: PinaConfig) -> int:
    if config.classes is not None:
        return config.classes
    if is_hub_id(config.dataset):
        return CLASSES
    try:
        return open_source(config.dataset, config.partition_seed).classes
    except ValueError:
        return CLASSES


def _crowd(plan: PrivacyPlan, stage: Stage) -> float:
    return float(plan.noise_cohort_size or stage.cohort)
