"""FedNova (Wang, Liu, Liang, Joshi and Poor, NeurIPS 2020, arXiv:2007.07481): normalised averaging.

Clients that take more local steps pull FedAvg towards their own optima. FedNova averages the
direction of one step, ``d_i = (x_i - x) / |a_i|_1``, and moves by an effective number of steps:
``x + tau_eff * mean_i d_i``. For plain SGD ``|a_i|_1`` is the number tau_i of local steps; with
momentum rho it is ``(tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)`` (Section 4 of the paper).

Deviations from the paper: ``tau_eff = sum_i p_i |a_i|_1`` would release the clients' numbers of
steps, so ``effective_steps`` is a public constant; every client weighs the same (p_i = 1/K) and the
divisor is the expected cohort; ``d_i``, not the whole update, is clipped, so the threshold S is in
the units of a single step. Proximal local solvers and server momentum of the paper's kind are left
out; ``Aggregation.server_momentum`` works as for the other strategies.
"""

from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from strategies import planned, wire
from strategies.clustered import ClusteredStrategy


def accumulated_steps(steps: float, momentum: float = 0.0) -> float:
    """|a|_1: how many plain gradient steps so many local steps are worth.

    Parameters
    ----------
    steps : float
        tau > 0, local steps.
    momentum : float
        rho in [0, 1) of the local SGD.

    Raises
    ------
    ValueError
        If a value is out of range.
    """
    if not 0 < steps < np.inf:
        raise ValueError(f"steps = {steps}: must be > 0")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum = {momentum}: must be in [0, 1)")
    return float(steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


class FedNova(ClusteredStrategy):
    """Normalised averaging on one model.

    Parameters
    ----------
    effective_steps : float
        tau_eff > 0, the public number of local steps a round is worth; with equal local steps,
        their number makes FedNova FedAvg.
    local_momentum : float
        rho of the clients' SGD.
    **clustered
        See ``ClusteredStrategy``. Clients report their steps to the client-side code alone, as the
        metric ``num-steps`` of their train function; it does not leave them.
    """

    def __init__(
        self, *, effective_steps: float, local_momentum: float = 0.0, **clustered: Any
    ) -> None:
        super().__init__(assignment="single", **clustered)
        self.local_momentum = local_momentum
        self.factor = accumulated_steps(effective_steps, local_momentum)

    @classmethod
    def planned(
        cls,
        *,
        clients: int,
        rounds: int,
        epsilon: float | None,
        seed: int | None = None,
        effective_steps: float = 1.0,
        local_momentum: float = 0.0,
        **settings: Any,
    ) -> Self:
        """FedNova from few numbers; ``settings`` as for ``strategies.planned.parts``.

        Parameters
        ----------
        clients, rounds, epsilon, seed
            As for ``ClusteredStrategy.planned``.
        effective_steps, local_momentum : float
            As for the class: a typical client's local steps, and its momentum.
        """
        common = planned.parts(
            "fednova", clients=clients, clusters=1, rounds=rounds, epsilon=epsilon, **settings
        )
        return cls(
            seed=seed, effective_steps=effective_steps, local_momentum=local_momentum, **common
        )

    def request(self, current_round: int) -> wire.RoundRequest:
        """Ask for normalised updates."""
        return replace(
            super().request(current_round), normalise=True, local_momentum=self.local_momentum
        )

    def use(
        self,
        request: wire.RoundRequest,
        sums: NDArray[np.float64],
        counts: NDArray[np.float64] | None,
        noise_std: float,
    ) -> None:
        """Move by the effective number of steps."""
        super().use(request, self.factor * sums, counts, self.factor * noise_std)
