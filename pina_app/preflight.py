"""Checks that need more than the configuration: data, weights, labels and the privacy plan.

They run before a run is submitted and again where it starts, so that bad input ends in one clear
message before any client is asked.
"""

from pina_app.config import PinaConfig
from pina_app.datasets import partition
from pina_app.methods import method_plan
from pina_app.model import create_backbone
from pina_app.sources import load_public_images, open_source
from strategies.privacy.plan import PrivacyPlan


def check(config: PinaConfig) -> dict[str, PrivacyPlan]:
    """Raise ValueError for whatever would fail later; returns the plan of every method."""
    plans = {method: method_plan(config, method) for method in config.method_list}
    if config.simulation:
        partition(config, open_source(config))
    load_public_images(config)
    create_backbone(config)
    return plans


def describe(method: str, plan: PrivacyPlan, clip: float) -> str:
    """What a method's releases cost, in a few lines.

    Noise is given per coordinate of the mean of a cohort, beside the clipping threshold S.
    """
    lines = [f"{method}:"]
    if not plan.private:
        return f"{method}: no privacy, no noise"
    for name, stage, sensitivity in (
        ("initialisation", plan.init, 1.0),
        ("training", plan.train, clip),
    ):
        if stage is None:
            continue
        clients = plan.noise_cohort_size or stage.cohort
        std = stage.noise_multiplier * sensitivity / clients
        lines.append(
            f"  {name}: {stage.releases} releases, q = {stage.sampling:g}, z = "
            f"{stage.noise_multiplier:.4g}; noise on the mean of {clients:g} clients "
            f"{std:.3g} a coordinate (a client's largest norm: {sensitivity:g})"
        )
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
        lines.append(
            f"  for a simulated cohort of {plan.noise_cohort_size:,} clients in every release"
        )
    return "\n".join(lines)
