"""Checks that need more than the configuration: data, weights, labels and the privacy plan.

They run before a run is submitted and again where it starts, so that bad input ends in one clear
message before any client is asked.
"""

from app_kit.partition import partition
from app_kit.sources import load_public_images, open_source
from pina_app import choices
from pina_app.config import PinaConfig
from pina_app.methods import method_aggregation, method_plan
from pina_app.model import create_backbone
from strategies.clustering.initialisation import LABELLED
from strategies.clustering.secure_kmeans import lloyd_layout
from strategies.privacy.calibration import Event, epsilon_of
from strategies.privacy.plan import PrivacyPlan


def check(config: PinaConfig) -> dict[str, PrivacyPlan]:
    """Raise ValueError for whatever would fail later; returns the plan of every method."""
    plans = {method: method_plan(config, method) for method in config.method_list}
    for method, plan in plans.items():
        _check_first_release(method, plan)
    if config.classes is None:
        source = open_source(config.dataset, config.partition_seed)
        if config.simulation:
            partition(config, source)
    load_public_images(config.public_data)
    size = min(config.dimensions, int(create_backbone(config).embed_dim))
    init = choices.initialisation(config).value
    if "pina" in plans and init in LABELLED and config.clusters > size:
        raise ValueError(
            f"clusters = {config.clusters}: init = {init!r} needs an embedding of as many numbers, "
            f"and has {size}; raise embedding-size (at most the features' width), or name an init"
        )
    return plans


def _check_first_release(method: str, plan: PrivacyPlan) -> None:
    """Refuse a plan whose budget does not cover one release."""
    stage = plan.init if plan.init is not None and plan.epsilon_outside is not None else plan.train
    if not plan.private or plan.budget is None:
        return
    cost = epsilon_of([Event(stage.noise_multiplier, stage.sampling)], plan.delta)
    if cost > plan.budget:
        raise ValueError(
            f"noise-multiplier = {stage.noise_multiplier:g}: the first release of {method} alone "
            f"costs epsilon = {cost:.3g}, beyond epsilon = {plan.budget:g}; raise one of them, or "
            "set epsilon = 'none' to report only"
        )


def describe(config: PinaConfig, method: str, plan: PrivacyPlan) -> str:
    """What a method's releases cost, in a few lines.

    Noise is given per coordinate of the mean of a cohort, beside the clipping threshold S.
    """
    if not plan.private:
        return f"{method}: no privacy, no noise"
    lines = [f"{method}:"]
    training = method_aggregation(config, method).layout(config.clusters, 1).sensitivity
    # The Lloyd releases, which are all of the default initialisation but its first.
    lloyd = lloyd_layout(1, 1).sensitivity
    stages = (
        ("initialisation", plan.init, lloyd, 1.0),
        ("training", plan.train, training, config.clip),
    )
    for name, stage, sensitivity, clip in stages:
        if stage is None:
            continue
        clients = plan.noise_cohort_size or stage.cohort
        std = stage.noise_multiplier * sensitivity / clients
        lines.append(
            f"  {name}: {stage.releases} releases, q = {stage.sampling:g}, z = "
            f"{stage.noise_multiplier:.4g}; noise on the mean of {clients:g} clients "
            f"{std:.3g} a coordinate (S = {clip:g})"
        )
    if method == "pina":
        lines.append(f"  {choices.explain(config)}")
    if plan.epsilon_outside is None:
        lines.append("  epsilon: none; the sketches of init = 'lora-sketch' are not private")
    else:
        server = f"{plan.epsilon_server:.4g}" if plan.epsilon_server is not None else "-"
        participations = plan.max_participations or plan.train.releases
        lines.append(
            f"  epsilon_outside = {plan.epsilon_outside:.4g} (sees released sums and models), "
            f"epsilon_server = {server} (would choose the cohort, at most {participations} "
            f"participations, behind a cryptographic secure sum); delta = {plan.delta:.3g}"
        )
    if plan.noise_cohort_size:
        cohort = f"  for a simulated cohort of {plan.noise_cohort_size:,} clients in every release"
        if plan.epsilon_real_cohort is not None:
            cohort += f"; with the real cohort: epsilon = {plan.epsilon_real_cohort:.4g}"
        lines.append(cohort)
    return "\n".join(lines)
