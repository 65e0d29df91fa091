"""Whiteners of public features: against the covariance and scikit-learn's PCA."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from strategies.clustering.public_statistics import (
    measure,
    pseudo_clients,
    without_public_data,
)


@pytest.fixture
def features() -> NDArray[np.float64]:
    """300 correlated features of width 12 around a mean that is not zero."""
    rng = np.random.default_rng(11)
    return rng.standard_normal((300, 12)) @ rng.standard_normal((12, 12)) + 5 * np.arange(12)


def test_embedding_whitens_the_leading_directions(features: NDArray[np.float64]) -> None:
    """P Cov P^T = I, with scikit-learn's components up to sign, in the order of their variance."""
    statistics = measure(features, "test", dimensions=5)
    embedding = statistics.embedding.astype(np.float64)
    covariance = np.cov(features, rowvar=False)
    np.testing.assert_allclose(embedding @ covariance @ embedding.T, np.eye(5), atol=1e-5)
    embedded = (features - statistics.mean) @ embedding.T
    expected = PCA(5, whiten=True, svd_solver="full").fit_transform(features)
    np.testing.assert_allclose(np.abs(embedded), np.abs(expected), atol=1e-4)
    np.testing.assert_allclose(statistics.mean, features.mean(axis=0), rtol=1e-6)
    assert statistics.centred
    assert statistics.source == "test"


def test_head_whitens_everything_without_damping(features: NDArray[np.float64]) -> None:
    """The covariance of whitened features tends to the identity with damping -> 0."""
    covariance = np.cov(features, rowvar=False)
    distances = []
    for damping in (1.0, 1e-2, 1e-4, 1e-10):
        head = measure(features, "test", damping=damping).head.astype(np.float64)
        np.testing.assert_allclose(head, head.T, atol=1e-6)
        distances.append(np.abs(head @ covariance @ head - np.eye(12)).max())
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-4


def test_head_with_damping(features: NDArray[np.float64]) -> None:
    """H (Cov + damping * mean eigenvalue * I) H = I."""
    covariance = np.cov(features, rowvar=False)
    ridge = 0.1 * np.trace(covariance) / 12 * np.eye(12)
    head = measure(features, "test", damping=0.1).head.astype(np.float64)
    np.testing.assert_allclose(head @ (covariance + ridge) @ head, np.eye(12), atol=1e-5)


@pytest.mark.parametrize(
    ("count", "dimensions", "expected"), [(300, 64, 12), (6, 64, 5), (300, 3, 3)]
)
def test_dimensions_are_capped(
    features: NDArray[np.float64], count: int, dimensions: int, expected: int
) -> None:
    """At the width and at n - 1: beyond, there is no variance to scale."""
    statistics = measure(features[:count], "test", dimensions)
    assert statistics.embedding.shape == (expected, 12)
    assert statistics.head.shape == (12, 12)
    covariance = np.cov(features[:count], rowvar=False)
    embedding = statistics.embedding.astype(np.float64)
    np.testing.assert_allclose(embedding @ covariance @ embedding.T, np.eye(expected), atol=1e-4)


def test_a_constant_feature_stays_finite(features: NDArray[np.float64]) -> None:
    """An eigenvalue of zero is not divided by."""
    features[:, 3] = 1.0
    statistics = measure(features, "test", dimensions=12)
    assert np.isfinite(statistics.embedding).all()
    assert np.isfinite(statistics.head).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_refuses_unusable_features(features: NDArray[np.float64], bad: float) -> None:
    """NaN, and too few images for a covariance."""
    with pytest.raises(ValueError, match="2 images"):
        measure(features[:1], "test")
    features[7, 7] = bad
    with pytest.raises(ValueError, match="finite"):
        measure(features, "test")


def test_without_public_data() -> None:
    """Zero mean, identity, orthonormal rows that are the same for everybody."""
    statistics = without_public_data(20, 8)
    projection = statistics.embedding.astype(np.float64)
    np.testing.assert_allclose(projection @ projection.T, np.eye(8), atol=1e-6)
    np.testing.assert_array_equal(statistics.head, np.eye(20))
    assert not statistics.mean.any()
    assert not statistics.centred
    np.testing.assert_array_equal(statistics.embedding, without_public_data(20, 8).embedding)
    assert without_public_data(5, 8).embedding.shape == (5, 5)


def test_rows_are_as_long_with_public_data_as_without(features: NDArray[np.float64]) -> None:
    """A mean square of m in the units of the public data; the same norm whatever the units."""
    known = measure(features, "test", dimensions=8)
    rows = known.whitened(features)
    np.testing.assert_allclose((rows**2).sum(axis=1).mean(), 8, rtol=0.01)
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-5)
    unknown = without_public_data(features.shape[1], 8)
    rows = unknown.whitened(features)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 8**0.5, rtol=1e-5)
    np.testing.assert_allclose(unknown.whitened(1e-3 * features), rows, rtol=1e-9)
    assert not unknown.whitened(np.zeros((2, features.shape[1]))).any()


def test_pseudo_clients(features: NDArray[np.float64]) -> None:
    """Like clients of whitened images: mean 0, every number's variance n / R^2 n = .64 / m."""
    statistics = measure(features, "test", dimensions=8)
    found = pseudo_clients(features, statistics, images=10, count=400)
    assert found.shape == (400, 8)
    assert np.linalg.norm(found, axis=1).max() <= 1 + 1e-6
    # Without repetition the variance of a mean of 10 of 300 is 290 / 299 of the plain one, and
    # clipping at 1.25 typical norms takes some: 10 % covers both and 400 draws.
    assert found.var(axis=0).mean() == pytest.approx(0.64 / 8, rel=0.2)
    np.testing.assert_array_equal(found, pseudo_clients(features, statistics, 10, 400))
    everything = pseudo_clients(features, statistics, images=10_000, count=2)
    np.testing.assert_allclose(everything, 0.0, atol=1e-4)
    with pytest.raises(ValueError, match="images = 0 of 300: must be >= 1"):
        pseudo_clients(features, statistics, images=0)
