"""Choice of a cluster: brute force, ties, NaN, hysteresis."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from strategies.assignment import lowest_loss, nearest_prototype
from tests.strategies import drawn


@drawn
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 9), st.integers(1, 12))
def test_nearest_prototype_is_the_nearest(seed: int, clusters: int, size: int, n: int) -> None:
    """Against all distances in pure Python."""
    rng = np.random.default_rng(seed)
    embeddings, prototypes = rng.standard_normal((n, size)), rng.standard_normal((clusters, size))
    expected = []
    for embedding in embeddings.tolist():
        distances = [math.dist(embedding, prototype) for prototype in prototypes.tolist()]
        expected.append(distances.index(min(distances)))
    np.testing.assert_array_equal(nearest_prototype(embeddings, prototypes), expected)


def test_nearest_prototype_counts_the_length_of_the_prototype() -> None:
    """The longest inner product is not the nearest point; ties go to the lower index."""
    embedding = np.array([[1.0, 0.0]])
    assert nearest_prototype(embedding, np.array([[9.0, 0.0], [0.5, 0.5]]))[0] == 1
    assert nearest_prototype(embedding, np.array([[2.0, 0.0], [0.0, 0.0]]))[0] == 0
    assert nearest_prototype(np.zeros((0, 2)), np.eye(2)).shape == (0,)


def test_lowest_loss() -> None:
    """Argmin of each row; ties to the lower index; NaN and infinity are worst."""
    losses = np.array([[0.2, 0.1], [0.3, 0.3], [math.nan, 9.0], [math.inf, math.nan], [5.0, -1.0]])
    np.testing.assert_array_equal(lowest_loss(losses), [1, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("losses", "favoured", "expected"),
    [
        ([1.0, 0.8], 0, 0),  # better by .2: not enough
        ([1.0, 0.6], 0, 1),  # better by .4
        ([1.0, 0.8], 1, 1),
        ([0.6, 1.0], 1, 0),
        ([1.0, 1.0], 1, 1),  # a tie is the favoured cluster's
        ([math.nan, 7.0], 0, 1),  # a broken model is not kept, favoured or not
    ],
)
def test_hysteresis_by_hand(losses: list[float], favoured: int, expected: int) -> None:
    """argmin(loss - .3 [c is the prototype's cluster]), METHODS 6.2."""
    chosen = lowest_loss(np.array([losses]), np.array([favoured]), hysteresis=0.3)
    assert chosen.tolist() == [expected]


@drawn
@given(st.integers(0, 2**31), st.floats(0, 2))
def test_hysteresis_is_a_threshold(seed: int, hysteresis: float) -> None:
    """Either the favoured cluster, or the lowest loss if that is lower by more."""
    rng = np.random.default_rng(seed)
    losses = rng.standard_normal((20, 4))
    favoured = rng.integers(0, 4, 20)
    before = losses.copy()
    chosen = lowest_loss(losses, favoured, hysteresis)
    best: NDArray[np.intp] = losses.argmin(axis=1)
    for row, kept, lowest, found in zip(losses, favoured, best, chosen, strict=True):
        assert found == (lowest if row[lowest] < row[kept] - hysteresis else kept)
    np.testing.assert_array_equal(losses, before)
    np.testing.assert_array_equal(lowest_loss(losses, favoured, 0.0), best)
