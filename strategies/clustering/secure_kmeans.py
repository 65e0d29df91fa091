"""Private initialisation by secure sums (our deviation from PINA's sketches; sound).

Every client embeds its images as one vector ``y`` with ``|y| <= 1``. The server learns the noisy
mean of all ``y``, draws prototypes around it, and improves them by Lloyd steps: a client adds its
``y`` and a one to the slot of its nearest prototype; the new prototype is noisy sum over noisy
count. More prototypes than clusters are used (twice as many for C = 2, where two alone end in a
poor local optimum in some 5 % of draws; four times as many for C > 2) and merged at the end by
count-weighted k-means. The choice of the nearest prototype happens on the client;
merging is post-processing. Both releases are ``Slots`` layouts whose sensitivity the ledger
records.
"""

import numpy as np
from numpy.typing import NDArray

from strategies.release import Slots

RADIUS = 1.25
"""A typical whitened embedding has norm sqrt(m); it is clipped at RADIUS times that."""


def client_embedding(
    whitened: NDArray[np.floating], *, centred: bool = True
) -> NDArray[np.float64]:
    """Embedding ``sqrt(n) * mean_j w_j``, clipped to ``R = 1.25 sqrt(m)``, over R.

    Parameters
    ----------
    whitened : (n, m) array
        ``PublicStatistics.whitened`` of the client's images.
    centred : bool
        Whether public data centred them. Without, the factor sqrt(n) would only push every client
        to the sphere, and is left out.

    Returns
    -------
    (m,) float64 array of norm <= 1; zeros for a client without images.
    """
    if len(whitened) == 0:
        return np.zeros(whitened.shape[1])
    scale = np.sqrt(len(whitened)) if centred else 1.0
    embedding = scale * whitened.mean(axis=0)
    radius = RADIUS * np.sqrt(whitened.shape[1])
    return np.asarray(embedding / max(radius, float(np.linalg.norm(embedding))), dtype=np.float64)


def mean_layout(dimensions: int) -> Slots:
    """Layout of the first release: the sum of all embeddings."""
    return Slots(1, dimensions, threshold=1.0)


def lloyd_layout(prototypes: int, dimensions: int) -> Slots:
    """Layout of a Lloyd release: per prototype the sum of its embeddings and their count."""
    return Slots(prototypes, dimensions, threshold=1.0, kappa=1.0)


def number_of_prototypes(clusters: int) -> int:
    """Prototypes used in the Lloyd steps: 1, 4, or 4C for C > 2."""
    return {1: 1, 2: 4}.get(clusters, 4 * clusters)


def draw_prototypes(
    mean: NDArray[np.floating], count: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """``count`` prototypes (count, m) around the mean in opposite pairs.

    The spread is half a typical embedding's length; all lie in the unit ball. No client data is
    used but the released mean.
    """
    half = rng.standard_normal((-(-count // 2), mean.size))
    directions = np.concatenate([half, -half])[:count]
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    prototypes = mean + directions * (0.5 / RADIUS)
    prototypes /= np.maximum(1.0, np.linalg.norm(prototypes, axis=1, keepdims=True))
    return np.asarray(prototypes, dtype=np.float64)


def lloyd_step(
    prototypes: NDArray[np.floating],
    sums: NDArray[np.floating],
    counts: NDArray[np.floating],
    smallest_count: float,
) -> NDArray[np.float64]:
    """New prototypes from (noisy) sums (P, m) and counts (P,).

    A prototype whose count is below ``smallest_count`` is mostly noise and stays where it was;
    the others are kept inside the unit ball, where every embedding lies.
    """
    alive = counts >= smallest_count
    moved = sums / np.maximum(counts, smallest_count)[:, None]
    moved /= np.maximum(1.0, np.linalg.norm(moved, axis=1, keepdims=True))
    return np.where(alive[:, None], moved, prototypes)


def merge_prototypes(
    prototypes: NDArray[np.floating],
    counts: NDArray[np.floating],
    clusters: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Merge (P, m) prototypes into (C, m) by k-means weighted with their noisy counts (P,).

    Returns
    -------
    centres : (C, m) array
    counts : (C,) array
        Noisy counts of the merged prototypes: sums, in which negative ones count as they are.
    """
    noisy = np.asarray(counts, dtype=np.float64)
    if len(prototypes) == clusters:
        return np.asarray(prototypes, dtype=np.float64), noisy
    weights = np.maximum(noisy, 0.0)
    if np.count_nonzero(weights) < clusters:
        weights = np.ones(len(prototypes))
    from sklearn.cluster import KMeans  # here, for a client never needs this slow import

    kmeans = KMeans(clusters, n_init=10, random_state=int(rng.integers(2**31)))
    kmeans.fit(prototypes, sample_weight=weights)
    merged = np.zeros(clusters)
    np.add.at(merged, kmeans.labels_, noisy)
    return np.asarray(kmeans.cluster_centers_, dtype=np.float64), merged
