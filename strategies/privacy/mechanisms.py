"""The Gaussian mechanism on an integer grid.

A client rounds its clipped contribution TOWARDS ZERO onto a grid (so its norm cannot grow), a
secure sum adds integers, and the noise is a Gaussian rounded to the same grid. Since
``x + round(g) = round(x + g)`` for an integer ``x``, the release is post-processing of the ideal
Gaussian mechanism; the low-order bits of floating-point noise, through which real-valued
releases leak (Mironov, CCS 2012), do not exist. Integer sums have no order, so results do not
depend on the order of replies or on how clients are spread over nodes.
"""

import os

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

GRID_STEPS = 2**32
"""Grid steps in one sensitivity: a resolution of 2e-10, and 2^31 contributions sum in 64 bits."""
LARGEST_MULTIPLIER = 1e6
"""Noise of more sensitivities would leave the 64-bit grid; no release could be of use there."""


def to_grid(contribution: NDArray[np.float64], sensitivity: float) -> NDArray[np.int64]:
    """Round values towards zero onto the grid of step ``sensitivity / GRID_STEPS``.

    Raises
    ------
    ValueError
        If a value is not finite or exceeds the sensitivity: it was not clipped.
    """
    scaled = contribution * (GRID_STEPS / sensitivity)
    if not np.all(np.abs(scaled) <= GRID_STEPS * (1 + 1e-9)):
        raise ValueError("a contribution exceeds its sensitivity; clip it first")
    return np.trunc(scaled).astype(np.int64)


def from_grid(total: NDArray[np.int64], sensitivity: float) -> NDArray[np.float64]:
    """Values of grid integers, in the units of the sensitivity."""
    return total.astype(np.float64) * (sensitivity / GRID_STEPS)


def gaussian_on_grid(
    size: int, noise_multiplier: float, rng: np.random.Generator | None
) -> NDArray[np.int64]:
    """Gaussian noise of standard deviation ``noise_multiplier`` sensitivities, on the grid.

    Parameters
    ----------
    size : int
        Number of coordinates.
    noise_multiplier : float
        Standard deviation in units of the sensitivity; 0 gives zeros.
    rng : numpy Generator or None
        A seeded generator for simulations; None draws from the operating system, the only choice
        for which a privacy guarantee holds.

    Raises
    ------
    ValueError
        If ``noise_multiplier`` is not in [0, LARGEST_MULTIPLIER].
    """
    if not 0 <= noise_multiplier <= LARGEST_MULTIPLIER:
        raise ValueError(
            f"noise_multiplier = {noise_multiplier}: must be in [0, {LARGEST_MULTIPLIER:g}]"
        )
    normal = rng.standard_normal(size) if rng is not None else _system_normal(size)
    return np.rint(normal * (noise_multiplier * GRID_STEPS)).astype(np.int64)


def _system_normal(size: int) -> NDArray[np.float64]:
    """Standard normal numbers from the operating system's randomness, by inversion.

    A random sign, and the lower tail of a uniform number in (0, 1/2) with 126 random bits. Small
    floats are dense, so the tail is as finely resolved as the centre: numbers far out do not fall
    on a coarse set of values that would give away what they were added to.
    """
    words = np.frombuffer(os.urandom(16 * size), dtype=np.uint64).reshape(2, size)
    negative = (words[0] & np.uint64(1)).astype(bool)
    high = (words[0] >> np.uint64(1)).astype(np.float64)
    low = (words[1].astype(np.float64) + 0.5) * 2.0**-64
    tail = -ndtri((high + low) * 2.0**-64)
    signed: NDArray[np.float64] = np.where(negative, -tail, tail)
    return signed
