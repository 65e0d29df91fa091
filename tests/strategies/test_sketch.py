"""The printed sketch: support, clipping, noise on the support only, k-means."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from strategies.clustering.sketch import cluster_sketches, largest_and_smallest, sketch
from tests.strategies import drawn


def test_support_by_hand() -> None:
    """The two largest and the two smallest values, signed; indices ascending."""
    update = np.array([0.1, -5.0, 3.0, 0.0, 7.0, -0.2, 2.0])
    np.testing.assert_array_equal(largest_and_smallest(update), [1, 2, 4, 5])
    np.testing.assert_array_equal(largest_and_smallest(update, 1), [1, 4])


@drawn
@given(st.integers(0, 2**31), st.integers(4, 30))
def test_support_separates(seed: int, size: int) -> None:
    """Nothing outside lies beyond the two of either end; always four different indices."""
    update = np.random.default_rng(seed).integers(-5, 5, size).astype(float)  # with ties
    support = largest_and_smallest(update)
    assert len(set(support.tolist())) == 4
    assert sorted(update[support]) == [*sorted(update)[:2], *sorted(update)[-2:]]


def test_sketch_without_noise_by_hand() -> None:
    """Kept (-3, 0, 0, 4) with norm 5 is clipped to S_in = 1 after the selection."""
    update = np.array([4.0, 0.0, 0.0, 0.0, -3.0])
    expected = [0.8, 0.0, 0.0, 0.0, -0.6]
    result = sketch(update, 1.0, 0.0, np.random.default_rng(0))
    np.testing.assert_allclose(result, expected, atol=1e-15)
    # The norm that counts is that of the kept values: the other 100 do not enter.
    wide = np.concatenate([[3.0, 0.5, -0.5, -4.0], np.full(100, 0.4)])
    kept = sketch(wide, 1.0, 0.0, np.random.default_rng(0))
    np.testing.assert_allclose(kept[:4], wide[:4] / math.sqrt(25.5), rtol=1e-12)
    assert not kept[4:].any()


def test_sketch_noise_has_its_standard_deviation_on_the_support_only() -> None:
    """sum (g / z S_in)^2 over 4 x 3,000 numbers ~ chi^2(12,000), within 99.8 %."""
    rng = np.random.default_rng(7)
    update = np.array([0.3, 0.0, -0.2, 0.1, -0.4, 0.05])
    support = largest_and_smallest(update)
    clean = sketch(update, 0.25, 0.0, rng)
    noise = np.array([sketch(update, 0.25, 1.7, rng) - clean for _ in range(3000)])
    assert not np.delete(noise, support, axis=1).any()
    energy = np.sum((noise / (1.7 * 0.25)) ** 2)
    assert stats.chi2.ppf(0.001, 12_000) < energy < stats.chi2.isf(0.001, 12_000)


def test_too_short_for_a_sketch() -> None:
    """Fewer values than are kept."""
    with pytest.raises(ValueError, match="3 values"):
        largest_and_smallest(np.zeros(3))


def test_centroids_of_separated_groups_are_their_means() -> None:
    """k-means on groups far apart; order does not matter."""
    rng = np.random.default_rng(2)
    centres = np.array([[10.0, 0, 0], [0, 10.0, 0], [0, 0, 10.0]])
    groups = [
        centre + rng.standard_normal((n, 3)) for centre, n in zip(centres, (5, 9, 20), strict=True)
    ]
    found = cluster_sketches(rng.permutation(np.concatenate(groups)), 3, rng)
    expected = np.array([group.mean(axis=0) for group in groups])
    np.testing.assert_allclose(found[np.argsort(-found @ [2.0, 1.0, 0.0])], expected, rtol=1e-12)


def test_fewer_sketches_than_clusters() -> None:
    """Said in words, instead of an error of scikit-learn."""
    with pytest.raises(ValueError, match="sample more"):
        cluster_sketches(np.zeros((1, 4)), 2, np.random.default_rng(0))
