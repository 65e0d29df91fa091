"""One call that plans clusters and heads, and says what is proved."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal

import numpy as np

from strategies.wireless import bounds, heat_bath
from strategies.wireless.association import DP_LIMIT, associate
from strategies.wireless.association_exact import solve_exactly
from strategies.wireless.association_pulp import SolverName, partition_with_free_heads
from strategies.wireless.head_selection import select_heads
from strategies.wireless.p_median import p_median
from strategies.wireless.problem import ClusteringProblem, IntArray
from strategies.wireless.solution import Solution, make_solution

Method = Literal["auto", "search", "paper", "pulp"]
BOUND_SHARE = 0.25


def solve(
    problem: ClusteringProblem,
    fixed_heads: IntArray | None = None,
    *,
    method: Method = "auto",
    seconds: float | None = 3.0,
    sweeps: int | None = None,
    seed: int = 0,
    solver: SolverName = "highs",
    certify: bool = True,
) -> Solution:
    """Minimise Eq. 16, or Eq. 17 if ``fixed_heads`` are given.

    Parameters
    ----------
    method : "auto" proves the optimum of tiny instances (U - K <= 14 with fixed heads, U <= 14
        otherwise) and searches the others; "search" always searches; "paper" is Algorithm 1;
        "pulp" is an integer program (p-median at alpha = 0, set partitioning of tiny instances).
    seconds : wall-clock budget, the certificate included; None: ``sweeps`` alone decides, and the
        clustering depends on ``seed`` only.
    certify : spend a quarter of ``seconds`` on a lower bound (with ``seconds = None``: none).

    Raises ``ValueError`` for bad input and ``InfeasibleCapacityError`` before any solver runs.
    """
    started = time.perf_counter()
    if method not in ("auto", "search", "paper", "pulp"):
        raise ValueError(f"method = {method!r}: must be auto, search, paper or pulp")
    heads = None if fixed_heads is None or len(fixed_heads) == 0 else np.asarray(fixed_heads)
    if heads is not None:
        problem.check_heads(heads)
    if method == "pulp":
        return _integer_program(problem, heads, 60.0 if seconds is None else seconds, solver)
    if method == "auto":
        if heads is not None and problem.devices - len(heads) <= DP_LIMIT:
            return associate(problem, heads, method="exact")
        if heads is None and problem.devices <= DP_LIMIT:
            found = solve_exactly(problem)
            elapsed = time.perf_counter() - started
            return make_solution(problem, found, proved=True, seconds=elapsed)
    heat_bath.prepare()
    if certify:
        bounds.prepare()
    started = time.perf_counter()
    rng = np.random.default_rng(seed)
    budget = seconds
    if seconds is not None and certify:
        budget = seconds * (1 - BOUND_SHARE)
    if heads is not None:
        solution = associate(problem, heads, seconds=budget, sweeps=sweeps, rng=rng)
    else:
        mode: Literal["fast", "paper"] = "paper" if method == "paper" else "fast"
        solution = select_heads(problem, mode=mode, seconds=budget, sweeps=sweeps, rng=rng)
    bound = 0.0
    if seconds is not None and certify:
        left = max(0.0, seconds - (time.perf_counter() - started))
        bound = min(bounds.lower_bound(problem, solution.value, left, heads), solution.value)
    elapsed = time.perf_counter() - started
    return replace(solution, lower_bound=bound, seconds=elapsed)


def _integer_program(
    problem: ClusteringProblem, heads: IntArray | None, seconds: float, solver: SolverName
) -> Solution:
    if heads is not None:
        return associate(problem, heads, method="pulp", seconds=seconds, solver=solver)
    if problem.alpha == 0.0:
        return p_median(problem, seconds=seconds, solver=solver)
    return partition_with_free_heads(problem, seconds=seconds, solver=solver)
