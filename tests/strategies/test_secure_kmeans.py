"""Private k-means: embeddings by hand, Lloyd against scikit-learn, merging against brute force."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from strategies.assignment import nearest_prototype
from strategies.clustering.secure_kmeans import (
    client_embedding,
    draw_prototypes,
    lloyd_layout,
    lloyd_step,
    mean_layout,
    merge_prototypes,
    number_of_prototypes,
)
from strategies.privacy.mechanisms import from_grid
from tests.strategies import drawn


def unit_ball(rng: np.random.Generator, count: int, size: int) -> NDArray[np.float64]:
    """Points in three groups, all of norm at most 1."""
    centres = rng.standard_normal((3, size))
    points = centres[rng.integers(0, 3, count)] + 0.6 * rng.standard_normal((count, size))
    scaled: NDArray[np.float64] = points / np.linalg.norm(points, axis=1).max()
    return scaled


# --- embeddings -------------------------------------------------------------------------


def test_embedding_by_hand() -> None:
    """sqrt(n) mean / R: n = 4, m = 4, R = 2.5."""
    whitened = np.array([[1.0, 0, 3, 0], [0, 1, -3, 0], [0.5, 1, 2, 0.2], [0.5, 0, -2, 1]])
    found = client_embedding(whitened)
    # 2 * (.5, .5, 0, .3) = (1, 1, 0, .6), of norm 1.54 < R = 1.25 * 2.
    np.testing.assert_allclose(found, [0.4, 0.4, 0.0, 0.24], rtol=1e-14)
    uncentred = client_embedding(whitened, centred=False)
    np.testing.assert_allclose(uncentred, [0.2, 0.2, 0.0, 0.12], rtol=1e-14)


def test_embedding_is_clipped_to_the_sphere() -> None:
    """m = 1, R = 1.25: 5 is clipped to 1, -1 becomes -.8."""
    assert client_embedding(np.array([[5.0]]))[0] == pytest.approx(1.0)
    assert client_embedding(np.array([[-1.0]]))[0] == pytest.approx(-0.8)


@drawn
@given(st.integers(0, 2**31), st.integers(1, 8), st.floats(-6, 6), st.booleans())
def test_embedding_never_leaves_the_unit_ball(
    seed: int, count: int, exponent: float, centred: bool
) -> None:
    """Whatever the features; 1e-12 is rounding, which the release clips once more."""
    rng = np.random.default_rng(seed)
    whitened = 10.0**exponent * rng.standard_normal((count, 5))
    found = client_embedding(whitened, centred=centred)
    assert found.dtype == np.float64
    assert math.hypot(*found) <= 1 + 1e-12
    layout = mean_layout(5)
    total, _ = layout.encode(found[None], np.zeros(1, dtype=int))
    assert math.hypot(*from_grid(total, layout.sensitivity)) <= 1 + 1e-12


def test_embedding_of_a_client_without_images() -> None:
    """Zeros, not NaN."""
    found = client_embedding(np.zeros((0, 4)))
    np.testing.assert_array_equal(found, np.zeros(4))


# --- releases ---------------------------------------------------------------------------


def test_sensitivities() -> None:
    """The mean's is 1, a Lloyd release's sqrt 2 (METHODS 6.2 divides the vector by sqrt 2)."""
    assert mean_layout(64).sensitivity == 1.0
    assert mean_layout(64).size == 64
    assert lloyd_layout(4, 64).sensitivity == pytest.approx(math.sqrt(2), rel=1e-15)
    assert lloyd_layout(4, 64).size == 4 * 65


def test_number_of_prototypes() -> None:
    """1; 4 for two clusters; 4C beyond."""
    assert [number_of_prototypes(clusters) for clusters in (1, 2, 3, 4, 10)] == [1, 4, 12, 16, 40]


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_first_prototypes(count: int) -> None:
    """At 0.5 / 1.25 from the mean, in opposite pairs, all different, repeatable."""
    mean = np.full(6, 0.1)
    found = draw_prototypes(mean, count, np.random.default_rng(0))
    offsets = found - mean
    assert found.shape == (count, 6)
    np.testing.assert_allclose(np.linalg.norm(offsets, axis=1), 0.4, rtol=1e-12)
    pairs = count // 2
    half = -(-count // 2)
    np.testing.assert_allclose(offsets[half:], -offsets[:pairs], rtol=1e-12)
    assert len(np.unique(found.round(9), axis=0)) == count
    np.testing.assert_array_equal(found, draw_prototypes(mean, count, np.random.default_rng(0)))


# --- Lloyd steps ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_a_step_without_noise_is_lloyds(seed: int) -> None:
    """Assign, encode, sum, decode, step = scikit-learn's KMeans(max_iter=1) from the same init."""
    rng = np.random.default_rng(seed)
    points = unit_ball(rng, 80, 5)
    prototypes = points[rng.choice(80, 4, replace=False)]  # none is empty: each has its own point
    layout = lloyd_layout(4, 5)
    total, _ = layout.encode(points, nearest_prototype(points, prototypes))
    sums, counts = layout.decode(from_grid(total, layout.sensitivity))
    assert counts is not None
    found = lloyd_step(prototypes, sums, counts, smallest_count=0.5)
    reference = KMeans(4, init=prototypes, n_init=1, max_iter=1, algorithm="lloyd", tol=0.0)
    reference.fit(points)
    np.testing.assert_allclose(found, reference.cluster_centers_, atol=1e-9)


