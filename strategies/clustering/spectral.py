"""Initialisation in two releases, for few clients (a deviation from PINA's sketches; sound).

Each of ``secure_kmeans``'s releases spends noise on finding what one covariance matrix tells at
once: the direction in which the clients' embeddings differ most. The first release is the mean and
the second moment of all embeddings y, |y| <= 1::

    [y ; svec(y y')] / sqrt 2        svec: upper triangle, off-diagonal entries times sqrt 2

|svec(y y')| = |y|^2, so its norm is at most 1. From the noisy sums follow the mean, the covariance
and its leading C - 1 eigenvectors; prototypes stand around the mean in their span, at the standard
deviations that exceed an ordinary direction's (the median eigenvalue). Lloyd steps in all m
dimensions follow, as in ``secure_kmeans``; one is enough. Everything after a release is
post-processing.
"""

import numpy as np
from numpy.typing import NDArray

from strategies.release import Slots

SMALLEST_VARIANCE = 1e-4
"""Keeps prototypes apart along a direction that does not exceed the median eigenvalue."""


def moments_size(dimensions: int) -> int:
    """Numbers in the release: m + m (m + 1) / 2."""
    return dimensions + dimensions * (dimensions + 1) // 2


def moments(embeddings: NDArray[np.floating]) -> NDArray[np.float64]:
    """Vectors ``[y ; svec(y y')] / sqrt 2`` (n, m + m (m + 1) / 2) of embeddings (n, m)."""
    y = np.asarray(embeddings, dtype=np.float64)
    stacked = np.hstack([y, svec(y[:, :, None] * y[:, None, :])])
    return np.asarray(stacked / np.sqrt(2), dtype=np.float64)


def svec(matrices: NDArray[np.floating]) -> NDArray[np.float64]:
    """Upper triangles (..., m (m + 1) / 2) of symmetric matrices, off-diagonals times sqrt 2.

    The Euclidean norm of the result is the Frobenius norm of the matrix.
    """
    rows, columns = np.triu_indices(matrices.shape[-1])
    weights = np.where(rows == columns, 1.0, np.sqrt(2))
    return np.asarray(matrices[..., rows, columns] * weights, dtype=np.float64)


def smat(vector: NDArray[np.floating], dimensions: int) -> NDArray[np.float64]:
    """The symmetric matrix (m, m) of a vector that ``svec`` made."""
    upper = np.zeros((dimensions, dimensions))
    upper[np.triu_indices(dimensions)] = vector
    diagonal = np.diag(np.diag(upper))
    strict = (upper - diagonal) / np.sqrt(2)
    return np.asarray(diagonal + strict + strict.T, dtype=np.float64)


def moments_layout(dimensions: int) -> Slots:
    """Layout of the first release; its sensitivity is 1."""
    return Slots(1, moments_size(dimensions), threshold=1.0)


def read_moments(
    total: NDArray[np.floating], cohort: float, dimensions: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean (m,) and second moment (m, m) of the embeddings, from a (noisy) sum of ``moments``.

    Parameters
    ----------
    total : (m + m (m + 1) / 2,) array
    cohort : float
        Expected number of clients in the sum.
    dimensions : int
        m.
    """
    scaled = np.asarray(total, dtype=np.float64) * (np.sqrt(2) / cohort)
    return scaled[:dimensions], smat(scaled[dimensions:], dimensions)


def number_of_prototypes(clusters: int) -> int:
    """Prototypes in the Lloyd steps: C up to two clusters, 4C beyond, merged afterwards."""
    return clusters if clusters <= 2 else 4 * clusters


def place_prototypes(
    mean: NDArray[np.floating],
    second_moment: NDArray[np.floating],
    clusters: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Prototypes in the span of the leading C - 1 eigenvectors around the mean, in the unit ball.

    C = 1: the mean; C = 2: one at either side; C > 2: drawn from a Gaussian.

    Parameters
    ----------
    mean, second_moment : (m,) and (m, m) arrays
    clusters : int
        C; with C > m + 1 all m directions are used.
    rng : numpy Generator
        Used for C > 2 alone.

    Returns
    -------
    (``number_of_prototypes(C)``, m) array
    """
    values, vectors = np.linalg.eigh(second_moment - np.outer(mean, mean))
    leading = np.argsort(values)[::-1][: clusters - 1]
    excess = np.maximum(values[leading] - np.median(values), SMALLEST_VARIANCE)
    axes = vectors[:, leading] * np.sqrt(excess)  # (m, C - 1)
    if clusters <= 2:
        places = np.array([[1.0], [-1.0]])[:clusters, : axes.shape[1]]
    else:
        places = rng.standard_normal((number_of_prototypes(clusters), axes.shape[1]))
    prototypes = mean + places @ axes.T
    prototypes /= np.maximum(1.0, np.linalg.norm(prototypes, axis=1, keepdims=True))
    return np.asarray(prototypes, dtype=np.float64)
