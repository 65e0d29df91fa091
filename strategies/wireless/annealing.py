"""Annealing with heat-bath steps, and the population of clusterings for small networks.

The temperature falls geometrically from ``HOT`` to ``COLD`` times the typical change by a swap.
The members of the population start with different numbers of heads; at ``EXCHANGES`` points the
worst are overwritten by copies of the best; the last of the budget is for a plain descent. Large
networks are annealed in ``blocks``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from strategies.wireless.heat_bath import IMPROVEMENT, Data, HeatBath, NoisePool
from strategies.wireless.problem import (
    Clustering,
    ClusteringProblem,
    FloatArray,
    IntArray,
    objective,
)

HOT, COLD = 0.1, 0.012
EXCHANGES, SHARE = 8, 0.25
FINAL_SWEEPS = 20
ANNEAL_SHARE = 0.97
# At alpha = 1 heads are free: this weight of the normalised distance breaks the tie.
DISTANCE_FLOOR = 1e-7

Clock = Callable[[], float]


@dataclass
class Budget:
    """Ends after ``seconds`` of ``clock`` or after ``sweeps``, whichever comes first.

    With ``sweeps`` alone a search is deterministic for its seed.
    """

    seconds: float | None = None
    sweeps: int | None = None
    clock: Clock = time.perf_counter
    done: int = 0

    def __post_init__(self) -> None:
        if self.seconds is None and self.sweeps is None:
            raise ValueError("seconds = None, sweeps = None: at least one must be given")
        for name in ("seconds", "sweeps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} = {value}: must be > 0")
        self.started = self.clock()

    def progress(self) -> float:
        """Share of the budget that is used; >= 1 when it is spent."""
        used = 0.0
        if self.seconds is not None:
            used = (self.clock() - self.started) / self.seconds
        if self.sweeps is not None:
            used = max(used, self.done / self.sweeps)
        return used

    def part(self, share: float, sweeps: int) -> Budget:
        """A budget of ``sweeps``, and of ``share`` of the seconds if they are limited."""
        seconds = None if self.seconds is None else share * self.seconds
        return Budget(seconds, sweeps, self.clock)


def weight_table(problem: ClusteringProblem, heads: int, sizes: int) -> FloatArray:
    """(sizes,) weight of |sum of unit gradients|^2 for clusters of 0, 1, ... devices."""
    return problem.cluster_weights(np.arange(sizes), heads)


def full_data(problem: ClusteringProblem) -> Data:
    """Inner products and distances of all devices: O(U^2) memory."""
    everyone = np.arange(problem.devices)
    gradients = problem.unit_gradients.astype(float)
    weight = max(problem.distance_weight, DISTANCE_FLOOR / problem.distance_reference_m)
    return Data(
        (gradients @ gradients.T)[None],
        weight * problem.distances_m(everyone, everyone)[None],
        weight * problem.server_distances_m()[None],
        problem.capacity_of_device()[None],
    )


def stack_starts(
    problem: ClusteringProblem, starts: Sequence[Clustering]
) -> tuple[IntArray, IntArray, FloatArray]:
    """Labels (B, U), heads (B, K; -1 pads) and weight tables (B, U + 2) of a population."""
    width = max(len(start.heads) for start in starts)
    labels = np.stack([start.labels for start in starts])
    heads = np.full((len(starts), width), -1, dtype=np.int64)
    for row, start in enumerate(starts):
        heads[row, : len(start.heads)] = start.heads
    tables = [weight_table(problem, len(start.heads), problem.devices + 2) for start in starts]
    return labels, heads, np.stack(tables)


def anneal_population(
    problem: ClusteringProblem,
    starts: Sequence[Clustering],
    budget: Budget,
    rng: np.random.Generator,
    *,
    free_heads: bool = True,
    hot: float = HOT,
) -> Clustering:
    """The best clustering found from ``starts`` (feasible; heads may differ in number).

    Memory: O(B K U + U^2). ``free_heads = False`` keeps the heads (Eq. 17).
    """
    labels, heads, tables = stack_starts(problem, starts)
    data = full_data(problem)
    bath = HeatBath(data, labels, heads, tables, NoisePool(rng))
    best, unit = _Best(problem), bath.typical_change()
    best.offer(bath)
    exchanged = 0
    while (progress := budget.progress() / ANNEAL_SHARE) < 1:
        temperature = unit * hot * (COLD / hot) ** progress
        if progress * (EXCHANGES + 1) > exchanged + 1:
            order = np.argsort(bath.value, kind="stable")
            count = int(bath.size * SHARE)
            worst, best_members = order[bath.size - count :], order[:count]
            bath.copy_members(worst, best_members)
            exchanged += 1
        bath.sweep(temperature)
        budget.done += 1
        if free_heads:
            bath.draw_heads(temperature)
            bath.exchange_heads(temperature)
        if budget.done % 16 == 0:
            bath.rebuild()
        best.offer(bath)
    bath.rebuild()
    _descend(bath, budget, free_heads)
    best.offer(bath)
    return best.clustering


def _descend(bath: HeatBath, budget: Budget, free_heads: bool) -> None:
    """Best improvements until none is left (or the budget is)."""
    for _ in range(FINAL_SWEEPS):
        before = bath.value.copy()
        if free_heads:
            bath.draw_heads(0.0)
        bath.sweep(0.0)
        if (bath.value > before - IMPROVEMENT).all() or budget.progress() >= 1:
            break
    bath.rebuild()


class _Best:
    """The best member seen so far; values are recomputed from the assignment."""

    def __init__(self, problem: ClusteringProblem) -> None:
        self.problem, self.value = problem, np.inf
        self.clustering: Clustering

    def offer(self, bath: HeatBath) -> None:
        values = bath.value  # in single precision
        row = int(values.argmin())
        if values[row] < self.value + IMPROVEMENT:
            clustering = Clustering(bath.labels[row].copy(), bath.heads[row][bath.heads[row] >= 0])
            value = objective(self.problem, clustering)
            if value < self.value - 1e-12:
                self.value, self.clustering = value, clustering
