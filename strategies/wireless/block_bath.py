"""Heat-bath steps of several devices at once: the engine of ``blocks``.

A single step of ``HeatBath`` is mostly overhead when the members are small. Here ``BATCH`` devices
of every member draw their steps in the same state. A change depends only on the two clusters that
it touches, so that of the steps drawn those are made that share no cluster with an earlier one;
each of them still has exactly the change of the objective that it was drawn with.
"""

from __future__ import annotations

import numpy as np

from strategies.wireless.heat_bath import FORBIDDEN, Data, HeatBath, NoisePool
from strategies.wireless.problem import FloatArray, IntArray

BATCH = 16


class BlockBath(HeatBath):
    """A ``HeatBath`` with one entry of ``data`` a member, whose sweeps handle devices in batches.

    Swapping a device with itself has change 0 and stands for "stay".
    """

    def __init__(
        self,
        data: Data,
        labels: IntArray,
        heads: IntArray,
        weight_table: FloatArray,
        noise: NoisePool,
    ) -> None:
        super().__init__(data, labels, heads, weight_table, noise)
        self.device_base = self.rows[:, None] * self.devices
        self.gap_rows = self.gap.reshape(-1, self.devices)

    def batch_changes(self, devices: IntArray) -> FloatArray:
        """(B, T, n + K) what ``changes`` gives for every column of ``devices`` (B, T), except
        that a swap within a cluster is not forbidden (nor ever made)."""
        size, width = devices.shape
        flat = devices + self.device_base
        own_flat = self.flat.ravel().take(flat)
        own_weight = self.weight.ravel().take(own_flat)
        relative = self.cost - self.own_cost[:, None, :]
        out = np.empty((size, width, self.devices + self.width))
        swap = self.own_weight[:, None, :] + own_weight[:, :, None]
        swap *= self.gap_rows[flat]
        swap += relative.reshape(-1, self.devices)[own_flat]
        column = relative.transpose(0, 2, 1).reshape(-1, self.width)[flat]
        swap += np.matmul(column, self.membership().astype(float))
        out[:, :, : self.devices] = swap
        out[:, :, self.devices :] = self._join(flat, own_flat, own_weight)
        return out

    def _join(self, flat: IntArray, own_flat: IntArray, own_weight: FloatArray) -> FloatArray:
        """(B, T, K) changes by moves to each cluster."""
        product = self.products.transpose(0, 2, 1).reshape(-1, self.width)[flat]
        near = self.head_distance.transpose(0, 2, 1).reshape(-1, self.width)[flat]
        norm = self.norms.ravel().take(flat)
        grown = self.weight_table[self.rows[:, None], self.counts + 1]
        fixed = (grown - self.weight) * self.squares
        fixed[self.counts >= self.capacity] = FORBIDDEN
        join = product * (2 * grown)[:, None, :]
        join += near + fixed[:, None, :]
        join += grown[:, None, :] * norm[:, :, None]
        own = own_flat - self.cluster_base
        every = np.arange(own.size)
        place = every * self.width + own.ravel()
        own_square = self.squares.ravel().take(own_flat)
        shrunk = self.weight_table[self.rows[:, None], self.counts.ravel().take(own_flat) - 1]
        leave = shrunk * (own_square - 2 * product.ravel().take(place).reshape(own.shape) + norm)
        leave -= own_weight * own_square + near.ravel().take(place).reshape(own.shape)
        locked = self.locked.ravel().take(flat)
        leave[locked] = FORBIDDEN
        join += leave[:, :, None]
        join.ravel()[place] = FORBIDDEN
        return join

    def batch_step(self, devices: IntArray, temperature: float) -> None:
        """Steps of ``devices`` (B, T) drawn in the same state; those that collide are dropped."""
        change = self.batch_changes(devices)
        key = change - self.noise.draw(change.size).reshape(change.shape) * temperature
        count, options = devices.size, change.shape[2]
        choice = key.reshape(count, options).argmin(axis=1)
        drawn = change.ravel().take(np.arange(count) * options + choice)
        row = np.repeat(self.rows, devices.shape[1])
        source = self.flat.ravel().take(row * self.devices + devices.ravel())
        target = np.where(
            choice < self.devices,
            self.flat.ravel().take(row * self.devices + np.minimum(choice, self.devices - 1)),
            row * self.width + choice - self.devices,
        )
        go = np.flatnonzero((drawn < FORBIDDEN / 2) & (source != target))
        if len(go) == 0:
            return
        first = np.empty(self.size * self.width, dtype=np.int64)
        backwards = go[::-1]
        first[np.column_stack([source[backwards], target[backwards]]).ravel()] = np.repeat(
            backwards, 2
        )
        go = go[(first[source[go]] == go) & (first[target[go]] == go)]
        self.apply(row[go], devices.ravel()[go], choice[go], drawn[go])

    def refresh_own(self, rows: IntArray) -> None:
        """Of all members: cheaper than to pick those in ``rows``."""
        super().refresh_own(self.rows)

    def sweep(self, temperature: float) -> None:
        """One step for every device of every member, in an order drawn for each member."""
        order = self.noise.rng.random((self.size, self.devices)).argsort(axis=1)
        for first in range(0, self.devices, BATCH):
            self.batch_step(order[:, first : first + BATCH], temperature)
