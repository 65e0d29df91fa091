"""Inequalities that every partition satisfies and that sharpen the semidefinite bound.

X[u, v] = 1 / C_n if u and v share cluster n, else 0 (``semidefinite``). For integers w_u let m_n be
their sum over cluster n: w' X w = sum_n m_n^2 / C_n and w . diag(X) = sum_n m_n / C_n, and
m (m - 1) >= 0 for every integer m, so

    w . diag(X) - w' X w <= 0        for every integer vector w.

With w = -1 at one device and 1 at the set T these are the 2-partition inequalities of Groetschel
and Wakabayashi (1990), with |T| = 2 the triangle inequalities. The paper has no certificate.

Inequalities that the present X violates are found by descent from w = -1 at each device. They enter
the bound with multipliers >= 0, each of which keeps it valid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from strategies.wireless.problem import FloatArray

Vectors = NDArray[np.int8]  # at most MOST_STEPS away from 0 or -1

LEAST_VIOLATION = 1e-3
STEP = 0.05
MOST_STEPS = 60
ROUNDING = 1e-12


class PartitionCuts:
    """A growing set of inequalities <A_i, X> <= 0 on symmetric (U, U) matrices, and multipliers."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.vectors: Vectors = np.zeros((0, devices), dtype=np.int8)
        self.multipliers = np.zeros(0)
        self.rows = sparse.csr_array((0, devices * devices))

    def add_violated(self, shared: FloatArray) -> None:
        """Add what X = ``shared`` violates; forget what has multiplier 0."""
        used = self.multipliers > 0
        new = violated(shared)
        known = {vector.tobytes() for vector in self.vectors[used]}
        new = new[[vector.tobytes() not in known for vector in new]]
        self.vectors = np.concatenate([self.vectors[used], new])
        self.multipliers = np.concatenate([self.multipliers[used], np.zeros(len(new))])
        self.rows = sparse.vstack(
            [self.rows[used], *(_row(vector) for vector in new)], format="csr"
        )

    def ascend(self, shared: FloatArray, penalty: float) -> FloatArray:
        """A step of the multipliers at X = ``shared``; returns sum_i of multiplier_i A_i."""
        norms: FloatArray = np.asarray(self.rows.power(2).sum(axis=1))
        excess = np.asarray(self.rows @ shared.ravel())
        self.multipliers = np.maximum(0.0, self.multipliers + STEP * penalty * excess / norms)
        return np.asarray(self.rows.T @ self.multipliers).reshape(shared.shape)


def violated(shared: FloatArray) -> Vectors:
    """(M, U) integer vectors w whose inequality X = ``shared`` violates, at most one a device."""
    devices, diagonal = len(shared), np.diag(shared)
    first = np.eye(devices, dtype=bool)
    vectors = np.where(first, -1.0, 0.0)
    products = vectors @ shared
    for _ in range(MOST_STEPS):  # an X that is not positive semidefinite has no least
        # w' X w - w . diag(X) changes by 2 (X w)_v if 1 is added to w_v, and by
        # 2 (X_vv - (X w)_v) if it is subtracted; the starting -1 stays.
        changes = np.hstack([np.where(first, np.inf, products), diagonal - products])
        best = changes.argmin(axis=1)
        active = np.flatnonzero(changes[np.arange(devices), best] < -ROUNDING)
        if not len(active):
            break
        device, sign = best[active] % devices, np.where(best[active] < devices, 1.0, -1.0)
        vectors[active, device] += sign
        products[active] += sign[:, None] * shared[device]
    excess = vectors @ diagonal - (vectors * products).sum(axis=1)
    found: Vectors = np.unique(vectors[excess > LEAST_VIOLATION], axis=0).astype(np.int8)
    return found


def _row(vector: Vectors) -> sparse.csr_array:
    """A with <A, X> = w . diag(X) - w' X w, as one sparse row."""
    support = np.flatnonzero(vector)
    values = vector[support].astype(float)
    block = np.diag(values) - np.outer(values, values)
    columns = (support[:, None] * len(vector) + support).ravel()
    shape = (1, len(vector) ** 2)
    return sparse.csr_array((block.ravel(), (np.zeros_like(columns), columns)), shape=shape)
