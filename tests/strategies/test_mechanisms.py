"""The grid, the noise and the trusted sum: exact arithmetic and known laws."""

import math
import os
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import stats

from strategies.privacy.clipping import clip_l2
from strategies.privacy.mechanisms import (
    GRID_STEPS,
    _system_normal,
    from_grid,
    gaussian_on_grid,
    to_grid,
)
from strategies.privacy.secure_sum import TrustedSum
from tests.strategies import drawn

VECTORS = arrays(np.float64, st.integers(1, 12), elements=st.floats(-1e6, 1e6))


# --- the grid ---------------------------------------------------------------------------


@drawn
@given(VECTORS, st.integers(-20, 20))
def test_rounding_is_towards_zero(values: NDArray[np.float64], exponent: int) -> None:
    """Exact, for sensitivities that are powers of two: same sign, less than a step lost."""
    sensitivity = 2.0**exponent
    contribution = clip_l2(values, sensitivity)
    grid = to_grid(contribution, sensitivity)
    assert grid.dtype == np.int64
    for value, integer in zip(contribution.tolist(), grid.tolist(), strict=True):
        ideal = Fraction(value) * GRID_STEPS / Fraction(sensitivity)
        assert integer == math.trunc(ideal)


@drawn
@given(VECTORS, st.floats(1e-6, 1e6))
def test_rounding_never_increases_a_norm(values: NDArray[np.float64], sensitivity: float) -> None:
    """In integers, so without rounding in the test; 1e-12 is the float error of clipping."""
    contribution = clip_l2(values, sensitivity)
    grid = [int(integer) for integer in to_grid(contribution, sensitivity)]
    exact = sum(Fraction(value) ** 2 for value in contribution.tolist())
    scale = Fraction(GRID_STEPS) / Fraction(sensitivity)
    squared = sum(integer**2 for integer in grid)
    assert squared <= exact * scale**2 * (1 + Fraction(1, 10**14))
    assert squared <= Fraction(GRID_STEPS) ** 2 * (1 + Fraction(1, 10**12))


@drawn
@given(VECTORS, st.floats(1e-3, 1e3))
def test_grid_round_trip_loses_less_than_a_step(
    values: NDArray[np.float64], sensitivity: float
) -> None:
    """from_grid inverts to_grid up to one step."""
    contribution = clip_l2(values, sensitivity)
    back = from_grid(to_grid(contribution, sensitivity), sensitivity)
    np.testing.assert_allclose(back, contribution, rtol=1e-15, atol=sensitivity / GRID_STEPS)


@pytest.mark.parametrize("bad", [1.001, -1.001, math.inf, -math.inf, math.nan])
def test_grid_refuses_what_was_not_clipped(bad: float) -> None:
    """Casting such a value to an integer would be undefined or a silent overflow."""
    with pytest.raises(ValueError, match="exceeds"):
        to_grid(np.array([0.1, bad]), 1.0)


def test_sums_do_not_depend_on_order_or_grouping() -> None:
    """Floats of mixed magnitude would; integers must agree in every bit."""
    rng = np.random.default_rng(0)
    clients = clip_l2(rng.standard_normal((60, 7)) * 10.0 ** rng.integers(-9, 3, (60, 1)), 1.0)
    grid = np.array([to_grid(client, 1.0) for client in clients])
    assert not np.array_equal(clients.sum(axis=0), clients[::-1].cumsum(axis=0)[-1])
    results = []
    for _ in range(8):
        order = rng.permutation(60)
        secure_sum = TrustedSum(7, np.random.default_rng(5))
        for node in np.split(order, np.sort(rng.choice(60, 5))):
            secure_sum.add(grid[node].sum(axis=0))
        results.append(secure_sum.release(1.3, 1.0))
    assert all(np.array_equal(result, results[0]) for result in results)


# --- the noise --------------------------------------------------------------------------


