"""Choice of a cluster: brute force, ties, NaN, loss and distance together."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import bernoulli, norm

from strategies.assignment import lowest_loss, nearest_prototype, squared_distances
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
    ("losses", "distances", "expected"),
    [
        ([1.0, 0.8], [0.0, 0.5], 0),  # .2 nats for a model against .25 for a prototype
        ([1.0, 0.7], [0.0, 0.5], 1),
        ([1.0, 1.0], [0.5, 0.4], 1),  # equal models: the prototype
        ([1.0, 0.9], [0.4, 0.4], 1),  # equal prototypes: the model
        ([math.nan, 7.0], [0.0, 1.0], 1),  # a broken model is not chosen, however near
    ],
)
def test_loss_and_distance_by_hand(
    losses: list[float], distances: list[float], expected: int
) -> None:
    """argmin(loss + .5 |y - c|^2)."""
    chosen = lowest_loss(np.array([losses]), np.array([distances]), weight=0.5)
    assert chosen.tolist() == [expected]


def test_loss_and_distance_are_a_likelihood() -> None:
    """At the stated weight the choice is the cluster of highest joint density of labels and
    embedding: Bernoulli labels, Gaussian embedding of variance v."""
    rng = np.random.default_rng(0)
    count, variance, clusters = 12, 0.02, 3
    rates = np.array([0.2, 0.5, 0.8])
    prototypes = rng.standard_normal((clusters, 4)) / 5
    for _ in range(50):
        labels = rng.random(count) < rng.choice(rates)
        embedding = rng.standard_normal(4) / 5
        likelihood = [
            bernoulli.logpmf(labels, rate).sum() + norm.logpdf(embedding, c, variance**0.5).sum()
            for rate, c in zip(rates, prototypes, strict=True)
        ]
        losses = [-bernoulli.logpmf(labels, rate).mean() for rate in rates]
        chosen = lowest_loss(
            np.array([losses]),
            squared_distances(embedding[None], prototypes),
            weight=1 / (2 * count * variance),
        )
        assert chosen[0] == np.argmax(likelihood)


@drawn
@given(st.integers(0, 2**31), st.floats(0, 2))
def test_limits_of_the_weight(seed: int, shift: float) -> None:
    """0: the loss alone; equal losses or a large weight: the nearest prototype. Nothing changed."""
    rng = np.random.default_rng(seed)
    losses, distances = rng.standard_normal((20, 4)), rng.random((20, 4))
    before = losses.copy()
    best: NDArray[np.intp] = losses.argmin(axis=1)
    np.testing.assert_array_equal(lowest_loss(losses, distances, 0.0), best)
    nearest = distances.argmin(axis=1)
    np.testing.assert_array_equal(lowest_loss(losses, distances, 1e9), nearest)
    equal = np.full((20, 4), shift)
    np.testing.assert_array_equal(lowest_loss(equal, distances, 1.0), nearest)
    np.testing.assert_array_equal(losses, before)


def test_squared_distances() -> None:
    rng = np.random.default_rng(0)
    embeddings, prototypes = rng.standard_normal((5, 3)), rng.standard_normal((2, 3))
    expected = [[math.dist(y, c) ** 2 for c in prototypes] for y in embeddings]
    np.testing.assert_allclose(squared_distances(embeddings, prototypes), expected)
