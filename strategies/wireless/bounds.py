"""Lower bounds on Eq. 16: a certificate for solutions that are not proved optimal.

For a fixed number of heads K the constraint that every device is covered once is priced out with
multipliers pi. What remains is one problem a head n and cluster size j: the cheapest cluster of
that size. Its quadratic term is replaced by a tangent, w_j |s|^2 >= w_j (2 j a.s - j^2 |a|^2) for
any vector a, so that the cheapest cluster is found by sorting:

    phi(n, j) = beta' d_n,server - w_j j^2 |a_nj|^2
                + sum of the j smallest (n first) of beta' d_u,n + 2 w_j j a_nj . g_u - pi_u
    bound(K)  = sum_u pi_u + the K smallest of min_j phi(n, j)

Every pi and a give a valid bound; pi follows the supergradient (Polyak steps), a_nj moves to the
mean gradient of the cluster just found, which makes phi the value of the convex relaxation.
Eq. 16 is bounded by the smallest bound(K). The paper has no certificate.

With clusters weighted by size and alpha near 1 a convex cluster is no better than the mean of all
devices; there ``semidefinite`` adds to it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np
from scipy.spatial import KDTree

from strategies.wireless.annealing import Clock
from strategies.wireless.problem import ClusteringProblem, FloatArray, IntArray, RealArray
from strategies.wireless.semidefinite import ProjectionBound
from strategies.wireless.subsets import bound_for_head_count

Parts = Literal["joint", "distance", "gradients"]
PATIENCE = 10
REDUCE_LIMIT = 2000
TANGENT_SCALES = (0.25, 0.5, 0.7, 0.85, 1.0)
DP_LIMIT = 10_000_000
MORE_STEPS = 20
JOINT_LIMIT = 3_000_000
DISTANCE_LIMIT = 4_000_000
SPECTRAL_FROM, SPECTRAL_LIMIT, SPECTRAL_SHARE = 0.9, 300, 0.8


def lower_bound(
    problem: ClusteringProblem,
    upper: float,
    seconds: float,
    fixed_heads: IntArray | None = None,
    clock: Clock = time.perf_counter,
) -> float:
    """A value that no feasible clustering beats, from about ``seconds`` of work; ``upper`` is the
    value of a known clustering. Never above the optimum; 0 at worst. ``fixed_heads``: bounds Eq.
    17 (with the heads' own distances) instead.

    Every number of heads K starts from ``quick_bounds``; then always the K with the lowest bound
    is improved. If the objective depends on K only through the clusters, one bound for "K or
    more" suffices. Many devices (U * N * capacity beyond ``JOINT_LIMIT``) have the two terms
    bounded apart; beyond U * N = ``DISTANCE_LIMIT`` the distance term keeps only the heads'
    distances to the server.
    """
    prepare()
    deadline = clock() + seconds
    counts = list(range(problem.smallest_head_count, len(problem.candidates) + 1))
    if fixed_heads is not None:
        capacities = problem.capacity_of_device()[fixed_heads]
        problem = replace(problem, candidates=fixed_heads, capacities=capacities)
        counts = [len(fixed_heads)]
    rows = reduced(problem.unit_gradients)
    floors = quick_bounds(problem, rows, counts, upper)
    apart = np.zeros(0, dtype=np.int64) if fixed_heads is None else fixed_heads
    until = clock() + SPECTRAL_SHARE * (deadline - clock())
    spectral = _spectral_bound(problem, rows, counts, apart, upper, clock, until)
    if fixed_heads is None and not depends_on_head_count(problem):
        counts, floors = counts[:1], [min(floors)]
    bounds: dict[int, _BoundForHeads] = {}
    values = dict(zip(counts, floors, strict=True))
    values = {heads: max(value, spectral) for heads, value in values.items()}
    while clock() < deadline:
        weakest = min(values, key=lambda heads: values[heads])
        if values[weakest] >= upper:
            break
        if weakest not in bounds:
            before = bounds[min(bounds, key=lambda k: abs(k - weakest))] if bounds else None
            bounds[weakest] = _BoundForHeads(problem, rows, weakest, before)
        bound = bounds[weakest]
        bound.improve(upper, MORE_STEPS)
        values[weakest] = max(values[weakest], bound.value)
        if bound.exhausted:
            break
    return float(max(0.0, min(upper, *values.values())))


def _spectral_bound(
    problem: ClusteringProblem,
    rows: RealArray,
    counts: list[int],
    apart: IntArray,
    upper: float,
    clock: Clock,
    deadline: float,
) -> float:
    """The semidefinite bound on c(C) and a cheap one on d(C), for all ``counts``; 0 where the
    distance decides too (``SPECTRAL_FROM``), for the other weighting and for many devices."""
    if problem.weighting != "size" or problem.alpha < SPECTRAL_FROM:
        return 0.0
    if not 1 < problem.devices <= SPECTRAL_LIMIT or clock() >= deadline:
        return 0.0
    distance = float(distance_floors(problem, counts).min())
    bound = ProjectionBound(rows @ rows.T, counts[0], int(problem.capacities.max()), apart)
    target = (upper - distance) / problem.alpha
    return distance + problem.alpha * bound.improve(target, clock, deadline)


def distance_floors(problem: ClusteringProblem, counts: list[int]) -> FloatArray:
    """The heads' smallest distances to the server and the other devices' to their nearest
    candidate, weighted, for each number of heads in ``counts``."""
    devices, ks = problem.devices, np.array(counts)
    to_server = np.cumsum(np.sort(problem.server_distances_m()[problem.candidates]))
    tree = KDTree(problem.positions_m[problem.candidates])
    nearest = np.reshape(tree.query(problem.positions_m, k=min(2, tree.n))[0], (devices, -1))
    reach = nearest[:, -1].copy()  # a candidate's nearest is itself
    others = np.setdiff1d(np.arange(devices), problem.candidates)
    reach[others] = nearest[others, 0]
    reach = np.concatenate([[0.0], np.cumsum(np.sort(reach))])
    return np.asarray(problem.distance_weight * (to_server[ks - 1] + reach[devices - ks]))


def quick_bounds(
    problem: ClusteringProblem, rows: RealArray, counts: list[int], upper: float
) -> list[float]:
    """A cheap bound for each number of heads in ``counts``.

    Distances: ``distance_floors``.
    Gradients: one tangent a = mean gradient for all clusters; |mean_k|^2 >= 2 a.mean_k - |a|^2 is
    least when devices with larger a.g are in larger clusters, so that sizes follow from a dynamic
    program over the devices in that order, for all K at once (skipped above ``DP_LIMIT`` steps).
    """
    devices, most = problem.devices, int(problem.capacities.max())
    ks = np.array(counts)
    values = distance_floors(problem, counts)
    zeros = int((rows == 0).all(axis=1).sum())
    curve = np.zeros(max(counts) + 1)
    if problem.weighting == "paper":  # at least 2 K - U clusters are single devices
        every = np.arange(1, len(curve))
        curve[1:] = np.maximum(0.0, 2.0 - (devices + zeros) / every)
    undecided = ks[values + problem.alpha * curve[ks] < upper]
    top = int(undecided.max(initial=0))
    steps = devices * top * most
    if problem.alpha > 0 and top > 0 and steps <= DP_LIMIT:
        for scale in TANGENT_SCALES if steps <= DP_LIMIT / 10 else (1.0,):
            found = _tangent_curve(problem, rows, scale, top)
            np.maximum(curve[: top + 1], found, out=curve[: top + 1])
    return [float(value) for value in values + problem.alpha * curve[ks]]


def _tangent_curve(
    problem: ClusteringProblem, rows: RealArray, scale: float, top: int
) -> FloatArray:
    """(top + 1,) bounds on c(C) for each number of heads; tangent at scale * mean gradient."""
    devices, paper = problem.devices, problem.weighting == "paper"
    tangent = scale * rows.mean(axis=0)
    square = float(tangent @ tangent)
    along = np.concatenate([[0.0], np.cumsum(np.sort(rows @ tangent)[::-1])])
    least, curve = np.full(devices + 1, np.inf), np.full(top + 1, -np.inf)
    least[0] = 0.0
    for heads in range(1, top + 1):
        longer = np.full(devices + 1, np.inf)
        for size in range(1, int(problem.capacities.max()) + 1):
            cost = 2 * (along[size:] - along[:-size]) / size - square
            step = least[:-size] + (cost if paper else size * cost)
            np.minimum(longer[size:], step, out=longer[size:])
        least = longer
        curve[heads] = least[-1] / (heads if paper else devices)
    return curve


def depends_on_head_count(problem: ClusteringProblem) -> bool:
    """Whether Eq. 16 divides by the number of heads."""
    return problem.weighting == "paper" and problem.alpha > 0


class _BoundForHeads:
    """The bound for one number of heads, whole or as the sum of two."""

    def __init__(
        self,
        problem: ClusteringProblem,
        rows: RealArray,
        heads: int,
        before: _BoundForHeads | None,
    ) -> None:
        pairs = problem.devices * len(problem.candidates)
        joint = pairs * int(problem.capacities.max()) <= JOINT_LIMIT
        parts: list[Parts] = ["joint"] if joint else []
        if not joint:
            parts += ["distance"] if problem.alpha < 1 and pairs <= DISTANCE_LIMIT else []
            parts += ["gradients"] if problem.alpha > 0 else []
        warm: list[PriceBound] | list[None] = before.parts if before else [None] * len(parts)
        self.parts: list[PriceBound] = [
            PriceBound(problem, rows, heads, start, part)
            for part, start in zip(parts, warm, strict=True)
        ]
        self.floor = bound_for_head_count(problem, heads)
        self.loose = 0.0
        if not joint and "distance" not in parts:
            to_server = np.sort(problem.server_distances_m()[problem.candidates])[:heads]
            self.loose = float(problem.distance_weight * to_server.sum())
        self.exhausted = False

    @property
    def value(self) -> float:
        total = self.loose + sum(max(part.value, 0.0) for part in self.parts)
        return max(total, self.floor)

    def improve(self, upper: float, steps: int) -> None:
        before = self.value
        for part in self.parts:
            others = self.value - max(part.value, 0.0)
            part.improve(max(upper - others, 1e-12), steps)
        self.exhausted = self.value <= before and all(part.pace < 1e-3 for part in self.parts)


class PriceBound:
    """The bound for one K; ``improve`` raises it step by step.

    ``parts`` selects what is bounded: "joint" the objective, "distance" its first term,
    "gradients" its second term (without heads: any K clusters).
    """

    def __init__(
        self,
        problem: ClusteringProblem,
        rows: RealArray,
        heads: int,
        warm: PriceBound | None = None,
        parts: Parts = "joint",
    ) -> None:
        # It imports Numba, which nodes do without.
        from strategies.wireless import cheapest_cluster

        self._loops = cheapest_cluster
        devices = problem.devices
        self.rows, self.heads, self.headless = rows.view(), heads, parts == "gradients"
        self.rows.flags.writeable = False  # as many gradients are: one kind to compile for
        most = min(int(problem.capacities.max()), devices - heads + 1)
        self.sizes = np.arange(1, most + 1)
        self.weight = problem.cluster_weights(self.sizes, heads)
        if parts == "distance":
            self.weight = np.zeros(most)
        if self.headless:
            self.owner = np.full(1, -1)
            self.near, self.far = np.zeros((1, devices)), np.zeros(1)
            self.allowed = np.ones((1, most), dtype=bool)
        else:
            self.owner = problem.candidates.copy()  # a read-only array would be compiled for anew
            near = problem.distances_m(self.owner, np.arange(devices))
            self.near = problem.distance_weight * near
            self.far = problem.distance_weight * problem.server_distances_m()[self.owner]
            self.allowed = self.sizes[None, :] <= problem.capacities[:, None]
        self.tangents = np.tile(rows.mean(axis=0), (len(self.near), most, 1))
        self.curved = bool(self.weight.any())
        # One array for all steps: a fresh one would cost as much as what is done with it.
        self._linear = np.empty((len(self.near), most if self.curved else 1, devices))
        self.or_more = not depends_on_head_count(problem)
        if warm is not None:
            self.prices = warm.best_prices.copy()
        else:  # the tangent at the overall mean, for clusters of average size
            size = devices / heads
            scale, mean = size * np.interp(size, self.sizes, self.weight), rows.mean(axis=0)
            self.prices = scale * (2 * (rows @ mean) - mean @ mean)
        self.value = -np.inf
        self.best_prices: FloatArray = self.prices
        self.pace, self.stale, self.steps = 1.0, 0, 0

    def evaluate(self, smoothing: float) -> tuple[float, FloatArray]:
        """The bound at the present prices and tangents, and its supergradient in the prices."""
        linear = self._linear
        if self.curved:
            np.matmul(self.tangents, self.rows.T, out=linear)
            linear *= (2 * self.weight * self.sizes)[:, None]
            linear += (self.near - self.prices)[:, None, :]
        else:
            np.subtract(self.near, self.prices, out=linear[:, 0])
        constant = np.where(self.allowed, self.far[:, None], np.inf)
        if self.curved:
            squares = np.einsum("njp,njp->nj", self.tangents, self.tangents)
            constant -= self.weight * self.sizes**2 * squares
        per_head, size, members = self._loops.cheapest(linear, self.owner, constant)
        if self.headless:
            chosen = np.zeros(self.heads, dtype=np.int64)
        else:
            chosen = per_head.argpartition(self.heads - 1)[: self.heads]
            if self.or_more:
                chosen = np.union1d(chosen, np.flatnonzero(per_head < 0))
        value = float(self.prices.sum() + per_head[chosen].sum())
        taken = np.arange(members.shape[1]) < size[:, None]
        cover = np.bincount(members[chosen][taken[chosen]], minlength=len(self.prices))
        if smoothing > 0 and self.curved:  # only the sizes that decide; the others follow in turn
            self._loops.move_tangents(self.tangents, self.rows, size, members, smoothing)
        return value, np.asarray(1.0 - cover, dtype=float)

    def improve(self, target: float, steps: int) -> float:
        """Up to ``steps`` steps towards ``target``; returns the best bound found."""
        for _ in range(steps):
            if self.value >= target:
                break
            value, gradient = self.evaluate(smoothing=1.0 / (2 + self.steps / 4))
            self.steps += 1
            if value > self.value + 1e-9:
                self.value, self.best_prices, self.stale = value, self.prices.copy(), 0
            else:
                self.stale += 1
                if self.stale == PATIENCE:
                    self.pace, self.stale = self.pace / 2, 0
                    self.prices = self.best_prices.copy()
                    continue
            norm = float(gradient @ gradient)
            if norm == 0:
                break
            self.prices = self.prices + self.pace * (target - value) / norm * gradient
        return self.value


def reduced(unit_gradients: RealArray) -> RealArray:
    """(U, min(U, p)) rows with the same inner products."""
    if len(unit_gradients) > REDUCE_LIMIT:  # keep float32: a copy could be large
        return unit_gradients
    rows = np.array(unit_gradients, dtype=float, order="C")
    if rows.shape[1] <= len(rows):
        return rows
    values, vectors = np.linalg.eigh(rows @ rows.T)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


@cache
def prepare() -> None:
    """Compile the loops, or load them from disk, before a bound's time begins."""
    from strategies.wireless import cheapest_cluster

    head, costs = np.zeros(1, dtype=np.int64), np.zeros((1, 2, 2))
    _, size, members = cheapest_cluster.cheapest(costs, head, costs[0, :1])
    for rows in (np.eye(2), np.eye(2, dtype=np.float32)):
        rows.flags.writeable = False
        tangents = np.zeros((1, 2, 2), dtype=rows.dtype)
        cheapest_cluster.move_tangents(tangents, rows, size, members, 0.5)
