"""The secure sum: what stands between the clients' contributions and the server.

``SecureSum`` is the interface that a cryptographic protocol can fill: integers in, one noisy
integer vector out. ``TrustedSum`` is the in-process one: the server adds the vectors itself, so
it SEES every contribution and has to be trusted (``epsilon_server`` is then undefined).
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from strategies.privacy.mechanisms import from_grid, gaussian_on_grid


class SecureSum(Protocol):
    """Adds integer vectors of one release and reveals their noisy sum once."""

    trusted: bool
    """Whether the server sees single contributions and must be trusted."""

    def add(self, contribution: NDArray[np.int64]) -> None:
        """Take in one contribution (or a node's sum of several)."""

    def release(self, noise_multiplier: float, sensitivity: float) -> NDArray[np.float64]:
        """Noisy sum in the units of the sensitivity; the object cannot be used again."""


class TrustedSum:
    """Secure sum by a server that is trusted.

    Parameters
    ----------
    size : int
        Length of the vectors.
    rng : numpy Generator or None
        Noise source; None is the operating system (see ``gaussian_on_grid``).
    """

    trusted = True

    def __init__(self, size: int, rng: np.random.Generator | None) -> None:
        self._total: NDArray[np.int64] | None = np.zeros(size, dtype=np.int64)
        self._rng = rng

    def add(self, contribution: NDArray[np.int64]) -> None:
        """Add one vector.

        Raises
        ------
        ValueError
            If it has another shape or dtype.
        RuntimeError
            After the release.
        """
        if self._total is None:
            raise RuntimeError("this secure sum has already been released")
        if contribution.shape != self._total.shape or contribution.dtype != np.int64:
            raise ValueError(
                f"contribution of shape {contribution.shape} and dtype {contribution.dtype}: "
                f"must be {self._total.shape} and int64"
            )
        self._total += contribution

    def release(self, noise_multiplier: float, sensitivity: float) -> NDArray[np.float64]:
        """Add Gaussian noise of ``noise_multiplier * sensitivity`` and reveal the sum."""
        if self._total is None:
            raise RuntimeError("this secure sum has already been released")
        total, self._total = self._total, None
        if noise_multiplier > 0:
            total += gaussian_on_grid(total.size, noise_multiplier, self._rng)
        return from_grid(total, sensitivity)
