"""How a client chooses its cluster; runs on the client, and the choice never leaves it alone."""

import numpy as np
from numpy.typing import NDArray


def nearest_prototype(
    embeddings: NDArray[np.floating], prototypes: NDArray[np.floating]
) -> NDArray[np.intp]:
    """Index of the nearest prototype in Euclidean distance; ties go to the lower index.

    Parameters
    ----------
    embeddings : (n, m) array
    prototypes : (C, m) array
    """
    # |y - c|^2 up to the constant |y|^2.
    distances = (prototypes**2).sum(axis=1) - 2 * embeddings @ prototypes.T
    nearest: NDArray[np.intp] = np.argmin(distances, axis=1)
    return nearest


def lowest_loss(
    losses: NDArray[np.floating],
    favoured: NDArray[np.integer] | None = None,
    hysteresis: float = 0.0,
) -> NDArray[np.intp]:
    """Cluster with the lowest training loss (PINA Eq. 6, IFCA), with hysteresis.

    Parameters
    ----------
    losses : (n, C) array
        Mean loss of each client under each cluster model; NaN counts as worst.
    favoured : (n,) integer array, optional
        Cluster of each client's nearest prototype.
    hysteresis : float
        The favoured cluster is kept unless another is better by more than this many nats. It
        stops noisy models from pulling clients out of a good clustering.
    """
    adjusted = np.where(np.isnan(losses), np.inf, losses)
    if favoured is not None:
        adjusted = adjusted - hysteresis * (favoured[:, None] == np.arange(losses.shape[1]))
    chosen: NDArray[np.intp] = np.argmin(adjusted, axis=1)
    return chosen
