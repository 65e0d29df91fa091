"""Clipping: Eq. 5 and 7 by hand, and their invariants."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from strategies.privacy.clipping import clip_l2, sketch_threshold
from tests.strategies import drawn

ROWS = arrays(
    np.float64,
    array_shapes(min_dims=1, max_dims=3, max_side=6),
    elements=st.floats(-1e100, 1e100, allow_nan=False),
)
THRESHOLDS = st.floats(1e-6, 1e6)


def test_eq_7_by_hand() -> None:
    """d * min(1, S / |d|): |(3, 4)| = 5."""
    np.testing.assert_allclose(clip_l2(np.array([3.0, 4.0]), 1.0), [0.6, 0.8], rtol=1e-15)
    np.testing.assert_allclose(clip_l2(np.array([3.0, -4.0]), 2.5), [1.5, -2.0], rtol=1e-15)
    np.testing.assert_array_equal(clip_l2(np.array([3.0, 4.0]), 5.0), [3.0, 4.0])
    np.testing.assert_array_equal(clip_l2(np.array([3.0, 4.0]), 7.0), [3.0, 4.0])


def test_eq_7_takes_every_row_by_itself() -> None:
    """A long row does not shrink a short one; float32 comes back as float64."""
    rows = np.array([[3.0, 4.0], [0.0, 0.5], [0.0, 0.0]], dtype=np.float32)
    clipped = clip_l2(rows, 1.0)
    assert clipped.dtype == np.float64
    np.testing.assert_allclose(clipped, [[0.6, 0.8], [0.0, 0.5], [0.0, 0.0]], rtol=1e-15)


def test_zero_update_stays_zero() -> None:
    """Eq. 7 as printed would give 0 * S / 0."""
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(clip_l2(np.zeros(5), 0.3), np.zeros(5))


@drawn
@given(ROWS, THRESHOLDS)
def test_norm_direction_and_idempotence(rows: NDArray[np.float64], threshold: float) -> None:
    """No norm above S; short rows unchanged; a non-negative multiple of the row; idempotent."""
    clipped = clip_l2(rows, threshold)
    for before, after in zip(
        rows.reshape(-1, rows.shape[-1]), clipped.reshape(-1, rows.shape[-1]), strict=True
    ):
        norm = math.hypot(*before)
        assert math.hypot(*after) <= threshold * (1 + 1e-12)
        if norm <= threshold * (1 - 1e-12):
            np.testing.assert_array_equal(after, before)
        else:
            np.testing.assert_allclose(after, before / norm * threshold, rtol=1e-9, atol=1e-290)
    np.testing.assert_allclose(clip_l2(clipped, threshold), clipped, rtol=1e-12)


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan])
def test_threshold_must_be_positive(threshold: float) -> None:
    """S = 0 would silently send nothing; NaN would poison the sum."""
    with pytest.raises(ValueError, match="threshold"):
        clip_l2(np.ones(3), threshold)


def test_eq_5_by_hand() -> None:
    """sqrt(n / h) * S: sqrt(4 / 16) * 3 = 1.5; the paper's n = 4, h = 384, S = 1: 0.10206."""
    assert sketch_threshold(3.0, 4, 16) == pytest.approx(1.5, rel=1e-15)
    assert sketch_threshold(1.0, 4, 384) == pytest.approx(0.102062, abs=1e-6)
    assert sketch_threshold(0.7, 9, 9) == pytest.approx(0.7, rel=1e-15)


@pytest.mark.parametrize("kept", [0, 17, -1])
def test_eq_5_refuses_impossible_sketches(kept: int) -> None:
    """More values than the vector has, or none."""
    with pytest.raises(ValueError, match="kept"):
        sketch_threshold(1.0, kept, 16)
