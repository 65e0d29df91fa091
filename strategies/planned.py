"""A strategy from few numbers: plan, aggregation and ledger with sensible defaults.

``PINA.planned(clients=100, clusters=2, rounds=40, epsilon=8)`` and its siblings call this.
"""

from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.common import log

from strategies.aggregation import Aggregation
from strategies.privacy.ledger import Ledger
from strategies.privacy.plan import PrivacyPlan, plan_privacy

PRIVATE_THRESHOLD = 1.0
PLAIN_THRESHOLD = 100.0
"""Without privacy clipping has no purpose; updates of this norm still keep 8 decimals."""


def parts(
    name: str,
    *,
    clients: int,
    clusters: int,
    rounds: int,
    epsilon: float | None,
    init_rounds: int = 0,
    init_share: float | None = None,
    sampling: float = 1.0,
    threshold: float | None = None,
    delta: float | None = None,
    noise_cohort_size: int | None = None,
    max_participations: int | None = None,
    server_momentum: float = 0.0,
    release: str = "slots",
    ledger: Path | str | None = None,
) -> dict[str, Any]:
    """Arguments of ``ClusteredStrategy``.

    Parameters
    ----------
    name : str
        Name in ledger and log.
    clients, clusters : int
        K, the public size of the population, and C.
    rounds : int
        All rounds, those of an initialisation included: ``num_rounds`` of ``start``.
    epsilon : float or None
        Budget over the whole run against everybody who sees released sums and models; None runs
        without privacy, and the log says so.
    init_rounds : int
        Rounds of the initialisation.
    init_share : float, optional
        Share of epsilon that the initialisation costs by itself, in (0, 1).
    sampling : float
        Probability with which a client takes part in a training round.
    threshold : float, optional
        S, the largest L2 norm of an update: by default 1, or 100 (hardly any clipping) without
        privacy.
    delta : float, optional
        By default ``K^-1.1``; smaller is a stronger promise.
    noise_cohort_size : int, optional
        Noise as if so many clients took part in each round: a thought experiment.
    max_participations : int, optional
        Most training rounds of one client; costs the amplification by sampling.
    server_momentum : float
        In [0, 1).
    release : {"slots", "coded"}
        Layout of the training release, see ``strategies.release``; with one cluster they are one.
    ledger : path, optional
        File of the releases; by default they are kept in memory only.

    Raises
    ------
    ValueError
        If a value is out of range, or no round is left for training.
    """
    if rounds <= init_rounds:
        raise ValueError(f"rounds = {rounds}: must be > {init_rounds}, the initialisation alone")
    if epsilon is not None and not epsilon > 0:
        raise ValueError(f"epsilon = {epsilon}: must be > 0, or None for a run without privacy")
    if not 0 < sampling <= 1:
        raise ValueError(f"sampling = {sampling}: must be in (0, 1]")
    plan = plan_privacy(
        clients=clients,
        sampling=sampling,
        rounds=rounds - init_rounds,
        init_releases=init_rounds,
        init_share=init_share,
        private=epsilon is not None,
        epsilon=epsilon,
        max_participations=max_participations,
        noise_cohort_size=noise_cohort_size,
        delta=delta,
    )
    if threshold is None:
        threshold = PRIVATE_THRESHOLD if plan.private else PLAIN_THRESHOLD
    _announce(name, plan, ledger)
    return {
        "name": name,
        "clients": clients,
        "clusters": clusters,
        "plan": plan,
        # One cluster has no shares to tell apart: its divisor is the expected cohort.
        "aggregation": Aggregation(
            threshold=threshold,
            rescale="count" if clusters > 1 else "none",
            server_momentum=server_momentum,
            release=release if clusters > 1 else "slots",
        ),
        "ledger": Ledger(
            None if ledger is None else Path(ledger),
            name,
            plan.delta,
            plan.budget,
            plan.max_participations,
        ),
    }


def _announce(name: str, plan: PrivacyPlan, ledger: Path | str | None) -> None:
    """Say what is promised, and under which assumption."""
    if not plan.private:
        log(WARNING, "%s: epsilon = None, so this run has NO differential privacy", name)
        return
    assumed = ""
    if plan.noise_cohort_size is not None:
        assumed = (
            f" IF {plan.noise_cohort_size} clients took part in a round; the noise of this run is "
            f"worth epsilon = {plan.epsilon_real_cohort:.3g}"
        )
    log(INFO, "%s: epsilon %.3g, delta %.3g%s", name, plan.epsilon_outside, plan.delta, assumed)
    log(INFO, "%s: the server adds the updates itself and has to be trusted with each", name)
    if ledger is None:
        log(INFO, "%s: the ledger is kept in memory; ledger = PATH keeps it on disk", name)
