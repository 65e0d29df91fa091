"""Eq. 5 by its definition, zero gradients, and the sketch within its bound."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.wireless.similarity import (
    cosine_blocks,
    cosine_matrix,
    sketch,
    sketch_error,
    unit_gradients,
)


def test_cosines_by_definition() -> None:
    rows = np.random.default_rng(0).normal(size=(7, 30))
    found = cosine_matrix(unit_gradients(rows), block=3)
    assert found.dtype == np.float32
    for u in range(7):
        for v in range(7):
            cosine = rows[u] @ rows[v] / (np.linalg.norm(rows[u]) * np.linalg.norm(rows[v]))
            assert found[u, v] == pytest.approx(cosine, abs=1e-6)


def test_cosine_by_hand() -> None:
    found = cosine_matrix(unit_gradients([[3.0, 4.0], [4.0, 3.0], [-6.0, -8.0]]))
    np.testing.assert_allclose(found[0], [1.0, 0.96, -1.0], atol=1e-6)


def test_blocks_cover_all_rows_once() -> None:
    unit = unit_gradients(np.random.default_rng(1).normal(size=(10, 4)))
    slices = [rows for rows, _ in cosine_blocks(unit, block=4)]
    assert [(s.start, s.stop) for s in slices] == [(0, 4), (4, 8), (8, 10)]
    with pytest.raises(ValueError, match="block = 0"):
        list(cosine_blocks(unit, block=0))


def test_zero_gradient_has_similarity_zero_and_is_said_once() -> None:
    rows = np.array([[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
    with pytest.warns(UserWarning, match="2 devices") as caught:
        found = cosine_matrix(unit_gradients(rows))
    assert len(caught) == 1
    assert (found[1] == 0).all()
    assert found[0, 0] == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_extreme_lengths_neither_vanish_nor_overflow(scale: float) -> None:
    rows = np.array([[3.0, 4.0], [1.0, 0.0]]) * scale
    np.testing.assert_allclose(unit_gradients(rows), [[0.6, 0.8], [1.0, 0.0]], rtol=1e-5)


def test_input_is_checked_and_left_alone() -> None:
    rows = np.array([[3.0, 4.0]], dtype=np.float32)
    unit_gradients(rows)
    assert rows.tolist() == [[3.0, 4.0]]
    with pytest.raises(ValueError, match="NaN"):
        unit_gradients([[np.nan, 1.0]])
    with pytest.raises(ValueError, match="shape"):
        unit_gradients([1.0, 2.0])


def test_a_device_sketches_alone_what_the_batch_would_give() -> None:
    rows = np.random.default_rng(2).normal(size=(3, 9000)).astype(np.float32)
    together = sketch(rows, 16, public_seed=5)
    alone = np.concatenate([sketch(row, 16, public_seed=5) for row in rows])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)
    assert not np.allclose(together, sketch(rows, 16, public_seed=6))


def test_sketch_keeps_inner_products_within_the_bound() -> None:
    rows = unit_gradients(np.random.default_rng(3).normal(size=(40, 5000)) + 0.5)
    dimension = 1024
    error = np.abs(sketch(rows, dimension, 0) @ sketch(rows, dimension, 0).T - rows @ rows.T)
    assert error.max() < sketch_error(40, dimension)
    assert error.max() > 0.01 * sketch_error(40, dimension)


def test_sketch_error_falls_with_the_dimension_and_can_be_vacuous() -> None:
    assert sketch_error(100, 4096) < sketch_error(100, 1024) < 1
    assert sketch_error(100, 16) == float("inf")
    # At the returned error the bound of the docstring equals the failure probability.
    error, pairs = sketch_error(100, 4096), 100 * 99 / 2
    chance = pairs * 4 * np.exp(-(error**2 / 4 - error**3 / 6) * 4096)
    assert 0.009 < chance <= 0.01


@pytest.mark.parametrize(("dimension", "seed"), [(0, 1), (4, -1)])
def test_bad_sketch_parameters(dimension: int, seed: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        sketch(np.ones((1, 3)), dimension, seed)
