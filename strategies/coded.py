"""Cluster models from coded releases, shrunk towards their common part by James and Stein.

The server's side of ``strategies.release.Coded``, a deviation from PINA (arXiv:2604.20596): with
independent slots every cluster model carries the noise of a whole release, so with few clients
clustering costs more than it gives. Here a common base moves by the noisy mean over all clients,
and each cluster adds a difference whose noise is known and which vanishes where it is only noise.
Then the method is private FedAvg.

In one round, with s the standard deviation of the noise on every released number, T the common
part, M the contrasts, N = q K the expected cohort and n_c what cluster c is taken to have of it::

    U_c      = T / C + (C - 1) / (C a) (v_c . M)           noisy sum of cluster c
    base    += T / N
    Delta_c += U_c / n_c - T / N
             = T (1 / (C n_c) - 1 / N) + (C - 1) / (C a n_c) (v_c . M)

T and M have independent noise and |v_c| = 1, so with the covariance of U_c and T accounted for

    Var Delta_c += s^2 [(1 / (C n_c) - 1 / N)^2 + ((C - 1) / (C a n_c))^2]

on every number; the noise of the rounds is independent, so variances add. With even clusters,
n_c = N / C, the first term is zero. The model of cluster c is

    W_c = start_c + base + shrink(Delta_c, Var Delta_c)

with the positive-part James-Stein estimator, block by block (James and Stein, 1961; the factor
``1 - dim v / |block|^2`` is the plain one, without the subtraction of 2 from dim). ``start_c`` is
the same for all clusters after a private initialisation. All of it is post-processing of releases.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

BLOCK = 320
"""Contiguous numbers that are shrunk by one factor."""
SMALLEST_SHARE = 0.1
"""A cluster is taken to have at least this part of an even share, 1 / C."""


def shares_of(counts: NDArray[np.floating]) -> NDArray[np.float64]:
    """Shares (C,) that sum to one, from noisy counts (C,).

    Each is raised to ``SMALLEST_SHARE / C`` before they are normalised for good: a divisor made of
    noise would let a cluster that grew since then take giant steps. Even shares if no count is
    positive.
    """
    positive = np.maximum(np.asarray(counts, dtype=np.float64), 0.0)
    if not positive.sum() > 0:
        return np.full(positive.size, 1 / positive.size)
    shares = np.maximum(positive / positive.sum(), SMALLEST_SHARE / positive.size)
    normalised: NDArray[np.float64] = shares / shares.sum()
    return normalised


def difference_variance(
    counts: NDArray[np.floating], noise_std: float, contrast: float
) -> NDArray[np.float64]:
    """Variance (C,) of the noise that one round adds to every number of a cluster's difference.

    Parameters
    ----------
    counts : (C,) array
        n_c > 0, clients that the clusters are taken to have; their sum is N.
    noise_std : float
        s, of every number of the release.
    contrast : float
        a.
    """
    size = len(counts)
    common = 1 / (size * counts) - 1 / counts.sum()
    own = (size - 1) / (size * contrast * counts)
    variance: NDArray[np.float64] = noise_std**2 * (common**2 + own**2)
    return variance


def shrink(
    differences: NDArray[np.floating], variance: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Positive-part James-Stein towards zero, in blocks of at most ``BLOCK`` contiguous numbers.

    Parameters
    ----------
    differences : (C, D) array
    variance : (C,) array
        Variance of the noise on every number of a row; rows without noise stay as they are.
    """
    starts = np.arange(0, differences.shape[1], BLOCK)
    sizes = np.diff([*starts, differences.shape[1]])
    energy = np.add.reduceat(differences**2, starts, axis=1)
    noise = sizes * variance[:, None]
    # An empty block stays empty whatever its factor.
    factors = np.maximum(0.0, 1 - np.divide(noise, energy, np.zeros_like(noise), where=energy > 0))
    shrunk: NDArray[np.float64] = differences * np.repeat(factors, sizes, axis=1)
    return shrunk


@dataclasses.dataclass
class CodedModels:
    """Cluster models as a common base and differences, in float64.

    Attributes
    ----------
    start : (C, D) array
        The models before the first round.
    base : (D,) array
        What all models have moved together.
    differences : (C, D) array
        Delta_c, with their noise.
    variance : (C,) array
        Variance of the noise on every number of Delta_c.
    """

    start: NDArray[np.float64]
    base: NDArray[np.float64]
    differences: NDArray[np.float64]
    variance: NDArray[np.float64]

    @classmethod
    def starting_at(cls, rows: NDArray[np.float64]) -> Self:
        """Models (C, D) before the first round."""
        clusters, width = rows.shape
        return cls(rows, np.zeros(width), np.zeros_like(rows), np.zeros(clusters))

    def add(
        self,
        sums: NDArray[np.float64],
        counts: NDArray[np.float64],
        noise_std: float,
        contrast: float,
    ) -> None:
        """Take in one release.

        Parameters
        ----------
        sums : (C, D) array
            U_c of ``Coded.decode``; they add up to T.
        counts : (C,) array
            n_c, which add up to N.
        noise_std : float
            s, of every number of the release.
        contrast : float
            a of the release.
        """
        mean = sums.sum(axis=0) / counts.sum()
        self.base = self.base + mean
        self.differences = self.differences + sums / counts[:, None] - mean
        self.variance = self.variance + difference_variance(counts, noise_std, contrast)

    def rows(self) -> NDArray[np.float64]:
        """The cluster models (C, D)."""
        return self.start + self.base + shrink(self.differences, self.variance)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Everything that goes on in the next round, by names of its own."""
        return {
            f"coded-{field.name}": getattr(self, field.name) for field in dataclasses.fields(self)
        }

    @classmethod
    def restored(cls, state: Mapping[str, NDArray[Any]]) -> Self | None:
        """Inverse of ``state``; None if there is none."""
        if "coded-start" not in state:
            return None
        return cls(
            **{
                field.name: np.array(state[f"coded-{field.name}"], dtype=np.float64)
                for field in dataclasses.fields(cls)
            }
        )
