"""Cluster-head selection (Eq. 19), with the association solved along the way (Eq. 16).

``mode = "paper"`` is Algorithm 1: scan all additions, exchanges and removals of heads, solve the
association for each, keep a change that improves, until a whole pass brings none. Deviations: the
association of a trial is a transport start and descent instead of Gurobi; the utility keeps beta
in front of the head-to-server distances (Eq. 16, not Eq. 18); the first set of heads, which the
paper leaves open, has the smallest feasible size and is spread over the area.

``mode = "fast"`` (default) anneals association and heads together: a short probe of increasing
numbers of heads, then the most promising ones (``annealing`` up to a few hundred devices,
``blocks`` above).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

import numpy as np

from strategies.wireless.annealing import COLD, Budget, Clock, anneal_population
from strategies.wireless.association import MEMBERS, POPULATION_LIMIT, associate_many
from strategies.wireless.blocks import anneal_blocks
from strategies.wireless.heat_bath import prepare
from strategies.wireless.problem import Clustering, ClusteringProblem, IntArray, objective
from strategies.wireless.solution import Solution, make_solution
from strategies.wireless.starts import greedy_association, random_heads, spread_heads
from strategies.wireless.subsets import bound_for_head_count

PROBE_SHARE, PROBE_SWEEPS, PROBE_HOT = 0.04, 8, 2 * COLD
PROBES_SHARE = 0.3
CLIMB_SHARE, CLIMB_SWEEPS, CLIMBS_SHARE, NEAR_TIE = 0.06, 40, 0.5, 0.01
KEPT_COUNTS = 5
BATCH = 64


def select_heads(
    problem: ClusteringProblem,
    *,
    mode: Literal["fast", "paper"] = "fast",
    seconds: float | None = None,
    sweeps: int | None = None,
    rng: np.random.Generator | None = None,
    clock: Clock = time.perf_counter,
) -> Solution:
    """Heads and association for Eq. 16, within ``seconds`` or ``sweeps``.

    With ``sweeps`` alone the result depends on the generator only; in mode "paper" sweeps are
    passes of Algorithm 1. ``clock`` measures the seconds. Raises ``ValueError`` for an unknown
    mode or an empty budget.
    """
    prepare()
    started = time.perf_counter()
    rng = rng or np.random.default_rng(0)
    budget = Budget(seconds, 200 if seconds is None and sweeps is None else sweeps, clock)
    if mode == "paper":
        found = _algorithm_1(problem, budget, rng)
    elif mode == "fast":
        found = _anneal(problem, budget, rng)
    else:
        raise ValueError(f'mode = {mode!r}: must be "fast" or "paper"')
    elapsed = time.perf_counter() - started
    return make_solution(problem, found, proved=False, seconds=elapsed)


def _anneal(problem: ClusteringProblem, budget: Budget, rng: np.random.Generator) -> Clustering:
    probes = _probe(problem, budget, rng)
    best = min(probes, key=lambda found: objective(problem, found))
    if problem.devices > POPULATION_LIMIT:
        best = _climb(problem, probes, budget, rng)
        found = anneal_blocks(problem, best, budget, rng)
    else:
        ranked = sorted(probes, key=lambda found: objective(problem, found))[:KEPT_COUNTS]
        counts = [len(found.heads) for found in ranked]
        starts = [
            greedy_association(problem, random_heads(problem, counts[i % len(counts)], rng))
            for i in range(MEMBERS)
        ]
        found = anneal_population(problem, starts, budget, rng)
    return min(best, found, key=lambda clustering: objective(problem, clustering))


def _probe(
    problem: ClusteringProblem, budget: Budget, rng: np.random.Generator
) -> list[Clustering]:
    """One quickly cooled clustering for each of a widening series of numbers of heads."""
    heads = problem.smallest_head_count
    lowest, worse, step = np.inf, 0, max(1.0, 0.04 * heads)
    seed = int(rng.integers(2**63))
    probes = []
    while heads <= len(problem.candidates) and bound_for_head_count(problem, heads) < lowest:
        start = greedy_association(problem, spread_heads(problem, heads))
        probes.append(_quick(problem, start, budget.part(PROBE_SHARE, PROBE_SWEEPS), seed))
        value = objective(problem, probes[-1])
        worse = worse + 1 if value > lowest else 0
        lowest = min(lowest, value)
        if worse >= 4 or budget.progress() > PROBES_SHARE:
            break
        heads += int(step)
        step *= 1.3
    return probes


def _climb(
    problem: ClusteringProblem,
    probes: list[Clustering],
    budget: Budget,
    rng: np.random.Generator,
) -> Clustering:
    """The best probe; while the next larger one is nearly as good, longer probes decide.

    More heads gain from a longer search, so that a short probe alone would choose too few.
    """
    values = [objective(problem, probe) for probe in probes]
    place = int(np.argmin(values))
    seed = int(rng.integers(2**63))
    longer: dict[int, Clustering] = {}
    while place + 1 < len(probes) and values[place + 1] < (1 + NEAR_TIE) * min(values):
        for option in (place, place + 1):
            if option not in longer:
                part = budget.part(CLIMB_SHARE, CLIMB_SWEEPS)
                longer[option] = _quick(problem, probes[option], part, seed)
        if objective(problem, longer[place + 1]) >= objective(problem, longer[place]):
            break
        place += 1
        if budget.progress() > CLIMBS_SHARE:
            break
    return longer.get(place, probes[place])


def _quick(problem: ClusteringProblem, start: Clustering, budget: Budget, seed: int) -> Clustering:
    rng = np.random.default_rng(seed)
    if problem.devices > POPULATION_LIMIT:
        return anneal_blocks(problem, start, budget, rng, hot=PROBE_HOT)
    return anneal_population(problem, [start], budget, rng, hot=PROBE_HOT)


def _algorithm_1(
    problem: ClusteringProblem, budget: Budget, rng: np.random.Generator
) -> Clustering:
    heads = spread_heads(problem, problem.smallest_head_count)
    best = associate_many(problem, [heads], rng)[0]
    improved = True
    while improved and budget.progress() < 1:
        improved = False
        for operation in ("add", "exchange", "remove"):
            best, changed = _scan(problem, best, operation, budget, rng)
            improved |= changed
        budget.done += 1
    return best


def _scan(
    problem: ClusteringProblem,
    best: Clustering,
    operation: str,
    budget: Budget,
    rng: np.random.Generator,
) -> tuple[Clustering, bool]:
    """Try every change of one kind in order; a change that improves is kept and the scan goes on.

    Trials are associated ``BATCH`` at a time; those after an improvement are tried again on it.
    """
    changed, value, position = False, objective(problem, best), 0
    while budget.progress() < 1:
        trials = list(_changes(problem, best.heads, operation))[position : position + BATCH]
        if not trials:
            break
        able = [place for place, heads in enumerate(trials) if _feasible(problem, heads)]
        found = associate_many(problem, [trials[place] for place in able], rng) if able else []
        position += BATCH
        for place, trial in zip(able, found, strict=True):
            if objective(problem, trial) < value - 1e-12:
                best, value, changed = trial, objective(problem, trial), True
                position += place + 1 - BATCH
                break
    return best, changed


def _changes(problem: ClusteringProblem, heads: IntArray, operation: str) -> Iterator[IntArray]:
    """The head sets one addition, exchange or removal away."""
    others = np.setdiff1d(problem.candidates, heads)
    if operation == "add":
        yield from (np.append(heads, other) for other in others)
    elif operation == "exchange":
        for other in others:
            for slot in range(len(heads)):
                yield np.append(np.delete(heads, slot), other)
    elif len(heads) > 1:
        yield from (np.delete(heads, slot) for slot in range(len(heads)))


def _feasible(problem: ClusteringProblem, heads: IntArray) -> bool:
    return int(problem.capacity_of_device()[heads].sum()) >= problem.devices
