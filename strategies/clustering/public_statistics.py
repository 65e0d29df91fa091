"""Whiteners computed from PUBLIC images: the only knowledge of the features that is not private.

``embedding`` (m, h) projects a feature to the m leading principal directions of the public
features, each scaled to unit variance; ``head`` (h, h) whitens what the classification head
sees. Without public data the mean is zero, ``head`` the identity, and ``embedding`` a random
orthonormal projection from a public seed, of features that are brought to the same norm.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from strategies.clustering.secure_kmeans import client_embedding

PUBLIC_SEED = 20260422
"""Seed of everything random that is the same for all and carries no secret."""
PSEUDO_CLIENTS = 200
"""P: pseudo-clients that are drawn from the public images."""


@dataclasses.dataclass(frozen=True)
class PublicStatistics:
    """Public mean and whiteners.

    Attributes
    ----------
    source : str
        Where the public images come from ("none" without).
    mean : (h,) float32
    embedding : (m, h) float32
    head : (h, h) float32
    """

    source: str
    mean: NDArray[np.float32]
    embedding: NDArray[np.float32]
    head: NDArray[np.float32]

    @property
    def centred(self) -> bool:
        """Whether the mean was measured on public data."""
        return self.source != "none"

    def whitened(self, features: NDArray[np.floating]) -> NDArray[np.float64]:
        """Rows (n, m) of features (n, h), with a typical norm of sqrt(m) in either case.

        ``P (x - mu)``; without public data ``sqrt(m) P x / |P x|``, for nothing is known of the
        features' units.
        """
        rows = (np.asarray(features, dtype=np.float64) - self.mean) @ self.embedding.T
        if not self.centred:
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            rows *= np.sqrt(rows.shape[1]) / np.where(norms > 0, norms, 1.0)
        return np.asarray(rows, dtype=np.float64)


def measure(
    features: NDArray[np.floating], source: str, dimensions: int = 64, damping: float = 0.1
) -> PublicStatistics:
    """Statistics of public features.

    Parameters
    ----------
    features : (n, h) array
    source : str
        Name of the public data, for reports.
    dimensions : int
        m; capped at h and at n - 1.
    damping : float
        Added to the covariance for the head, in units of its mean eigenvalue.

    Raises
    ------
    ValueError
        If there are fewer than two images or a feature is not finite.
    """
    if len(features) < 2 or not np.isfinite(features).all():
        raise ValueError(f"public data {source}: needs at least 2 images with finite features")
    rows = np.asarray(features, dtype=np.float64)
    mean = rows.mean(axis=0)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(rows, rowvar=False)))
    if not values.max() > 0:
        raise ValueError(f"public data {source}: its images all have the same features")
    leading = np.argsort(values)[::-1][: min(dimensions, rows.shape[1], len(rows) - 1)]
    floor = 1e-6 * values.max()
    embedding = vectors[:, leading].T / np.sqrt(np.maximum(values[leading], floor))[:, None]
    head = (vectors / np.sqrt(np.maximum(values, 0.0) + damping * values.mean())) @ vectors.T
    return PublicStatistics(
        source, mean.astype(np.float32), embedding.astype(np.float32), head.astype(np.float32)
    )


def without_public_data(width: int, dimensions: int = 64) -> PublicStatistics:
    """No whitening: zero mean, identity, random orthonormal projection from PUBLIC_SEED."""
    rng = np.random.default_rng(PUBLIC_SEED)
    basis, _ = np.linalg.qr(rng.standard_normal((width, min(dimensions, width))))
    return PublicStatistics(
        "none",
        np.zeros(width, dtype=np.float32),
        basis.T.astype(np.float32),
        np.eye(width, dtype=np.float32),
    )


def pseudo_clients(
    features: NDArray[np.floating],
    statistics: PublicStatistics,
    images: int,
    count: int = PSEUDO_CLIENTS,
) -> NDArray[np.float64]:
    """Embeddings (P, m) of groups of public images, drawn without repetition from PUBLIC_SEED.

    Parameters
    ----------
    features : (n, h) array
        Of the public images.
    statistics : PublicStatistics
        Mean and whitener of the clients' embeddings.
    images : int
        Images of a typical client, >= 1; capped at n.
    count : int
        P.

    Raises
    ------
    ValueError
        If ``images`` is below 1 or there are no features.
    """
    if images < 1 or len(features) < 1:
        raise ValueError(f"images = {images} of {len(features)}: must be >= 1")
    rng = np.random.default_rng(PUBLIC_SEED)
    size = min(images, len(features))
    groups = [rng.choice(len(features), size, replace=False) for _ in range(count)]
    return np.stack(
        [
            client_embedding(statistics.whitened(features[group]), centred=statistics.centred)
            for group in groups
        ]
    )
