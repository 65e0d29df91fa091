"""A semidefinite lower bound on c(C) with clusters weighted by size (Eq. 15, ``weighting="size"``).

With X[u, v] = 1 / C_n if u and v share cluster n and 0 otherwise, U c(C) = <G, X>, G the inner
products of the unit gradients. X is a projection, X 1 = 1, trace X = K, all entries are at least 0
and the diagonal is at least 1 / V. The relaxation keeps

    spectral set:  X 1 = 1, eigenvalues in [0, 1], trace X >= K
    box:           0 <= X[u, v] <= 1/2, 1 / V <= X[u, u] <= 1, X = 0 between fixed heads

and is solved by alternating directions with multipliers L for "both sets hold the same X". Every
symmetric L gives a valid bound, of eigenvalues and of signs,

    <G, X> >= min over spectral set of <G + L, X>  -  max over box of <L, X>

so that nothing rests on convergence. Then inequalities of ``partition_cuts`` are added to G with
multipliers of their own. The paper has no certificate.
"""

from __future__ import annotations

import numpy as np

from strategies.wireless.annealing import Clock
from strategies.wireless.partition_cuts import PartitionCuts
from strategies.wireless.problem import FloatArray, IntArray

CHECK_EVERY = 50
LEAST_GAIN = 1e-5
SEPARATE_EVERY = 5
PATIENCE = 40
PENALTY = 0.5
ROUNDING = 1e-11


class ProjectionBound:
    """The relaxation for K or more clusters of at most V devices.

    Parameters
    ----------
    gram : (U, U) inner products of unit gradients.
    clusters : least number of clusters.
    most : most devices in a cluster.
    apart : devices that are known to be in different clusters.
    """

    def __init__(self, gram: FloatArray, clusters: int, most: int, apart: IntArray) -> None:
        devices = len(gram)
        self.gram, self.clusters, self.devices = gram, clusters, devices
        self.low, self.high = np.zeros(gram.shape), np.full(gram.shape, 0.5)
        self.high[np.ix_(apart, apart)] = 0.0
        np.fill_diagonal(self.low, 1.0 / most)
        np.fill_diagonal(self.high, 1.0)
        self.mean = np.full(gram.shape, 1.0 / devices)
        whole = np.column_stack([np.ones(devices), np.eye(devices)[:, : devices - 1]])
        self.basis = np.linalg.qr(whole)[0][:, 1:]  # of the vectors that sum to 0
        self.penalty = PENALTY * max(float(np.linalg.norm(gram)), 1e-12) / np.sqrt(clusters)
        self.multipliers = np.zeros(gram.shape)
        self.boxed = np.clip(self.mean, self.low, self.high)
        self.value = self.bound()

    def bound(self) -> float:
        """The bound on c(C) that the present multipliers give."""
        summed = self.gram + self.multipliers
        spectrum = np.linalg.eigvalsh(self.basis.T @ summed @ self.basis)
        must = self.clusters - 1
        spectral = spectrum[:must].sum() + np.minimum(spectrum[must:], 0.0).sum()
        spectral += summed.sum() / self.devices
        box = np.where(self.multipliers > 0, self.high, self.low) * self.multipliers
        return float(spectral - box.sum()) / self.devices - ROUNDING

    def step(self) -> None:
        """One round of alternating directions."""
        wanted = self.boxed - (self.gram + self.multipliers) / self.penalty
        values, vectors = np.linalg.eigh(self.basis.T @ wanted @ self.basis)
        turned = self.basis @ vectors
        spectral = (turned * _capped(values, self.clusters - 1)) @ turned.T + self.mean
        self.boxed = np.clip(spectral + self.multipliers / self.penalty, self.low, self.high)
        self.multipliers += self.penalty * (spectral - self.boxed)

    def improve(self, target: float, clock: Clock, deadline: float) -> float:
        """The best bound found until ``target``, ``deadline`` or no more progress."""
        gram, cuts = self.gram, PartitionCuts(self.devices)
        steps = stalled = 0
        with_cuts = False
        while self.value < target and clock() < deadline and stalled < PATIENCE:
            before = self.value
            for _ in range(CHECK_EVERY):
                if with_cuts:
                    if steps % SEPARATE_EVERY == 0:
                        cuts.add_violated(self.boxed)
                    self.gram = gram + cuts.ascend(self.boxed, self.penalty)
                self.step()
                steps += 1
                if clock() >= deadline:
                    break
            self.value = max(self.value, self.bound())
            gained = before <= 0 or self.value >= (1 + LEAST_GAIN) * before
            stalled = 0 if gained or not with_cuts else stalled + 1
            with_cuts |= not gained
        return self.value


def _capped(values: FloatArray, least_sum: int) -> FloatArray:
    """The nearest point with entries in [0, 1] that sum to at least ``least_sum``."""
    found = np.clip(values, 0.0, 1.0)
    if found.sum() >= least_sum:
        return found
    low, high = 0.0, 1.0 - float(values.min())  # a shift: too small, large enough
    for _ in range(50):
        middle = (low + high) / 2
        if np.clip(values + middle, 0.0, 1.0).sum() < least_sum:
            low = middle
        else:
            high = middle
    return np.clip(values + high, 0.0, 1.0)