@drawn
@given(st.integers(0, 2**31), st.floats(1e-12, 1e3), st.integers(-(2**60), 2**60))
def test_adding_rounded_noise_is_rounding_the_noisy_value(
    seed: int, multiplier: float, value: int
) -> None:
    """x + round(g) = round(x + g), so the release is post-processing of the ideal mechanism."""
    noise = gaussian_on_grid(5, multiplier, np.random.default_rng(seed)).tolist()
    ideal = np.random.default_rng(seed).standard_normal(5) * (multiplier * GRID_STEPS)
    for rounded, gaussian in zip(noise, ideal.tolist(), strict=True):
        exact = Fraction(gaussian)
        if exact.denominator == 2:  # a tie has probability zero for the ideal Gaussian
            continue
        assert value + rounded == round(value + exact)


def test_no_noise_multiplier_no_noise() -> None:
    """Zero gives zeros, from both sources."""
    assert not gaussian_on_grid(9, 0.0, np.random.default_rng(0)).any()
    assert not gaussian_on_grid(9, 0.0, None).any()


SOURCES = [
    # Seeded: one fixed outcome, accepted within the central 99.8 % of the law.
    pytest.param(lambda: np.random.default_rng(20), 1e-3, id="seeded"),
    # The operating system: a test that fails once in 10^10 runs a side.
    pytest.param(lambda: None, 1e-10, id="system"),
]
Source = Callable[[], np.random.Generator | None]


@pytest.mark.parametrize(("source", "level"), SOURCES)
@pytest.mark.parametrize(("multiplier", "sensitivity"), [(1.124, 1.005), (10.58, 0.2)])
def test_released_noise_has_its_standard_deviation(
    source: Source, level: float, multiplier: float, sensitivity: float
) -> None:
    """sum (g / sigma)^2 ~ chi^2(n), sum g / (sigma sqrt n) ~ N(0, 1), around the true sum."""
    size = 40_000
    secure_sum = TrustedSum(size, source())
    truth = np.full(size, 0.25 * sensitivity)
    secure_sum.add(to_grid(truth, sensitivity))
    noise = (secure_sum.release(multiplier, sensitivity) - truth) / (multiplier * sensitivity)
    law = stats.chi2(size)
    assert law.ppf(level) < np.sum(noise**2) < law.isf(level)
    assert abs(noise.sum() / math.sqrt(size)) < stats.norm.isf(level)
    # Neighbouring coordinates are independent: their mean product is N(0, 1 / n).
    assert abs(np.mean(noise[1:] * noise[:-1])) * math.sqrt(size) < stats.norm.isf(level) * 1.05


@pytest.mark.parametrize(("source", "level"), SOURCES)
def test_noise_is_normal(source: Source, level: float) -> None:
    """Kolmogorov-Smirnov against N(0, 1) with known parameters, and the tails beyond 3 sigma."""
    size = 40_000
    normal = gaussian_on_grid(size, 2.0, source()) / (2.0 * GRID_STEPS)
    assert stats.kstest(normal, "norm").pvalue > level
    beyond = stats.binom(size, 2 * stats.norm.sf(3.0))
    assert beyond.ppf(level) <= np.count_nonzero(np.abs(normal) > 3.0) <= beyond.isf(level)


def system_normal_of(
    first: list[int], second: list[int], monkeypatch: pytest.MonkeyPatch
) -> NDArray[np.float64]:
    """The numbers that given words of the operating system become."""
    content = np.array([*first, *second], dtype=np.uint64).tobytes()

    def urandom(size: int) -> bytes:
        assert size == len(content)
        return content

    monkeypatch.setattr(os, "urandom", urandom)
    return _system_normal(len(first))


