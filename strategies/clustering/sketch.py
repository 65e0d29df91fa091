"""PINA's printed initialisation (arXiv:2604.20596, Section 3.2): sparse LoRA sketches.

Every client keeps the two largest and the two smallest values of its update of the LoRA vector B
and sends them with noise; the server runs k-means on the sketches.

What it does not guarantee: WHICH four of the h coordinates are sent is not noised at all, and
that support identifies clients. No finite (epsilon, delta) covers it; ``LORA_SKETCH_WARNING``
says so wherever such a run is reported.
"""

import numpy as np
from numpy.typing import NDArray

from strategies.privacy.clipping import clip_l2

LORA_SKETCH_WARNING = (
    "The sketches of init = 'lora-sketch' are not private: which coordinates a client sends "
    "is not protected, so no epsilon is claimed for this run."
)


def largest_and_smallest(update: NDArray[np.floating], each: int = 2) -> NDArray[np.intp]:
    """Indices of the ``each`` largest and the ``each`` smallest values, ascending.

    Raises
    ------
    ValueError
        If the vector has fewer than ``2 * each`` values.
    """
    if update.size < 2 * each:
        raise ValueError(f"update has {update.size} values: a sketch needs at least {2 * each}")
    order = np.argsort(update, kind="stable")
    return np.sort(np.concatenate([order[:each], order[-each:]]))


def sketch(
    update: NDArray[np.floating],
    threshold: float,
    noise_multiplier: float,
    rng: np.random.Generator,
    each: int = 2,
) -> NDArray[np.float64]:
    """Keep the extreme values, clip to ``threshold`` (S_in, Eq. 5 and 7), add noise to them.

    Parameters
    ----------
    update : (h,) array
        The update of B.
    threshold : float
        S_in.
    noise_multiplier : float
        Noise on the kept values has standard deviation ``noise_multiplier * threshold``.
    rng : numpy Generator
        Source of the noise.

    Returns
    -------
    (h,) float64 array, zero outside the support.
    """
    support = largest_and_smallest(update, each)
    kept = clip_l2(update[support], threshold)
    result = np.zeros(update.size)
    result[support] = kept + noise_multiplier * threshold * rng.standard_normal(support.size)
    return result


def cluster_sketches(
    sketches: NDArray[np.floating], clusters: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Centroids (C, h) of the sketches by k-means; fewer sketches than clusters are an error."""
    if len(sketches) < clusters:
        raise ValueError(
            f"{len(sketches)} sketches for {clusters} clusters: sample more clients or rounds"
        )
    from sklearn.cluster import KMeans  # here, for a client never needs this slow import

    kmeans = KMeans(clusters, n_init=10, random_state=int(rng.integers(2**31)))
    return np.asarray(kmeans.fit(sketches).cluster_centers_, dtype=np.float64)
