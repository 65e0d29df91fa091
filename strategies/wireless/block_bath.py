"""Heat-bath steps of many devices at once: the engine of ``annealing`` and ``blocks``.

A step of ``HeatBath`` takes one device a member; when the members are small, most of it is call
overhead. Here a batch of devices of every member draws its swaps in the same state. A member is a
block of a few clusters of a large clustering or, with shared data, a whole small one. The change
by a swap depends only on the two clusters that it touches, so that those steps are made that share
no cluster with an earlier one, and each still changes the objective by what it was drawn with.
Moves to another cluster, which need room there, are drawn once a sweep for all devices.

Look-ups are held in single precision: they only choose steps. With R[k, v] = cost[k, v] minus the
cost of v in its own cluster (``HeatBath`` has the formulas), a swap of u in a with v in c costs

    R[a, v] + R[c, u] + (w(n_a) + w(n_c)) |g_u - g_v|^2

whose first two terms for all u and v are one product of matrices. Swapping a device with itself
costs 0 and stands for "stay".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strategies.wireless.heat_bath import FORBIDDEN, Data, NoisePool
from strategies.wireless.problem import FloatArray, IntArray

BATCH = 24
Single = NDArray[np.float32]


class BlockBath:
    """Mutable state of B members with at most K clusters and n devices each.

    Parameters are those of ``HeatBath``, and the number of devices of each member whose swaps are
    drawn in the same state. Clusters are numbered b K + k and devices b n + i (``flat``).
    """

    def __init__(
        self,
        data: Data,
        labels: IntArray,
        heads: IntArray,
        weight_table: FloatArray,
        noise: NoisePool,
        batch: int = BATCH,
    ) -> None:
        self.size, self.devices = labels.shape
        self.width, self.noise, self.batch = heads.shape[1], noise, batch
        rows = np.arange(self.size)[:, None]
        self.cluster_base, self.device_base = rows * self.width, rows * self.devices
        self.source = rows if len(data.gram) > 1 else np.zeros_like(rows)
        self.data_row = (self.source * self.devices + np.arange(self.devices)).ravel()
        self.column = np.tile(np.arange(self.devices), self.size)
        self.table = weight_table.astype(np.float32)
        self.table_base = np.repeat(np.arange(self.size) * self.table.shape[1], self.width)
        self.data, self.padding, self.heads = data, labels < 0, heads.copy()
        self.gram = data.gram.astype(np.float32, copy=False)
        self.distance = data.distance.astype(np.float32, copy=False)
        norms = np.einsum("gnn->gn", self.gram).copy()
        self.gap = self.gram * np.float32(-2.0)
        self.gap += norms[:, :, None]
        self.gap += norms[:, None, :]
        self.norms = norms.ravel().take(self.data_row).reshape(self.size, -1)
        self.eye = np.eye(self.width, dtype=np.float32)
        self.owner = (np.maximum(labels, 0) + self.cluster_base).ravel()
        # R above, membership below: the right factor of the product of matrices.
        self.factor = np.zeros((self.size, 2 * self.width, self.devices), dtype=np.float32)
        self.relative, self.member = self.factor[:, : self.width], self.factor[:, self.width :]
        self.rebuild()

    @property
    def labels(self) -> IntArray:
        """(B, n) cluster of each device within its member."""
        return np.asarray(self.owner.reshape(self.size, -1) - self.cluster_base)

    def rebuild(self) -> None:
        """Recompute all sums from the labels, which also removes rounding drift."""
        self.member[:] = self.labels[:, None, :] == np.arange(self.width)[None, :, None]
        self.member *= ~self.padding[:, None, :]
        self.counts = self.member.sum(axis=2).astype(np.int64).ravel()
        products = np.matmul(self.member, self.gram)
        self.squares = np.einsum("bkn,bkn->bk", products, self.member).ravel()
        self.products = products.reshape(-1, self.devices)
        self.refresh_heads()

    def _weights(self, counts: IntArray) -> Single:
        """(B K,) weight of |s|^2 for clusters of these sizes."""
        return self.table.ravel().take(self.table_base + counts)

    def refresh_heads(self) -> None:
        """Recompute everything that depends on the heads."""
        live = self.heads >= 0
        capacity = np.where(live, self.data.capacity[self.source, self.heads], 0)
        self.capacity = capacity.ravel()
        self.weight = self._weights(self.counts)
        self.near = self.distance[self.source, self.heads].reshape(-1, self.devices)
        self.cost = self.products * (2 * self.weight)[:, None] + self.near
        self.locked = self.padding.ravel().copy()
        self.locked[(self.heads + self.device_base)[live]] = True
        self.penalty = np.where(self.locked, np.float32(FORBIDDEN), np.float32(0))
        self._refresh_own()

    def _refresh_own(self) -> None:
        shape = (self.size, self.devices)
        own_cost = self.cost.ravel().take(self.owner * self.devices + self.column)
        own_cost -= self.penalty
        cost = self.cost.reshape(self.size, self.width, self.devices)
        np.subtract(cost, own_cost.reshape(shape)[:, None, :], out=self.relative)
        turned = self.relative.transpose(0, 2, 1).reshape(-1, self.width)
        self.relative_rows = np.ascontiguousarray(turned)
        self.own_weight = self.weight.take(self.owner).reshape(shape)

    @property
    def value(self) -> FloatArray:
        """(B,) the members' values: their parts of the objective."""
        live = self.heads >= 0
        own = self.near.ravel().take(self.owner * self.devices + self.column)
        total = np.where(self.padding, 0.0, own.reshape(self.size, -1)).sum(axis=1)
        total += np.where(live, self.data.to_server[self.source, self.heads], 0.0).sum(axis=1)
        squared = (self.weight * self.squares).reshape(self.size, -1)
        return np.asarray(total + np.where(live, squared, 0.0).sum(axis=1, dtype=float))

    def swap_changes(self, devices: IntArray) -> Single:
        """(B, T, n) change of the objective by swapping ``devices`` (B, T) with each device of
        the member; at least ``FORBIDDEN / 2`` where a head or padding is involved. What a swap
        within a cluster is said to cost has no meaning, but is never negative."""
        flat = devices + self.device_base
        own = self.owner.take(flat)
        rows = self.data_row.take(flat)
        change = self.gap.reshape(-1, self.devices).take(rows, axis=0)
        terms = self.own_weight[:, None, :] + self.weight.take(own)[:, :, None]
        change *= terms
        own_rows = self.eye.take(own - self.cluster_base, axis=0)
        left = np.concatenate([own_rows, self.relative_rows.take(flat, axis=0)], axis=2)
        change += np.matmul(left, self.factor, out=terms)
        return np.asarray(change)

    def swap_step(self, devices: IntArray, temperature: float) -> None:
        """Swaps of ``devices`` (B, T), drawn in the same state; those that collide are dropped."""
        key = self.swap_changes(devices)
        key -= self._noise(key.shape, temperature)
        choice = key.argmin(axis=2)
        first = (devices + self.device_base).ravel()
        second = (choice + self.device_base).ravel()
        source, target = self.owner.take(first), self.owner.take(second)
        able = ~(self.locked.take(first) | self.locked.take(second))
        go = np.flatnonzero(able & (source != target))
        if len(go):
            go = self._without_collisions(go, source, target)
            self._swap(first[go], second[go], source[go], target[go])

    def move_changes(self) -> Single:
        """(B, K, n) change of the objective by moving each device to each cluster; at least
        ``FORBIDDEN / 2`` where that is not allowed."""
        grown = self._weights(self.counts + 1)
        fixed = (grown - self.weight) * self.squares
        fixed[self.counts >= self.capacity] = FORBIDDEN
        join = self.products * (2 * grown)[:, None]
        join += self.near
        join += fixed[:, None]
        shape = (self.size, self.width, self.devices)
        change = np.asarray(join.reshape(shape))
        change += grown.reshape(self.size, -1)[:, :, None] * self.norms[:, None, :]
        place = self.owner * self.devices + self.column
        shrunk = self._weights(np.maximum(self.counts - 1, 0)).take(self.owner)
        square = self.squares.take(self.owner)
        left = square - 2 * self.products.ravel().take(place) + self.norms.ravel()
        leave = shrunk * left - self.own_weight.ravel() * square - self.near.ravel().take(place)
        leave += self.penalty
        change += leave.reshape(self.size, 1, -1)
        change += self.member * np.float32(FORBIDDEN)
        return change

    def move_step(self, temperature: float) -> None:
        """A move of every device to another cluster is drawn; those that collide are dropped."""
        key = self.move_changes()
        key -= self._noise(key.shape, temperature)
        choice = key.argmin(axis=1).ravel()
        stay = self._noise(choice.shape, temperature)
        go = np.flatnonzero(key.min(axis=1).ravel() < -stay)
        if len(go):
            go = self.noise.rng.permutation(go)
            target = choice + np.repeat(self.cluster_base, self.devices)
            go = self._without_collisions(go, self.owner, target)
            self._move(go, self.owner[go], target[go])

    def _noise(self, shape: tuple[int, ...], temperature: float) -> Single:
        drawn = self.noise.draw(int(np.prod(shape))).reshape(shape)
        return np.asarray(drawn * np.float32(temperature), dtype=np.float32)

    def _without_collisions(self, go: IntArray, source: IntArray, target: IntArray) -> IntArray:
        """Those of the steps ``go`` that touch no cluster which an earlier one touches."""
        rank = np.arange(len(go))
        first = np.empty(len(self.counts), dtype=np.int64)
        pairs = np.empty((len(go), 2), dtype=np.int64)
        pairs[:, 0], pairs[:, 1] = source[go], target[go]
        first[pairs[::-1].ravel()] = rank[::-1].repeat(2)  # the last written is the first
        alone = (first[pairs[:, 0]] == rank) & (first[pairs[:, 1]] == rank)
        return np.asarray(go[alone])

    def _swap(self, first: IntArray, second: IntArray, source: IntArray, target: IntArray) -> None:
        gram = self.gram.reshape(-1, self.devices)
        rows = self.data_row[first]
        shift = gram[rows] - gram[self.data_row[second]]
        length = self.gap.reshape(-1, self.devices)[rows, self.column[second]]
        self._shift(shift, length, first, source, target, second)
        self._own(second, target, source)
        self._refresh_clusters(np.concatenate([source, target]))

    def _move(self, devices: IntArray, source: IntArray, target: IntArray) -> None:
        shift = self.gram.reshape(-1, self.devices)[self.data_row[devices]]
        self._shift(shift, self.norms.ravel()[devices], devices, source, target, None)
        self.counts[source] -= 1
        self.counts[target] += 1
        changed = np.concatenate([source, target])
        self.weight = self._weights(self.counts)
        self._refresh_clusters(changed)

    def _shift(
        self,
        shift: Single,
        length: Single,
        devices: IntArray,
        source: IntArray,
        target: IntArray,
        partners: IntArray | None,
    ) -> None:
        """Take ``shift`` = g_u - g_v (or g_u) with squared ``length`` from source to target."""
        products = self.products
        column = self.column[devices]
        for cluster, sign in ((source, -2), (target, 2)):
            along = products[cluster, column]
            if partners is not None:
                along = along - products[cluster, self.column[partners]]
            self.squares[cluster] += length + sign * along
        products[source] -= shift
        products[target] += shift
        self._own(devices, source, target)

    def _own(self, devices: IntArray, source: IntArray, target: IntArray) -> None:
        block, column = np.divmod(devices, self.devices)
        self.member[block, source % self.width, column] = 0
        self.member[block, target % self.width, column] = 1
        self.owner[devices] = target

    def _refresh_clusters(self, changed: IntArray) -> None:
        twice = 2 * self.weight[changed]
        self.cost[changed] = self.products[changed] * twice[:, None] + self.near[changed]
        self._refresh_own()

    def sweep(self, temperature: float) -> None:
        """A swap and a move are drawn for every device, swaps in an order drawn for each member."""
        order = self.noise.rng.random((self.size, self.devices)).argsort(axis=1)
        for first in range(0, self.devices, self.batch):
            self.swap_step(order[:, first : first + self.batch], temperature)
        self.move_step(temperature)

    def draw_heads(self, temperature: float) -> None:
        """Draw every head anew among the candidates of its cluster."""
        key = np.matmul(self.member, self.distance)
        key += self.data.to_server.astype(np.float32)[:, None, :]
        key -= self._noise(self.padding.shape, temperature)[:, None, :]
        capacity = self.data.capacity[:, None, :]
        counts = self.counts.reshape(self.size, self.width, 1)
        able = (self.member > 0) & (capacity >= counts) & (capacity > 0)
        chosen = np.where(able, key, np.inf).argmin(axis=2)
        self.heads = np.where(self.heads >= 0, chosen, -1)
        self.refresh_heads()

    def exchange_heads(self, temperature: float) -> None:
        """Propose, for every member, that a random head and a random candidate of another cluster
        change places (Metropolis): the move that swaps and ``draw_heads`` cannot make.
        """
        rng, rows, labels = self.noise.rng, np.arange(self.size), self.labels
        clusters = (rng.random(self.size) * (self.heads >= 0).sum(axis=1)).astype(np.int64)
        devices = rng.integers(self.devices, size=(self.size,))
        counts = self.counts.reshape(self.size, -1)[rows, clusters]
        allowed = self.data.capacity[self.source[:, 0], devices] >= counts
        allowed &= ~self.locked[rows * self.devices + devices] & (labels[rows, devices] != clusters)
        go = np.flatnonzero(allowed)
        if len(go) == 0:
            return
        before = self.owner.copy(), self.heads.copy(), self.value
        old = self.heads[go, clusters[go]]
        owner = self.owner.reshape(self.size, -1)
        owner[go, old] = owner[go, devices[go]]
        owner[go, devices[go]] = clusters[go] + self.cluster_base[go, 0]
        self.heads[go, clusters[go]] = devices[go]
        self.rebuild()
        worse = self.value - before[2] > temperature * rng.standard_exponential(self.size)
        if worse.any():
            owner[worse] = before[0].reshape(self.size, -1)[worse]
            self.heads[worse] = before[1][worse]
            self.rebuild()

    def copy_members(self, target: IntArray, origin: IntArray) -> None:
        """Overwrite members by copies of others (shared data only)."""
        labels = self.labels
        for array in (labels, self.heads, self.table):
            array[target] = array[origin]
        self.owner = (labels + self.cluster_base).ravel()
        self.rebuild()

    def typical_change(self) -> float:
        """Mean size of the changes by allowed swaps: the unit in which temperatures are given."""
        sizes = []
        for _ in range(4):
            devices = np.asarray(self.noise.rng.integers(self.devices, size=(self.size, 1)))
            changes = np.abs(self.swap_changes(devices))
            sizes.append(changes[changes < FORBIDDEN / 2])
        found = np.concatenate(sizes)
        return float(found.mean(dtype=float)) if found.size else 0.0
