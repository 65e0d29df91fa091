"""Eq. 8, Eq. 9 and its variants by hand; the Shapiro-Wilk statistic; the energy test."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from strategies.clustering.normality import (
    equalise_norms,
    exceeds_noise,
    normality,
    scale_by_normality,
)
from tests.strategies import drawn


def test_eq_8_by_hand() -> None:
    """Norms 5, 10 and 2.5: all become 2.5."""
    aggregates = np.array([[3.0, 4.0], [0.0, -10.0], [1.5, 2.0]])
    expected = [[1.5, 2.0], [0.0, -2.5], [1.5, 2.0]]
    np.testing.assert_allclose(equalise_norms(aggregates), expected, rtol=1e-15)


def test_eq_8_passes_over_an_empty_cluster() -> None:
    """Norm 0 is not the smallest norm: as printed it would erase every update (0 / 0)."""
    aggregates = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 10.0]])
    with np.errstate(all="raise"):
        scaled = equalise_norms(aggregates)
    np.testing.assert_allclose(scaled, [[3.0, 4.0], [0.0, 0.0], [0.0, 5.0]], rtol=1e-15)
    np.testing.assert_array_equal(equalise_norms(np.zeros((3, 2))), np.zeros((3, 2)))


@drawn
@given(arrays(np.float64, (4, 3), elements=st.one_of(st.just(0.0), st.floats(1e-3, 1e3))))
def test_eq_8_invariants(aggregates: NDArray[np.float64]) -> None:
    """Non-zero norms are all the smallest one; directions stay; the argument is not changed."""
    before = aggregates.copy()
    scaled = equalise_norms(aggregates)
    np.testing.assert_array_equal(aggregates, before)
    norms = np.array([math.hypot(*row) for row in before])
    after = np.array([math.hypot(*row) for row in scaled])
    np.testing.assert_array_equal(after > 0, norms > 0)
    if np.any(norms > 0):
        np.testing.assert_allclose(after[norms > 0], norms[norms > 0].min(), rtol=1e-12)
        np.testing.assert_allclose(
            scaled * norms[:, None], before * after[:, None], rtol=1e-9, atol=1e-9
        )


W = np.array([0.90, 0.98, 0.995])  # sum 2.875
ROWS = np.array([[1.0, 2.0], [10.0, 0.0], [5.0, 5.0]])


@pytest.mark.parametrize(
    ("variant", "factors"),
    [
        ("normality", [0.90 / 2.875, 0.98 / 2.875, 0.0]),
        ("normality-restored", [2.70 / 2.875, 2.94 / 2.875, 0.0]),
        ("normality-no-threshold", [2.70 / 2.875, 2.94 / 2.875, 2.985 / 2.875]),
    ],
)
def test_eq_9_by_hand(variant: str, factors: list[float]) -> None:
    """w_i / sum w, zero from 0.99 on; times C; without the zeroing. The sum is over all."""
    expected = np.array(factors)[:, None] * ROWS
    np.testing.assert_allclose(scale_by_normality(ROWS, W, variant), expected, rtol=1e-14)


def test_eq_9_threshold_is_exclusive() -> None:
    """Kept if w < 0.99: 0.99 itself is zeroed."""
    statistics = np.array([0.99, np.nextafter(0.99, 0)])
    kept = scale_by_normality(np.ones((2, 3)), statistics, "normality")
    assert not kept[0].any()
    np.testing.assert_allclose(kept[1], 0.5, rtol=1e-12)


@pytest.mark.parametrize("variant", ["count", "none", "normality-", "eq9"])
def test_eq_9_refuses_other_names(variant: str) -> None:
    """Only the variants of the equation."""
    with pytest.raises(ValueError, match="variant"):
        scale_by_normality(ROWS, W, variant)


def test_statistic_of_the_original_example() -> None:
    """Shapiro and Wilk 1965, weights of 11 men: W = 0.79 (R: 0.78881)."""
    weights = np.array([148, 154, 158, 160, 161, 162, 166, 170, 182, 195, 236.0])
    assert normality(weights) == pytest.approx(0.78881, abs=1e-5)
    assert normality(weights[::-1]) == pytest.approx(normality(weights), rel=1e-12)
    assert normality(-3 * weights + 7) == pytest.approx(normality(weights), rel=1e-9)


def test_statistic_of_noise() -> None:
    """METHODS 6.1, D = 4,234: mean W .99953, min .99887 of pure noise; no warning beyond 5,000.

    Eight fixed draws; single values spread by about 1e-4, so the mean by 4e-5.
    """
    rng = np.random.default_rng(1)
    found = [normality(rng.standard_normal(4234)) for _ in range(8)]
    assert np.mean(found) == pytest.approx(0.99953, abs=2e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert normality(rng.standard_normal(6000)) > 0.998
        assert normality(rng.standard_exponential(6000)) < 0.9
        assert normality(rng.standard_normal((60, 100))) > 0.998


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_statistic_of_a_constant(value: float) -> None:
    """An empty cluster without noise looks like noise, and is zeroed by Eq. 9."""
    assert normality(np.full(10, value)) == 1.0


def test_energy_test_by_hand() -> None:
    """D = 8, s = 2: 8 * 4 * (1 + 3 sqrt(2 / 8)) = 80."""
    assert not exceeds_noise(np.full(8, math.sqrt(10.0) * (1 - 1e-9)), 2.0)
    assert exceeds_noise(np.full(8, math.sqrt(10.0) * (1 + 1e-9)), 2.0)


def test_energy_test_without_noise() -> None:
    """Any non-zero sum exceeds no noise; a zero one does not."""
    assert exceeds_noise(np.array([0.0, 1e-30]), 0.0)
    assert not exceeds_noise(np.zeros(4), 0.0)
    assert not exceeds_noise(np.zeros(4), 1.0)


def test_energy_test_on_noise_and_on_signal() -> None:
    """Of 4,000 fixed draws of pure noise (D = 500) 0.14 to 0.3 % pass: 3 sigma of a chi-square.

    The exact rate is chi2.sf(bound, 500) = 0.0021, so 8.4 expected; up to 20 are accepted
    (Poisson tail 2e-4). A signal of energy D s^2 is let through always.
    """
    noise = np.random.default_rng(4).standard_normal((4000, 500)) * 0.3
    passed = sum(exceeds_noise(row, 0.3) for row in noise)
    assert 1 <= passed <= 20
    assert all(exceeds_noise(row + 0.3, 0.3) for row in noise[:300])
