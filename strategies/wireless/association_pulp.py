"""Set partitioning through PuLP: exact association and heads for tiny instances, any alpha.

Set partitioning has one binary column for every cluster (a head and its member set), so the
product terms of Eq. 17 become constants; every device is covered once. The number of columns
grows as 2^(U - K): tiny instances only. ``p_median`` has the other integer program.

Deviation: HiGHS (default) or CBC instead of Gurobi. The relative gap is set to zero, because a
solver that stops at its default gap has not proved an optimum, and the value is always recomputed
from the assignment.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from strategies.wireless.problem import (
    Clustering,
    ClusteringProblem,
    FloatArray,
    IntArray,
    objective,
)
from strategies.wireless.solution import Solution, make_solution
from strategies.wireless.starts import greedy_association, spread_heads
from strategies.wireless.subsets import (
    best_head_distance,
    bound_for_head_count,
    costs_for_heads,
    members,
    popcount,
    squared_sums,
    with_best_heads,
)

SolverName = Literal["highs", "cbc"]
MAX_COLUMNS = 100_000


def partition_with_fixed_heads(
    problem: ClusteringProblem, heads: IntArray, *, seconds: float, solver: SolverName = "highs"
) -> Solution:
    """Eq. 17 by set partitioning.

    Raises ``ValueError`` if it would need more than ``MAX_COLUMNS`` columns, ``RuntimeError`` if
    the solver is not installed. ``seconds`` limits the solver and the building of the program.
    """
    started = time.perf_counter()
    heads = np.asarray(heads, dtype=np.int64)
    problem.check_heads(heads)
    free = np.setdiff1d(np.arange(problem.devices), heads)
    _check_columns(len(heads) << len(free) if len(free) < 40 else MAX_COLUMNS + 1)
    costs = np.stack(costs_for_heads(problem, heads, free))
    cluster, mask = np.nonzero(np.isfinite(costs))
    chosen, proved = _solve_partition(
        costs[cluster, mask], mask, len(free), cluster, started + seconds, solver
    )
    labels = np.zeros(problem.devices, dtype=np.int64)
    labels[heads] = np.arange(len(heads))
    for column in chosen:
        labels[free[members(int(mask[column]))]] = cluster[column]
    found = Clustering(labels, heads) if len(chosen) else greedy_association(problem, heads)
    return make_solution(problem, found, proved=proved, seconds=time.perf_counter() - started)


def partition_with_free_heads(
    problem: ClusteringProblem, *, seconds: float, solver: SolverName = "highs"
) -> Solution:
    """Eq. 16 by set partitioning, one program for each number of heads."""
    started = time.perf_counter()
    _check_columns(1 << min(problem.devices, 60))
    squares, counts = squared_sums(problem.unit_gradients), popcount(problem.devices)
    distance = best_head_distance(problem, counts)
    mask = np.flatnonzero(np.isfinite(distance) & (counts > 0))
    best = greedy_association(problem, spread_heads(problem, problem.smallest_head_count))
    all_proved = True
    for heads in range(problem.smallest_head_count, len(problem.candidates) + 1):
        if bound_for_head_count(problem, heads) >= objective(problem, best):
            break
        cost = (distance + problem.cluster_weights(counts, heads) * squares)[mask]
        chosen, proved = _solve_partition(
            cost, mask, problem.devices, heads, started + seconds, solver
        )
        all_proved &= proved
        if len(chosen):
            found = with_best_heads(problem, mask[chosen])
            best = min(best, found, key=lambda clustering: objective(problem, clustering))
    return make_solution(problem, best, proved=all_proved, seconds=time.perf_counter() - started)


def _check_columns(columns: int) -> None:
    if columns > MAX_COLUMNS:
        raise ValueError(
            f"set partitioning would need {columns} columns: must be at most {MAX_COLUMNS}"
        )


def _solve_partition(
    cost: FloatArray,
    mask: IntArray,
    devices: int,
    groups: IntArray | int,
    deadline: float,
    solver: SolverName,
) -> tuple[IntArray, bool]:
    """Choose columns that cover every device once, one of each group (or ``groups`` in all).

    Returns the chosen columns (empty if none were found in time) and whether they are proved best.
    """
    pulp = load_pulp()
    model = pulp.LpProblem("set_partitioning", pulp.LpMinimize)
    use = [model.add_variable(f"x_{i}", cat="Binary") for i in range(len(cost))]
    model += pulp.LpAffineExpression(zip(use, cost.tolist(), strict=True))

    def exactly(columns: IntArray, count: int) -> Any:
        return pulp.LpAffineExpression((use[i], 1) for i in columns.tolist()) == count

    for device in range(devices):
        model += exactly(np.flatnonzero(mask >> device & 1), 1)
    if isinstance(groups, int):
        model += exactly(np.arange(len(use)), groups)
    else:
        for group in np.unique(groups):
            model += exactly(np.flatnonzero(groups == group), 1)
    proved = run_solver(model, deadline, solver)
    chosen = np.flatnonzero(np.array([column.value() or 0.0 for column in use]) > 0.5)
    covered = (mask[chosen][:, None] >> np.arange(devices)[None, :] & 1).sum(axis=0)
    if (covered != 1).any():
        return np.zeros(0, dtype=np.int64), proved
    return chosen, proved


def run_solver(model: Any, deadline: float, solver: SolverName) -> bool:
    """Solve within what is left of the time; True only if the optimum is proved.

    PuLP calls a run that hit its limit "Optimal" too; only ``sol_status`` tells the difference.
    """
    pulp = load_pulp()
    if solver not in ("highs", "cbc"):
        raise ValueError(f'solver = {solver!r}: must be "highs" or "cbc"')
    left = deadline - time.perf_counter()
    if left <= 0:
        return False
    make = pulp.HiGHS if solver == "highs" else pulp.PULP_CBC_CMD
    with warnings.catch_warnings():  # PuLP 4 will want pulp[cbc] and COIN_CMD instead
        warnings.simplefilter("ignore", DeprecationWarning)
        engine = make(msg=False, timeLimit=left, gapRel=0.0, gapAbs=0.0, threads=1)
    if not engine.available():
        raise RuntimeError(
            f'solver {solver!r} is not installed: pip install highspy, or choose solver = "cbc"'
        )
    with _silenced():
        model.solve(engine)
    return bool(model.status == pulp.LpStatusOptimal and model.sol_status == pulp.LpSolutionOptimal)


def load_pulp() -> Any:
    """The module; ``RuntimeError`` with what to install if it is missing."""
    try:
        import pulp
    except ImportError:
        raise RuntimeError("PuLP is not installed: pip install pulp highspy") from None
    return pulp


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Send what native code prints to nowhere: HiGHS prints a banner in spite of ``msg=False``."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
