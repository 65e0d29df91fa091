"""Device association for a fixed set of heads (Eq. 17): one call for the exact and fast methods."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from strategies.wireless.annealing import Budget, Clock, anneal_population, full_data, stack_starts
from strategies.wireless.association_exact import associate_exactly
from strategies.wireless.association_pulp import SolverName, partition_with_fixed_heads
from strategies.wireless.blocks import anneal_blocks
from strategies.wireless.heat_bath import IMPROVEMENT, HeatBath, NoisePool, prepare
from strategies.wireless.problem import Clustering, ClusteringProblem, IntArray
from strategies.wireless.solution import Solution, make_solution
from strategies.wireless.starts import greedy_association, transport_association

POPULATION_LIMIT = 300
TRANSPORT_LIMIT = 2000
MEMBERS = 32
DP_LIMIT = 14
DESCENT_SWEEPS = 6


def associate(
    problem: ClusteringProblem,
    heads: IntArray,
    *,
    method: Literal["fast", "exact", "pulp"] = "fast",
    seconds: float | None = None,
    sweeps: int | None = None,
    rng: np.random.Generator | None = None,
    solver: SolverName = "highs",
    clock: Clock = time.perf_counter,
) -> Solution:
    """Associate every device with one of ``heads``.

    ``method``: "exact" (subset DP), "pulp" (set partitioning, needs ``seconds``) or "fast"
    (transport start, then annealing of moves and swaps for ``seconds`` or ``sweeps``).

    Raises ``InfeasibleCapacityError`` before any solver runs; ``ValueError`` if the instance is
    too large for the exact method.
    """
    started = time.perf_counter()
    heads = np.asarray(heads, dtype=np.int64)
    problem.check_heads(heads)
    if method == "pulp":
        limit = 60.0 if seconds is None else seconds
        return partition_with_fixed_heads(problem, heads, seconds=limit, solver=solver)
    if method == "exact":
        found, proved = associate_exactly(problem, heads), True
    elif method == "fast":
        prepare()
        started = time.perf_counter()
        budget = Budget(seconds, 200 if seconds is None and sweeps is None else sweeps, clock)
        found, proved = _search(problem, heads, budget, rng or np.random.default_rng(0)), False
    else:
        raise ValueError(f'method = {method!r}: must be "fast", "exact" or "pulp"')
    elapsed = time.perf_counter() - started
    return make_solution(problem, found, proved=proved, seconds=elapsed)


def start_for(problem: ClusteringProblem, heads: IntArray) -> Clustering:
    """The association of least distance, or a greedy one for many devices."""
    if problem.devices <= TRANSPORT_LIMIT:
        return transport_association(problem, heads)
    return greedy_association(problem, heads)


def _search(
    problem: ClusteringProblem, heads: IntArray, budget: Budget, rng: np.random.Generator
) -> Clustering:
    start = start_for(problem, heads)
    if problem.devices > POPULATION_LIMIT:
        return anneal_blocks(problem, start, budget, rng, free_heads=False)
    return anneal_population(problem, [start] * MEMBERS, budget, rng, free_heads=False)


def associate_many(
    problem: ClusteringProblem, head_sets: Sequence[IntArray], rng: np.random.Generator
) -> list[Clustering]:
    """Transport start and descent (best swap or move of a device, until none helps) for each set.

    The sets are handled side by side; O(len(head_sets) K U + U^2) memory.
    """
    starts = [start_for(problem, heads) for heads in head_sets]
    labels, heads, tables = stack_starts(problem, starts)
    bath = HeatBath(full_data(problem), labels, heads, tables, NoisePool(rng))
    for _ in range(DESCENT_SWEEPS):
        before = bath.value.copy()
        bath.sweep(0.0)
        if (bath.value > before - IMPROVEMENT).all():
            break
    return [
        replace(start, labels=row.copy()) for start, row in zip(starts, bath.labels, strict=True)
    ]
