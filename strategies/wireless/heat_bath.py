"""Heat-bath steps on many clusterings at once (Eq. 16 and 17).

A step takes one device of every member, computes the exact change of the objective for swapping
it with every other device and for moving it to every other cluster of that member, and draws one
of these (or "stay") with probability proportional to exp(-change / temperature). All changes are
look-ups: with s_k the sum of the unit gradients of cluster k, n_k its size and w(n) the weight of
|s|^2 in Eq. 16,

    cost[k, u] = 2 w(n_k) s_k . g_u + beta' d(u, h_k)
    swap of u in a with v in c:  cost[a, v] - cost[a, u] + cost[c, u] - cost[c, v]
                                 + (w(n_a) + w(n_c)) |g_u - g_v|^2

so a neighbourhood is one array expression and an applied step changes two rows. Heads are drawn
anew among the candidates of their own cluster by the same rule. This engine, in double precision,
makes the descents; annealing is done by ``block_bath``, which takes many devices at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.wireless.problem import FloatArray, IntArray, RealArray

FORBIDDEN = 1e9
POOL_DRAWS, POOL_SMALLEST, POOL_LARGEST = 256, 1 << 14, 1 << 18
BoolArray = NDArray[np.bool_]


class NoisePool:
    """Gumbel noise, drawn once, read from random offsets; it turns an argmin into a draw."""

    def __init__(
        self, rng: np.random.Generator, largest_draw: int, kind: type[np.floating] = np.float64
    ) -> None:
        self.rng, self.kind = rng, kind
        self.size = min(max(POOL_DRAWS * largest_draw, POOL_SMALLEST), POOL_LARGEST)
        self.values = self._fresh(self.size)

    def _fresh(self, count: int) -> RealArray:
        return np.asarray(-np.log(self.rng.standard_exponential(count)), dtype=self.kind)

    def draw(self, count: int) -> RealArray:
        """(count,) values."""
        if count >= self.size:
            return self._fresh(count)
        start = int(self.rng.integers(self.size - count))
        return self.values[start : start + count]


@dataclass(frozen=True)
class Data:
    """What never changes during a search. G = 1 (shared by all members) or one entry a member.

    gram : (G, n, n) inner products of unit gradients; zero rows pad short blocks.
    distance : (G, n, n) weighted distances, distance_weight * metres.
    to_server : (G, n) weighted distances to the server.
    capacity : (G, n) devices served as a head; 0 for devices that are no candidates.
    """

    gram: FloatArray
    distance: FloatArray
    to_server: FloatArray
    capacity: IntArray


class HeatBath:
    """Mutable state of B members with at most K clusters and n devices each.

    Parameters
    ----------
    data : see ``Data``.
    labels : (B, n) cluster of each device; -1 marks padding.
    heads : (B, K) device that leads each cluster; -1 marks a cluster that does not exist.
    weight_table : (B, n + 2) weight of |s|^2 by cluster size.
    noise : source of all randomness.
    """

    def __init__(
        self,
        data: Data,
        labels: IntArray,
        heads: IntArray,
        weight_table: FloatArray,
        noise: NoisePool,
    ) -> None:
        self.data, self.noise, self.weight_table = data, noise, weight_table.copy()
        self.size, self.devices = labels.shape
        self.width = heads.shape[1]
        self.rows = np.arange(self.size)
        self.source = self.rows if len(data.gram) > 1 else np.zeros(self.size, dtype=np.int64)
        self.cluster_base = self.rows[:, None] * self.width
        self.padding = labels < 0
        self.labels, self.heads = np.maximum(labels, 0), heads.copy()
        norms = np.einsum("gnn->gn", data.gram)
        self.norms = norms
        self.gap = norms[:, :, None] + norms[:, None, :] - 2 * data.gram  # |g_u - g_v|^2
        self.rebuild()

    def rebuild(self) -> None:
        """Recompute all sums from the labels, which also removes rounding drift."""
        self.flat = self.labels + self.cluster_base
        onehot = self.membership().astype(float)
        self.counts = onehot.sum(axis=2).astype(np.int64)
        self.products = np.matmul(onehot, self.data.gram)
        self.squares = (self.products * onehot).sum(axis=2)
        self.refresh_heads()

    def membership(self) -> BoolArray:
        """(B, K, n) whether a device belongs to a cluster."""
        member = self.labels[:, None, :] == np.arange(self.width)[None, :, None]
        return np.asarray(member & ~self.padding[:, None, :])

    def refresh_heads(self) -> None:
        """Recompute everything that depends on the heads."""
        live, rows, source = self.heads >= 0, self.rows[:, None], self.source[:, None]
        self.capacity = np.where(live, self.data.capacity[source, self.heads], 0)
        self.weight = self.weight_table[rows, self.counts]
        self.head_distance = self.data.distance[source, self.heads]
        self.cost = 2 * self.weight[:, :, None] * self.products + self.head_distance
        self.locked = self.padding.copy()
        members, clusters = np.nonzero(live)
        self.locked[members, self.heads[members, clusters]] = True
        self.refresh_own(self.rows)
        own_distance = np.take_along_axis(self.head_distance, self.labels[:, None, :], axis=1)[:, 0]
        to_server = np.where(live, self.data.to_server[source, self.heads], 0.0)
        self.value = np.where(self.padding, 0.0, own_distance).sum(axis=1) + to_server.sum(axis=1)
        self.value += (self.weight * self.squares * live).sum(axis=1)

    def refresh_own(self, rows: IntArray) -> None:
        """Recompute the look-ups of every device in its own cluster, for some members."""
        index = self.flat[rows] * self.devices
        index += np.arange(self.devices)
        own_cost = self.cost.ravel().take(index)
        own_cost[self.locked[rows]] = -FORBIDDEN
        if len(rows) == self.size:
            self.own_cost, self.own_weight = own_cost, self.weight.ravel().take(self.flat)
        else:
            self.own_cost[rows] = own_cost
            self.own_weight[rows] = self.weight.ravel().take(self.flat[rows])

    def changes(self, devices: IntArray) -> FloatArray:
        """(B, n + K) exact change of the objective for swapping ``devices[b]`` with each device
        and for moving it to each cluster; at least ``FORBIDDEN / 2`` where that is not allowed.
        """
        rows, source = self.rows, self.source
        own = self.labels[rows, devices]
        own_flat = self.flat[rows, devices]
        own_weight = self.weight.ravel()[own_flat]
        column = self.cost[rows, :, devices]
        out = np.empty((self.size, self.devices + self.width))
        swap = out[:, : self.devices]
        np.add(self.own_weight, own_weight[:, None], out=swap)
        swap *= self.gap[source, devices]
        swap += self.cost.reshape(-1, self.devices)[own_flat]
        swap -= self.own_cost
        swap += (column - column[rows, own][:, None]).ravel().take(self.flat)
        swap[self.flat == own_flat[:, None]] = FORBIDDEN

        product, norm = self.products[rows, :, devices], self.norms[source, devices]
        own_count, own_square = self.counts[rows, own], self.squares[rows, own]
        grown = self.weight_table[rows[:, None], self.counts + 1]
        join = grown * (self.squares + 2 * product + norm[:, None]) - self.weight * self.squares
        join += self.head_distance[rows, :, devices]
        join[self.counts >= self.capacity] = FORBIDDEN
        leave = self.weight_table[rows, own_count - 1] * (
            own_square - 2 * product[rows, own] + norm
        )
        leave -= own_weight * own_square + self.head_distance[rows, own, devices]
        join += leave[:, None]
        join[rows, own] = FORBIDDEN
        out[:, self.devices :] = join
        out[self.locked[rows, devices]] = FORBIDDEN
        return out

    def step(self, devices: IntArray, temperature: float) -> None:
        """One step of every member; temperature 0 takes the best improvement."""
        change = self.changes(devices)
        key, stay = change, np.full(self.size, -1e-13)
        if temperature > 0:
            noise = self.noise.draw(change.size + self.size) * temperature
            key = change - noise[: change.size].reshape(change.shape)
            stay = -noise[change.size :]
        choice = key.argmin(axis=1)
        chosen = key[self.rows, choice]
        go = np.flatnonzero((chosen < stay) & (chosen < FORBIDDEN / 2))
        if len(go):
            self.apply(go, devices[go], choice[go], change[go, choice[go]])

    def apply(
        self, rows: IntArray, devices: IntArray, choice: IntArray, change: FloatArray
    ) -> None:
        """Swap ``devices`` with ``choice`` (< n) or move them to cluster ``choice - n``."""
        swaps = choice < self.devices
        partner = np.where(swaps, choice, 0)
        source_data = self.source[rows]
        source = self.labels[rows, devices]
        target = np.where(swaps, self.labels[rows, partner], choice - self.devices)
        gram, products = self.data.gram, self.products
        shift = gram[source_data, devices] - gram[source_data, partner] * swaps[:, None]
        length = np.where(
            swaps, self.gap[source_data, devices, partner], self.norms[source_data, devices]
        )
        for cluster, sign in ((source, -2.0), (target, 2.0)):
            along = products[rows, cluster, devices] - products[rows, cluster, partner] * swaps
            self.squares[rows, cluster] += length + sign * along
        products[rows, source] -= shift
        products[rows, target] += shift
        moves = ~swaps
        self.counts[rows[moves], source[moves]] -= 1
        self.counts[rows[moves], target[moves]] += 1
        self.labels[rows, devices] = target
        self.labels[rows[swaps], partner[swaps]] = source[swaps]
        self.flat[rows] = self.labels[rows] + self.cluster_base[rows]
        for cluster in (source, target):
            weight = self.weight_table[rows, self.counts[rows, cluster]]
            self.weight[rows, cluster] = weight
            linear = 2 * weight[:, None] * products[rows, cluster]
            self.cost[rows, cluster] = linear + self.head_distance[rows, cluster]
        self.refresh_own(rows)
        self.value[rows] += change

    def sweep(self, temperature: float) -> None:
        """One step for every device of every member, in an order drawn for each member."""
        order = self.noise.rng.random((self.size, self.devices)).argsort(axis=1)
        for turn in range(self.devices):
            self.step(order[:, turn], temperature)

    def draw_heads(self, temperature: float) -> None:
        """Draw every head anew among the candidates of its cluster (temperature 0: the medoid)."""
        member = self.membership()
        key = np.matmul(member.astype(float), self.data.distance) + self.data.to_server[:, None, :]
        if temperature > 0:
            key -= temperature * self.noise.draw(self.padding.size).reshape(self.size, 1, -1)
        capacity = self.data.capacity[:, None, :]
        member &= (capacity >= self.counts[:, :, None]) & (capacity > 0)
        chosen = np.where(member, key, np.inf).argmin(axis=2)
        self.heads = np.where(self.heads >= 0, chosen, -1)
        self.refresh_heads()
