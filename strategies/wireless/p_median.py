"""Eq. 16 at alpha = 0: a capacitated p-median problem in a_n and b_{u,n}, through PuLP.

Without the gradient term the objective is linear. Before the integer program is built, a search
gives a value to beat and ``bounds.PriceBound`` prices for the devices; every b_{u,n} whose being 1
would already cost more than that value is left out. What remains is small enough to prove U = 100.

Deviation: HiGHS (default) or CBC instead of Gurobi.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from strategies.wireless.association_pulp import SolverName, load_pulp, run_solver
from strategies.wireless.bounds import PriceBound, reduced
from strategies.wireless.head_selection import select_heads
from strategies.wireless.problem import Clustering, ClusteringProblem, FloatArray, objective
from strategies.wireless.solution import Solution, make_solution

SEARCH_SHARE, SEARCH_SECONDS, SEARCH_SWEEPS = 0.2, 3.0, 100
PRICE_STEPS = 300


def p_median(
    problem: ClusteringProblem, *, seconds: float, solver: SolverName = "highs"
) -> Solution:
    """Optimal heads and association at alpha = 0, or the best found in ``seconds``.

    Raises ``ValueError`` for another alpha, ``RuntimeError`` if the solver is not installed.
    """
    started = time.perf_counter()
    if problem.alpha != 0.0:
        raise ValueError(f"alpha = {problem.alpha}: must be 0 for the p-median form")
    share = min(SEARCH_SHARE * seconds, SEARCH_SECONDS)
    rng = np.random.default_rng(0)
    known = select_heads(problem, seconds=share, sweeps=SEARCH_SWEEPS, rng=rng)
    prices = PriceBound(problem, reduced(problem.unit_gradients), problem.smallest_head_count)
    prices.improve(known.value, PRICE_STEPS)
    possible = possible_pairs(problem, prices, known.value)
    position = {int(device): n for n, device in enumerate(problem.candidates)}
    for device, cluster in enumerate(known.clustering.labels):
        possible[position[int(known.clustering.heads[cluster])], device] = True
    found, proved = _integer_program(problem, possible, started + seconds, solver)
    best = known.clustering
    if found is not None and objective(problem, found) < known.value:
        best = found
    return make_solution(
        problem,
        best,
        proved=proved,
        seconds=time.perf_counter() - started,
        lower_bound=prices.value,
    )


def possible_pairs(
    problem: ClusteringProblem, prices: PriceBound, value: float
) -> NDArray[np.bool_]:
    """(N, U) whether device u joining candidate n is compatible with a value of at most ``value``.

    A clustering with u at n costs at least the prices, the cheapest cluster of n with u in it, and
    the cheapest clusters of the other heads (at least K - 1 of them, and all that pay).
    """
    owner, capacity = problem.candidates, problem.capacities
    reduced_cost = prices.near - prices.best_prices
    rows = np.arange(len(owner))
    own = reduced_cost[rows, owner]
    others = reduced_cost.copy()
    others[rows, owner] = np.inf
    gain = np.minimum(np.sort(others, axis=1), 0.0)  # joining is voluntary
    total = np.concatenate([np.zeros((len(owner), 1)), np.cumsum(gain, axis=1)], axis=1)
    base = prices.far + own
    cheapest = base + total[rows, capacity - 1]
    # With u: among the best capacity - 1 already (the maximum), or in place of the last of them.
    forced = base[:, None] + total[rows, np.maximum(capacity - 2, 0)][:, None] + reduced_cost
    forced = np.maximum(forced, cheapest[:, None])
    forced[capacity == 1] = np.inf
    forced[rows, owner] = cheapest
    return np.asarray(
        prices.best_prices.sum() + forced + _other_heads(cheapest, prices.heads)[:, None]
        <= value + 1e-9
    )


def _other_heads(cheapest: FloatArray, heads: int) -> FloatArray:
    """(N,) least cost of the clusters of at least ``heads`` - 1 candidates other than n."""
    rest = np.empty(len(cheapest))
    for n in range(len(cheapest)):
        ordered = np.sort(np.delete(cheapest, n))
        rest[n] = ordered[: heads - 1].sum() + np.minimum(ordered[heads - 1 :], 0.0).sum()
    return rest


def _integer_program(
    problem: ClusteringProblem, possible: NDArray[np.bool_], deadline: float, solver: SolverName
) -> tuple[Clustering | None, bool]:
    """The best clustering among the possible pairs (None if none was found in time)."""
    pulp = load_pulp()
    model = pulp.LpProblem("p_median", pulp.LpMinimize)
    everyone = np.arange(problem.devices)
    scaled = problem.distance_weight * problem.distances_m(problem.candidates, everyone)
    opening = problem.distance_weight * problem.server_distances_m()[problem.candidates]
    open_to = np.flatnonzero(possible[np.arange(len(opening)), problem.candidates])
    is_head = {n: model.add_variable(f"a_{n}", cat="Binary") for n in open_to.tolist()}
    joins = {
        (n, u): model.add_variable(f"b_{n}_{u}", cat="Binary")
        for n in is_head
        for u in np.flatnonzero(possible[n]).tolist()
    }
    cost = [(variable, float(scaled[pair])) for pair, variable in joins.items()]
    cost += [(variable, float(opening[n])) for n, variable in is_head.items()]
    model += pulp.LpAffineExpression(cost)
    for u in everyone.tolist():
        model += pulp.lpSum(joins[n, u] for n in is_head if (n, u) in joins) == 1
    for n, head in is_head.items():
        members = np.flatnonzero(possible[n]).tolist()
        model += pulp.lpSum(joins[n, u] for u in members) <= int(problem.capacities[n]) * head
        model += joins[n, int(problem.candidates[n])] == head
        for u in members:
            model += joins[n, u] <= head
    proved = run_solver(model, deadline, solver)
    chosen = np.zeros(possible.shape)
    for pair, variable in joins.items():
        chosen[pair] = variable.value() or 0.0
    if (chosen.round().sum(axis=0) != 1).any():
        return None, False
    opened = np.flatnonzero(chosen.max(axis=1) > 0.5)
    return Clustering(chosen[opened].argmax(axis=0), problem.candidates[opened]), proved