def test_a_mostly_noisy_prototype_stays() -> None:
    """Below the smallest count, or negative; exactly at it the prototype moves."""
    prototypes = np.array([[0.1, 0.2], [0.3, 0.4], [-0.5, 0.5]])
    sums = np.array([[5.0, 5.0], [0.5, 1.0], [-1.0, 3.0]])
    counts = np.array([1.9, 2.0, -3.0])
    found = lloyd_step(prototypes, sums, counts, smallest_count=2.0)
    np.testing.assert_allclose(found, [[0.1, 0.2], [0.25, 0.5], [-0.5, 0.5]], rtol=1e-14)


@drawn
@given(st.integers(0, 2**31), st.floats(0.0, 50.0))
def test_prototypes_stay_in_the_unit_ball(seed: int, noise: float) -> None:
    """Whatever the noise: where every embedding lies. The mean's direction is kept."""
    rng = np.random.default_rng(seed)
    prototypes = unit_ball(rng, 6, 4)
    sums, counts = noise * rng.standard_normal((6, 4)), 5 * rng.standard_normal(6)
    found = lloyd_step(prototypes, sums, counts, smallest_count=0.3)
    norms = np.linalg.norm(found, axis=1)
    assert np.all(norms <= 1 + 1e-12)
    moved = counts >= 0.3
    np.testing.assert_array_equal(found[~moved], prototypes[~moved])
    lengths = np.linalg.norm(sums[moved], axis=1, keepdims=True)
    np.testing.assert_allclose(found[moved] * lengths, norms[moved, None] * sums[moved], atol=1e-9)


# --- merging ----------------------------------------------------------------------------


def cost(
    points: NDArray[np.float64], weights: NDArray[np.float64], labels: NDArray[np.intp]
) -> float:
    """Weighted squared distances to the groups' weighted means."""
    total = 0.0
    for label in set(labels.tolist()):
        rows, w = points[labels == label], weights[labels == label]
        centre = (w[:, None] * rows).sum(axis=0) / w.sum()
        total += float((w[:, None] * (rows - centre) ** 2).sum())
    return total


@pytest.mark.parametrize("seed", range(6))
def test_merging_is_the_best_weighted_partition(seed: int) -> None:
    """Against all 3^7 partitions of 7 prototypes into at most 3 groups."""
    rng = np.random.default_rng(seed)
    points, counts = unit_ball(rng, 7, 3), rng.uniform(1, 400, 7)
    found, merged = merge_prototypes(points, counts, 3, rng)
    partitions = [np.array((0, *rest)) for rest in itertools.product(range(3), repeat=6)]
    best = min(partitions, key=lambda labels: cost(points, counts, labels))
    assert len(set(best.tolist())) == 3
    expected = np.array(
        [np.average(points[best == c], axis=0, weights=counts[best == c]) for c in range(3)]
    )
    order, reference = np.lexsort(found.T.round(9)), np.lexsort(expected.T.round(9))
    np.testing.assert_allclose(found[order], expected[reference], atol=1e-9)
    totals = np.array([counts[best == c].sum() for c in range(3)])
    np.testing.assert_allclose(merged[order], totals[reference], rtol=1e-12)


def test_merging_ignores_prototypes_with_a_negative_noisy_count() -> None:
    """They have no clients; their place is only noise."""
    points = np.array([[0.0, 0.0], [0.1, 0.0], [0.9, 0.0], [0.0, 0.9]])
    found, merged = merge_prototypes(
        points, np.array([30.0, 10.0, 20.0, -4.0]), 2, np.random.default_rng(0)
    )
    np.testing.assert_allclose(found[np.argsort(found[:, 0])], [[0.025, 0], [0.9, 0]], atol=1e-12)
    # Its noise stays in the count of its cluster: left out, counts would be too high on average.
    assert merged.sum() == pytest.approx(56.0, rel=1e-12)


def test_merging_without_usable_counts() -> None:
    """Fewer positive counts than clusters: all prototypes count the same."""
    points = np.array([[0.0, 0.0], [0.1, 0.0], [0.9, 0.0], [0.8, 0.0]])
    counts = np.array([-1.0, 3.0, -2.0, -4.0])
    found, merged = merge_prototypes(points, counts, 2, np.random.default_rng(0))
    np.testing.assert_allclose(found[np.argsort(found[:, 0])], [[0.05, 0], [0.85, 0]], atol=1e-12)
    np.testing.assert_allclose(merged[np.argsort(found[:, 0])], [2.0, -6.0], rtol=1e-12)


def test_nothing_to_merge() -> None:
    """As many prototypes as clusters: they are the clusters, in their order."""
    points = np.array([[0.5, 0.0], [0.1, 0.2]])
    found, merged = merge_prototypes(points, np.array([-1.0, 5.0]), 2, np.random.default_rng(0))
    np.testing.assert_array_equal(found, points)
    np.testing.assert_array_equal(merged, [-1.0, 5.0])
