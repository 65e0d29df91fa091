"""Gradient similarity between devices (wireless CFL paper, Eq. 5).

PRIVACY: the gradients (or their sketches) and the positions of the devices go to the server in the
clear, without differential privacy. A sketch hides little: inner products survive by design, and
with as many directions as the gradient has numbers the server can invert it.

Deviation: the cosine matrix is never needed by the solvers, which work with unit gradients; it is
offered block by block for inspection. A gradient of length zero has similarity 0 to every device,
itself included (Eq. 5 divides by zero).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float32Array = NDArray[np.float32]
SKETCH_CHUNK = 4096


def unit_gradients(gradients: ArrayLike) -> Float32Array:
    """(U, p) rows scaled to length 1, in float32; zero rows stay zero and are reported once.

    ``ValueError`` for NaN, infinity or a wrong shape.
    """
    rows = np.array(gradients, dtype=np.float32)
    if rows.ndim != 2:
        raise ValueError(f"gradients has shape {rows.shape}: must be (U, p)")
    # The scale of a row could overflow or underflow when squared in float32.
    scale = np.abs(rows).max(axis=1, initial=0.0)
    if not np.isfinite(scale).all():
        raise ValueError("gradients holds NaN or infinity: must be finite")
    zero = scale == 0
    rows /= np.where(zero, 1.0, scale).astype(np.float32)[:, None]
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows /= np.where(zero, 1.0, norms).astype(np.float32)[:, None]
    if zero.any():
        first = np.flatnonzero(zero)[:5].tolist()
        warnings.warn(
            f"{int(zero.sum())} devices have a gradient of length zero (first: {first}); their "
            "similarity to every device is taken as 0",
            stacklevel=2,
        )
    return rows


def cosine_blocks(unit: Float32Array, block: int = 1024) -> Iterator[tuple[slice, Float32Array]]:
    """Rows of the cosine matrix, ``block`` at a time: (slice of rows, (block, U) float32)."""
    if block < 1:
        raise ValueError(f"block = {block}: must be >= 1")
    for first in range(0, len(unit), block):
        rows = slice(first, min(first + block, len(unit)))
        yield rows, unit[rows] @ unit.T


def cosine_matrix(unit: Float32Array, block: int = 1024) -> Float32Array:
    """(U, U) cosines in float32 (400 MB for 10,000 devices)."""
    out = np.empty((len(unit), len(unit)), dtype=np.float32)
    for rows, values in cosine_blocks(unit, block):
        out[rows] = values
    return out


def sketch(gradients: ArrayLike, dimension: int, public_seed: int) -> Float32Array:
    """(U, dimension) Gaussian random projections of (U, p) gradients; one device may pass (1, p).

    All devices use the same matrix, which follows from ``public_seed`` and is drawn in chunks of
    4096 coordinates (never held whole). For unit rows u and v the inner product of the sketches
    misses u.v by more than e with probability at most 4 exp(-(e^2 / 4 - e^3 / 6) dimension)
    (Johnson-Lindenstrauss for u + v and u - v): see ``sketch_error``. Scale the sketches to unit
    length with ``unit_gradients``.
    """
    rows = np.atleast_2d(np.asarray(gradients, dtype=np.float32))
    if dimension < 1:
        raise ValueError(f"dimension = {dimension}: must be >= 1")
    if public_seed < 0:
        raise ValueError(f"public_seed = {public_seed}: must be >= 0")
    out = np.zeros((len(rows), dimension), dtype=np.float32)
    for chunk, first in enumerate(range(0, rows.shape[1], SKETCH_CHUNK)):
        part = rows[:, first : first + SKETCH_CHUNK]
        rng = np.random.default_rng([public_seed, dimension, chunk])
        matrix = rng.standard_normal((SKETCH_CHUNK, dimension), dtype=np.float32)
        out += part @ matrix[: part.shape[1]]
    return out / np.float32(np.sqrt(dimension))


def sketch_error(devices: int, dimension: int, failure: float = 0.01) -> float:
    """Largest error e of any pair's inner product, except with probability ``failure``.

    From the bound in ``sketch`` and a union over the pairs; inf where the bound says nothing.
    """
    if not 0 < failure < 1:
        raise ValueError(f"failure = {failure}: must lie in (0, 1)")
    pairs = max(1.0, devices * (devices - 1) / 2)
    errors = np.linspace(0.0, 1.0, 10_001)
    log_failure = np.log(4 * pairs) - (errors**2 / 4 - errors**3 / 6) * dimension
    enough = np.flatnonzero(log_failure <= np.log(failure))
    return float(errors[enough[0]]) if len(enough) else float("inf")
