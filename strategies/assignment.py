"""How a client chooses its cluster; runs on the client, and the choice never leaves it alone.

PINA (Eq. 6) and IFCA choose the model of lowest loss. Where there are prototypes, ours adds what
the embedding says: with losses as negative log-likelihoods of labels, and embeddings that scatter
alike in all directions around their prototype, loss + weight |y - c|^2 is the negative
log-likelihood of both. While models are alike the prototypes decide, later whichever is surer, and
a client that the initialisation put in the wrong cluster can leave it.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist


def squared_distances(
    embeddings: NDArray[np.floating], prototypes: NDArray[np.floating]
) -> NDArray[np.float64]:
    """(n, C) squared Euclidean distances of embeddings (n, m) to prototypes (C, m)."""
    return np.asarray(cdist(embeddings, prototypes, "sqeuclidean"), dtype=np.float64)


def nearest_prototype(
    embeddings: NDArray[np.floating], prototypes: NDArray[np.floating]
) -> NDArray[np.intp]:
    """Index of the nearest prototype in Euclidean distance; ties go to the lower index.

    Parameters
    ----------
    embeddings : (n, m) array
    prototypes : (C, m) array
    """
    nearest: NDArray[np.intp] = np.argmin(squared_distances(embeddings, prototypes), axis=1)
    return nearest


def lowest_loss(
    losses: NDArray[np.floating],
    distances: NDArray[np.floating] | None = None,
    weight: float = 0.0,
) -> NDArray[np.intp]:
    """Cluster with the lowest training loss (PINA Eq. 6, IFCA), or loss and distance.

    Parameters
    ----------
    losses : (n, C) array
        Mean loss of each client under each cluster model; NaN counts as worst.
    distances : (n, C) array, optional
        Squared distance of each client's embedding to each prototype.
    weight : float
        Nats that a squared distance of 1 is worth. With n samples a client and embeddings of
        variance v in each direction theory says 1 / (2 n v).
    """
    total = losses if distances is None else losses + weight * distances
    chosen: NDArray[np.intp] = np.argmin(np.where(np.isnan(total), np.inf, total), axis=1)
    return chosen
