"""Heat-bath steps on many clusterings at once (Eq. 16 and 17): the engine of every search.

A step takes a device, looks up the exact change of the objective for swapping it with every other
device and for moving it to every other cluster (``heat_bath_steps``), and draws one of these (or
"stay") with probability proportional to exp(-change / temperature). A member is a block of a few
clusters of a large clustering or, with shared data, a whole small one. Heads are drawn anew among
the candidates of their own cluster by the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from strategies.wireless.problem import FloatArray, IntArray, RealArray

POOL_SIZE = 1 << 16
IMPROVEMENT = 1e-7
"""Smallest improvement that a descent makes: what single precision can tell."""


class NoisePool:
    """Gumbel noise, drawn once, read from random offsets; it turns an argmin into a draw."""

    def __init__(self, rng: np.random.Generator, kind: type[np.floating] = np.float32) -> None:
        self.rng = rng
        self.values = np.asarray(-np.log(rng.standard_exponential(POOL_SIZE)), dtype=kind)

    def offsets(self, shape: tuple[int, ...], length: int) -> IntArray:
        """Where draws of ``length`` values each may begin."""
        return np.asarray(self.rng.integers(POOL_SIZE - length, size=shape))


@dataclass(frozen=True)
class Data:
    """What never changes during a search. G = 1 (shared by all members) or one entry a member.

    gram : (G, n, n) inner products of unit gradients; zero rows pad short blocks.
    distance : (G, n, n) weighted distances, distance_weight * metres.
    to_server : (G, n) weighted distances to the server.
    capacity : (G, n) devices served as a head; 0 for devices that are no candidates.
    """

    gram: RealArray
    distance: RealArray
    to_server: RealArray
    capacity: IntArray


class HeatBath:
    """Mutable state of B members with at most K clusters and n devices each.

    Parameters
    ----------
    data : see ``Data``.
    labels : (B, n) cluster of each device; -1 marks padding.
    heads : (B, K) device that leads each cluster; -1 marks a cluster that does not exist.
    weight_table : (B, n + 2) weight of |s|^2 by cluster size.
    noise : source of all randomness; its precision is that of the look-ups.
    """

    def __init__(
        self,
        data: Data,
        labels: IntArray,
        heads: IntArray,
        weight_table: FloatArray,
        noise: NoisePool,
    ) -> None:
        # It imports Numba, which nodes do without.
        from strategies.wireless import heat_bath_steps

        self.steps = steps = heat_bath_steps
        (size, devices), width, kind = labels.shape, heads.shape[1], noise.values.dtype
        self.size, self.devices, self.noise = size, devices, noise
        gram = np.ascontiguousarray(data.gram, dtype=kind)
        self.state = steps.State(
            gram=gram,
            norms=np.einsum("gnn->gn", gram).copy(),
            distance=np.ascontiguousarray(data.distance, dtype=kind),
            to_server=np.ascontiguousarray(data.to_server, dtype=kind),
            able=np.ascontiguousarray(data.capacity, dtype=np.int64),
            table=weight_table.astype(kind),
            padding=labels < 0,
            labels=np.maximum(labels, 0).astype(np.int64),
            heads=np.array(heads, dtype=np.int64, order="C"),
            counts=np.zeros((size, width), dtype=np.int64),
            capacity=np.zeros((size, width), dtype=np.int64),
            squares=np.zeros((size, width), dtype=kind),
            products=np.zeros((size, width, devices), dtype=kind),
            weight=np.zeros((size, width), dtype=kind),
            cost=np.zeros((size, width, devices), dtype=kind),
            own_cost=np.zeros((size, devices), dtype=kind),
            own_weight=np.zeros((size, devices), dtype=kind),
            locked=np.zeros((size, devices), dtype=np.bool_),
        )
        self.rebuild()

    @property
    def labels(self) -> IntArray:
        """(B, n) cluster of each device within its member; 0 for padding."""
        return self.state.labels

    @property
    def heads(self) -> IntArray:
        """(B, K) device that leads each cluster, -1 for none."""
        return self.state.heads

    def rebuild(self) -> None:
        """Recompute all sums from the labels, which also removes rounding drift."""
        self.steps.rebuild(self.state)

    @property
    def value(self) -> FloatArray:
        """(B,) the members' values: their parts of the objective."""
        s, rows = self.state, np.arange(self.size)[:, None]
        source = rows if len(s.gram) > 1 else np.zeros_like(rows)
        live = s.heads >= 0
        own = s.distance[source, s.heads[rows, s.labels], np.arange(self.devices)]
        total = np.where(s.padding, 0.0, own).sum(axis=1)
        total += np.where(live, s.to_server[source, s.heads], 0.0).sum(axis=1)
        return np.asarray(total + np.where(live, s.weight * s.squares, 0.0).sum(axis=1))

    def changes(self, devices: IntArray) -> RealArray:
        """(B, n + K) exact change of the objective for swapping ``devices[b]`` with each device
        and for moving it to each cluster; at least ``FORBIDDEN / 2`` where that is not allowed.
        """
        width = self.heads.shape[1]
        out = np.empty((self.size, self.devices + width), dtype=self.state.cost.dtype)
        column = np.empty(width, dtype=out.dtype)
        for row, device in enumerate(devices):
            if self.state.locked[row, device]:
                out[row] = self.steps.FORBIDDEN
            else:
                member = self.steps.member(self.state, row)
                self.steps.changes(member, device, column, out[row])
        return out

    def sweep(self, temperature: float) -> None:
        """One step for every device of every member, in an order drawn for each member.

        Temperature 0 takes the best improvement.
        """
        order = self.noise.rng.random(self.labels.shape).argsort(axis=1)
        length = self.devices + self.heads.shape[1] + 1
        offsets = self.noise.offsets(order.shape, length)
        pool = self.noise.values
        self.steps.sweep(self.state, order, offsets, pool, temperature, IMPROVEMENT)

    def draw_heads(self, temperature: float) -> None:
        """Draw every head anew among the candidates of its cluster (temperature 0: the medoid)."""
        offsets = self.noise.offsets((self.size,), self.devices)
        self.steps.draw_heads(self.state, offsets, self.noise.values, temperature)

    def exchange_heads(self, temperature: float) -> None:
        """Propose, for every member, that a random head and a random candidate of another cluster
        change places (Metropolis).
        """
        rng = self.noise.rng
        clusters = (rng.random(self.size) * (self.heads >= 0).sum(axis=1)).astype(np.int64)
        devices = rng.integers(self.devices, size=(self.size,))
        most = np.asarray(temperature * rng.standard_exponential(self.size))
        self.steps.exchange_heads(self.state, clusters, devices, most)

    def copy_members(self, target: IntArray, origin: IntArray) -> None:
        """Overwrite members by copies of others (shared data only)."""
        for array in (self.labels, self.heads, self.state.table):
            array[target] = array[origin]
        self.rebuild()

    def typical_change(self) -> float:
        """Mean size of the changes by allowed swaps: the unit in which temperatures are given."""
        sizes = []
        for _ in range(4):
            devices = np.asarray(self.noise.rng.integers(self.devices, size=self.size))
            changes = np.abs(self.changes(devices)[:, : self.devices])
            sizes.append(changes[changes < self.steps.FORBIDDEN / 2])
        found = np.concatenate(sizes)
        return float(found.mean(dtype=float)) if found.size else 0.0


@cache
def prepare() -> None:
    """Compile the loops, or load them from disk, before a search's time begins.

    Some seconds the first time on a machine, half a second in a later process.
    """
    labels = np.arange(2)[None]
    data = Data(np.eye(2)[None], 1 - np.eye(2)[None], np.ones((1, 2)), np.ones((1, 2), int))
    noise = NoisePool(np.random.default_rng(0))
    bath = HeatBath(data, labels, labels, np.ones((1, 4)), noise)
    bath.sweep(1.0)
    bath.draw_heads(1.0)
    bath.exchange_heads(1.0)
    bath.typical_change()
    bath.steps.block_distances(np.zeros((1, 2, 2), dtype=np.float32), np.float32(1))