def test_system_source_is_inversion_of_the_systems_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest bit is the sign, the other 127 a uniform number in (0, 1/2); extremes finite."""
    first = [0, 1, 2**64 - 1, 2**64 - 2, 2**63, 3 * 2**62, 0x0123456789ABCDEF]
    normal = system_normal_of(first, [0] * len(first), monkeypatch)
    assert normal[0] == pytest.approx(-stats.norm.ppf(2.0**-129), rel=1e-12)
    assert normal[1] == -normal[0]
    assert normal[2] == -normal[3] == pytest.approx(0.0, abs=1e-15)
    uniform = [(word >> 1) / 2**64 for word in first[4:]]
    signs = [-1 if word & 1 else 1 for word in first[4:]]
    expected = -stats.norm.ppf(uniform) * signs
    np.testing.assert_allclose(normal[4:], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("multiplier", [1.1, 10.58, 1000.0])
def test_every_grid_point_is_attainable_far_into_the_tail(
    multiplier: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbouring uniform numbers are less than a grid step apart, at the centre as at 7 sigma.

    Otherwise the noise takes values on a sparse set there, and a sum tells which contribution it
    hides. Far out the second word fills the gaps between neighbours of the first.
    """
    for sigma in (0.5, 2.0, 3.5, 4.0, 5.0, 6.0, 7.0):
        word = int(stats.norm.sf(sigma) * 2.0**64)
        spacing = float(np.spacing(float(word)))
        whole, part = int(spacing), int(spacing % 1 * 2.0**64)
        words = [2 * word, 2 * (word + whole)]
        low, high = system_normal_of(words, [0, part], monkeypatch) * multiplier * GRID_STEPS
        assert 0 <= low - high < 1


def test_noise_beyond_the_grid_is_refused() -> None:
    """A multiplier that would overflow 64 bits must not become a constant."""
    with pytest.raises(ValueError, match="noise_multiplier"):
        gaussian_on_grid(3, 1e9, None)
    largest = gaussian_on_grid(1000, 1e6, np.random.default_rng(0))
    assert np.abs(largest).max() < 2**62
    assert np.std(largest) == pytest.approx(1e6 * GRID_STEPS, rel=0.1)


def test_system_source_never_repeats() -> None:
    """Two draws share no value (probability below 1e-9 that any of 50 x 50 pairs agree)."""
    first, second = gaussian_on_grid(50, 1.0, None), gaussian_on_grid(50, 1.0, None)
    assert not np.intersect1d(first, second).size


# --- the trusted sum --------------------------------------------------------------------


def test_trusted_sum_without_noise_is_the_sum() -> None:
    """In the units of the sensitivity."""
    secure_sum = TrustedSum(2, np.random.default_rng(0))
    secure_sum.add(to_grid(np.array([0.5, -0.25]), 2.0))
    secure_sum.add(to_grid(np.array([1.0, 1.0]), 2.0))
    np.testing.assert_array_equal(secure_sum.release(0.0, 2.0), [1.5, 0.75])


@pytest.mark.parametrize(
    "contribution",
    [
        np.zeros(2, dtype=np.int64),
        np.zeros((3, 1), dtype=np.int64),
        np.zeros((1, 3), dtype=np.int64),
        np.zeros(1, dtype=np.int64),  # would broadcast
        np.zeros(3, dtype=np.int32),
        np.zeros(3, dtype=np.uint64),
        np.zeros(3, dtype=np.float64),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_trusted_sum_refuses_another_shape_or_dtype(contribution: NDArray[np.int64]) -> None:
    """A refused vector leaves the sum as it was."""
    secure_sum = TrustedSum(3, np.random.default_rng(0))
    with pytest.raises(ValueError, match="must be"):
        secure_sum.add(contribution)
    assert not secure_sum.release(0.0, 1.0).any()


def test_trusted_sum_releases_once() -> None:
    """A second release with fresh noise would halve the noise's variance."""
    secure_sum = TrustedSum(3, np.random.default_rng(0))
    secure_sum.release(1.0, 1.0)
    with pytest.raises(RuntimeError, match="already"):
        secure_sum.release(1.0, 1.0)
    with pytest.raises((RuntimeError, ValueError), match="already"):
        secure_sum.add(np.zeros(3, dtype=np.int64))


def test_trusted_sum_leaves_contributions_alone() -> None:
    """The caller's array is not the accumulator."""
    contribution = np.arange(3, dtype=np.int64)
    secure_sum = TrustedSum(3, np.random.default_rng(0))
    secure_sum.add(contribution)
    secure_sum.release(1.0, 1.0)
    np.testing.assert_array_equal(contribution, [0, 1, 2])
    assert TrustedSum.trusted
