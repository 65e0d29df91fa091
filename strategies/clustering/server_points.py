"""FedDP-KMeans' initialisation by the server's own data, for comparison.

Scott, Lampert and Saulpic, "Differentially private federated k-means with server-side data" (ICML
2025), FedDP-Init: a noisy second moment of the clients' data gives their leading C-dimensional
subspace; the server projects its own points onto it; a noisy histogram tells how many clients are
nearest to each; weighted k-means of these points gives C centres, which Lloyd steps then improve.

Deviations: a client has one embedding, not many rows, so user and data-point privacy coincide; the
first release is that of ``spectral`` and also holds the mean, which is not used here; the server's
points are embeddings of groups of public images (``public_statistics.pseudo_clients``), for single
images are no clients; k-means is scikit-learn's.
"""

import numpy as np
from numpy.typing import NDArray

from strategies.release import Slots


def project(
    points: NDArray[np.floating], second_moment: NDArray[np.floating], clusters: int
) -> NDArray[np.float64]:
    """Points (P, m) projected onto the leading C eigenvectors, in m dimensions.

    The nearest projected point in m dimensions is the nearest one in the subspace.

    Parameters
    ----------
    points : (P, m) array
    second_moment : (m, m) array
        Of the clients' embeddings, around zero as in the paper.
    clusters : int
        C; more than m project onto everything.
    """
    values, vectors = np.linalg.eigh(second_moment)
    leading = vectors[:, np.argsort(values)[::-1][:clusters]]
    projected: NDArray[np.float64] = points @ leading @ leading.T
    return projected


def histogram_layout(points: int) -> Slots:
    """Layout of the second release: each client's one-hot vector (P,); its sensitivity is 1."""
    return Slots(points, 1, threshold=1.0)
