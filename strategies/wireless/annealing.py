"""Association and heads by annealing a population of clusterings (Eq. 16 and 17; small and medium U).

A heat-bath step takes one device of every clustering at once, computes the exact change of the objective
for swapping it with every other device and for moving it to every other cluster, and draws one of these (or
"stay") with probability proportional to exp(-change / temperature). All changes come from look-ups: with
s_k the sum of unit gradients of cluster k, n_k its size and w(n) the weight of |s|^2 in Eq. 16,

    cost[k, u] = 2 w(n_k) s_k . g_u + beta' d(u, h_k)
    swap of u in a with v in c:  cost[a, v] - cost[a, u] + cost[c, u] - cost[c, v]
                                 + (w(n_a) + w(n_c)) |g_u - g_v|^2

so a neighbourhood is one array expression and an applied step changes two rows. Once a sweep (one step a
device) the heads are drawn anew among the candidates of their own cluster, by the same rule.

Deviation: the paper solves Eq. 17 with Gurobi, which proves optima for about 20 devices only.
Memory: O(B K U + U^2); for many devices use ``neighbour_search``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .problem import Clustering, ClusteringProblem, FloatArray, IntArray, objective

FORBIDDEN = 1e9
NOISE_POOL = 1 << 18


class Population:
    """B clusterings of one problem, annealed side by side; clusterings may differ in their number of heads.

    Parameters
    ----------
    problem : the instance.
    starts : feasible clusterings, one per member.
    free_heads : False keeps the heads of the starts (Eq. 17).
    rng : source of all randomness.
    """

    def __init__(
        self,
        problem: ClusteringProblem,
        starts: Sequence[Clustering],
        *,
        free_heads: bool,
        rng: np.random.Generator,
    ) -> None:
        self.problem, self.rng, self.free_heads = problem, rng, free_heads
        self.size, self.devices = len(starts), problem.devices
        self.width = max(len(start.heads) for start in starts)
        gradients = np.asarray(problem.unit_gradients, dtype=float)
        self.gram = gradients @ gradients.T
        norms = np.diag(self.gram)
        self.norms = np.ascontiguousarray(norms)
        self.gap = norms[:, None] + norms[None, :] - 2 * self.gram  # |g_u - g_v|^2
        everyone = np.arange(self.devices)
        self.candidates = problem.candidates
        self.distance = problem.distances_m(self.candidates, everyone)  # (N, U)
        self.scaled = self.distance * problem.distance_weight
        self.server = problem.server_distances_m()[self.candidates]
        self.member_row = np.arange(self.size)
        self.cluster_base = self.member_row[:, None] * self.width
        self.device_base = self.member_row[:, None] * self.devices
        position = np.full(self.devices, -1)
        position[self.candidates] = np.arange(len(self.candidates))
        self.labels = np.stack([start.labels for start in starts])
        self.head_count = np.array([len(start.heads) for start in starts])
        self.heads = np.zeros((self.size, self.width), dtype=np.int64)  # indices into candidates
        for row, start in enumerate(starts):
            self.heads[row, : len(start.heads)] = position[start.heads]
        self.live = np.arange(self.width)[None, :] < self.head_count[:, None]
        self.weight_table = np.stack(
            [problem.cluster_weights(np.arange(self.devices + 2), k) for k in self.head_count]
        )
        pool = rng.random(NOISE_POOL)
        self.noise_pool = -np.log(-np.log(np.maximum(pool, 1e-300)))
        self.rebuild()
        self.best_value = np.inf
        self.best = starts[0]
        self.record_best()

    def rebuild(self) -> None:
        """Recompute all sums from the labels, which also removes rounding drift."""
        onehot = np.zeros((self.size, self.width, self.devices))
        flat = self.labels + self.cluster_base
        onehot.reshape(-1, self.devices)[flat.ravel(), np.tile(np.arange(self.devices), self.size)] = 1.0
        self.onehot = onehot
        self.counts = onehot.sum(axis=2).astype(np.int64)
        self.products = (onehot.reshape(-1, self.devices) @ self.gram).reshape(onehot.shape)
        self.squares = (self.products * onehot).sum(axis=2)
        self.refresh_costs()

    def refresh_costs(self) -> None:
        """Recompute everything that depends on the heads."""
        capacities = self.problem.capacities
        self.capacity = np.where(self.live, capacities[self.heads], 0)
        rows = self.member_row[:, None]
        self.weight = self.weight_table[rows, self.counts]
        self.cost = 2 * self.weight[:, :, None] * self.products + self.scaled[self.heads]
        self.locked = np.zeros((self.size, self.devices), dtype=bool)
        members, clusters = np.nonzero(self.live)
        self.locked[members, self.candidates[self.heads[members, clusters]]] = True
        flat = self.labels + self.cluster_base
        self.own_cost = self.cost.reshape(-1, self.devices)[flat, np.arange(self.devices)]
        self.own_cost[self.locked] = -FORBIDDEN
        self.own_weight = self.weight.ravel()[flat]
        distance = np.where(self.locked, 0.0, self.scaled_own())
        to_server = (self.server[self.heads] * self.live).sum(axis=1) * self.problem.distance_weight
        self.value = distance.sum(axis=1) + to_server + (self.weight * self.squares).sum(axis=1)

    def scaled_own(self) -> FloatArray:
        """(B, U) weighted distance of each device to its head."""
        own_heads = np.take_along_axis(self.heads, self.labels, axis=1)
        return np.asarray(self.scaled[own_heads, np.arange(self.devices)])

    def changes(self, devices: IntArray) -> FloatArray:
        """(B, U + K) exact change of the objective for swapping ``devices[b]`` of member b with each
        device, and for moving it to each cluster; at least ``FORBIDDEN`` / 2 where not allowed."""
        rows, size, width = self.member_row, self.size, self.width
        own = self.labels[rows, devices]
        own_flat = own + self.cluster_base[:, 0]
        flat = self.labels + self.cluster_base
        column = self.cost[rows, :, devices]
        own_rows = self.cost.reshape(-1, self.devices)[own_flat]
        own_weight = self.weight.ravel()[own_flat]
        out = np.empty((size, self.devices + width))
        swap = out[:, : self.devices]
        np.add(self.own_weight, own_weight[:, None], out=swap)
        swap *= self.gap[devices]
        swap += own_rows
        swap -= self.own_cost
        swap += column.ravel().take(flat)
        swap -= column[rows, own][:, None]
        swap[self.labels == own[:, None]] = FORBIDDEN

        product = self.products[rows, :, devices]
        squares, counts, weight = self.squares, self.counts, self.weight
        norms = self.norms[devices]
        grown = self.weight_table[rows[:, None], counts + 1]
        join = grown * (squares + 2 * product + norms[:, None]) - weight * squares
        join += self.scaled[self.heads, devices[:, None]]
        join[counts >= self.capacity] = FORBIDDEN
        left = self.weight_table[rows, counts[rows, own] - 1]
        remaining = squares[rows, own] - 2 * product[rows, own] + norms
        leave = left * remaining - own_weight * squares[rows, own]
        leave -= self.scaled[self.heads[rows, own], devices]
        join += leave[:, None]
        join[rows, own] = FORBIDDEN
        out[:, self.devices :] = join
        out[self.locked[rows, devices]] = FORBIDDEN
        return out

    def step(self, devices: IntArray, temperature: float) -> None:
        """One heat-bath step of every member; temperature 0 takes the best improvement."""
        change = self.changes(devices)
        if temperature > 0:
            start = int(self.rng.integers(NOISE_POOL - change.size))
            noise = self.noise_pool[start : start + change.size].reshape(change.shape)
            key = change - temperature * noise
            stay = -temperature * self.noise_pool[start - self.size : start] if start >= self.size else 0.0
        else:
            key, stay = change, -1e-13
        choice = key.argmin(axis=1)
        chosen_key = key[self.member_row, choice]
        go = np.flatnonzero((chosen_key < stay) & (chosen_key < FORBIDDEN / 2))
        if len(go):
            self.apply(go, devices[go], choice[go], change[go, choice[go]])

    def apply(self, rows: IntArray, devices: IntArray, choice: IntArray, change: FloatArray) -> None:
        """Swap (``choice`` < U) or move (``choice`` - U is the cluster) ``devices`` of the given members."""
        labels, width = self.labels, self.width
        swaps = choice < self.devices
        partner = np.where(swaps, choice, 0)
        source = labels[rows, devices]
        target = np.where(swaps, labels[rows, partner], choice - self.devices)
        moved = self.gram[devices] - np.where(swaps[:, None], self.gram[partner], 0.0)
        products = self.products
        # |s -+ (g_u - g_v)|^2 from the products before the change; a move has no g_v.
        step_norm = np.where(swaps, self.gap[devices, partner], self.norms[devices])
        at = lambda cluster: (  # noqa: E731
            products[rows, cluster, devices] - np.where(swaps, products[rows, cluster, partner], 0.0)
        )
        self.squares[rows, source] += step_norm - 2 * at(source)
        self.squares[rows, target] += step_norm + 2 * at(target)
        products[rows, source] -= moved
        products[rows, target] += moved
        moves = ~swaps
        self.counts[rows[moves], source[moves]] -= 1
        self.counts[rows[moves], target[moves]] += 1
        labels[rows, devices] = target
        labels[rows[swaps], partner[swaps]] = source[swaps]
        for cluster in (source, target):
            weight = self.weight_table[rows, self.counts[rows, cluster]]
            self.weight[rows, cluster] = weight
            linear = 2 * weight[:, None] * products[rows, cluster]
            self.cost[rows, cluster] = linear + self.scaled[self.heads[rows, cluster]]
        flat = labels[rows] + rows[:, None] * width
        own_cost = self.cost.reshape(-1).take(flat * self.devices + np.arange(self.devices))
        own_cost[self.locked[rows]] = -FORBIDDEN
        self.own_cost[rows] = own_cost
        self.own_weight[rows] = self.weight.ravel().take(flat)
        self.value[rows] += change
        if self.value[rows].min() < self.best_value - 1e-12:
            self.record_best()

    def draw_heads(self, temperature: float) -> None:
        """Draw every head anew among the candidates of its cluster (temperature 0: the medoid)."""
        flat = self.labels + self.cluster_base
        onehot = flat[:, None, :] == (self.cluster_base + np.arange(self.width))[:, :, None]
        total = onehot.astype(float).reshape(-1, self.devices) @ self.distance.T
        total = total.reshape(self.size, self.width, -1) + self.server
        # With beta = 0 the choice is free: the distance then breaks the tie.
        key = total * max(self.problem.distance_weight, 1e-300)
        if temperature > 0 and self.problem.distance_weight > 0:
            start = int(self.rng.integers(NOISE_POOL - key[:, 0].size))
            noise = self.noise_pool[start : start + key[:, 0].size].reshape(self.size, 1, -1)
            key = key - temperature * noise
        allowed = onehot[:, :, self.candidates]
        allowed &= self.problem.capacities >= self.counts[:, :, None]
        chosen = np.where(allowed, key, np.inf).argmin(axis=2)
        self.heads = np.where(self.live, chosen, 0)
        self.refresh_costs()
        self.record_best()

    def record_best(self) -> None:
        row = int(self.value.argmin())
        if self.value[row] < self.best_value - 1e-12:
            self.best_value = float(self.value[row])
            self.best = self.member(row)

    def member(self, row: int) -> Clustering:
        """A copy of one member."""
        heads = self.candidates[self.heads[row, : self.head_count[row]]]
        return Clustering(self.labels[row].copy(), heads.copy())

    def replace_worst(self, share: float) -> None:
        """Overwrite the worst ``share`` of the members by copies of the best ones."""
        count = int(self.size * share)
        order = np.argsort(self.value, kind="stable")
        worst, best = order[self.size - count :], order[:count]
        for name in ("labels", "heads", "head_count", "live", "weight_table"):
            array = getattr(self, name)
            array[worst] = array[best]
        self.rebuild()

    def typical_change(self) -> float:
        """Mean absolute change of the allowed swaps of some devices: the natural unit of temperature."""
        change = self.changes(self.rng.integers(self.devices, size=self.size))
        allowed = np.abs(change[change < FORBIDDEN / 2])
        return float(allowed.mean()) if allowed.size else 1.0


@dataclass(frozen=True)
class Schedule:
    """Temperatures fall geometrically from ``hot`` to ``cold`` times the typical change of a swap."""

    hot: float = 0.1
    cold: float = 0.001
    exchanges: int = 8
    share: float = 0.25


def _check(problem: ClusteringProblem, population: Population) -> bool:
    return bool(abs(objective(problem, population.best) - population.best_value) < 1e-9)
