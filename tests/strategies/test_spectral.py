"""Moments and prototypes: sensitivity, exactness without noise, and the split that is found."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from strategies.assignment import nearest_prototype
from strategies.clustering import initialisation, server_points, spectral
from strategies.privacy.mechanisms import GRID_STEPS, from_grid
from strategies.release import Slots
from tests.strategies import drawn


def clients(
    rng: np.random.Generator, groups: NDArray[np.intp], size: int, apart: float = 0.3
) -> NDArray[np.float64]:
    """Embeddings around 2 or more centres in orthogonal directions, away from zero."""
    centres = 0.1 + apart * np.eye(size)[: groups.max() + 1]
    return np.asarray(centres[groups] + 0.05 * rng.standard_normal((len(groups), size)))


def summed(
    layout: Slots, contributions: NDArray[np.float64], slots: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """The release without noise."""
    return layout.decode(from_grid(layout.encode(contributions, slots)[0], layout.sensitivity))


# --- moments -------------------------------------------------------------------------------


def test_moments_by_hand() -> None:
    """y = (.6, .8): [y ; .36, .48 sqrt 2, .64] / sqrt 2, of norm 1."""
    found = spectral.moments(np.array([[0.6, 0.8]]))[0] * math.sqrt(2)
    np.testing.assert_allclose(found, [0.6, 0.8, 0.36, 0.48 * math.sqrt(2), 0.64], rtol=1e-14)
    assert np.linalg.norm(found) == pytest.approx(math.sqrt(2), rel=1e-14)


@drawn
@given(st.integers(0, 2**31), st.integers(1, 9), st.floats(-3, 3))
def test_a_client_changes_the_moments_by_at_most_one(seed: int, size: int, exponent: float) -> None:
    """In exact integers, also for an embedding that should have been in the unit ball."""
    rng = np.random.default_rng(seed)
    y = 10.0**exponent * rng.standard_normal((3, size))
    inside = y / np.maximum(1.0, np.linalg.norm(y, axis=1, keepdims=True))
    assert np.linalg.norm(spectral.moments(inside), axis=1).max() <= 1 + 1e-12
    layout = spectral.moments_layout(size)
    assert layout.sensitivity == 1.0
    assert layout.size == spectral.moments_size(size) == spectral.moments(y).shape[1]
    nowhere = np.zeros(3, dtype=np.intp)
    total, _ = layout.encode(spectral.moments(y), nowhere)
    without, _ = layout.encode(spectral.moments(y)[1:], nowhere[1:])
    changed = sum(int(value) ** 2 for value in total - without)
    assert changed <= int(GRID_STEPS * (1 + 1e-12)) ** 2


def test_moments_are_read_back() -> None:
    """Against NumPy's mean and Y'Y / n."""
    rng = np.random.default_rng(0)
    y = clients(rng, rng.integers(0, 3, 50), 6)
    sums, _ = summed(spectral.moments_layout(6), spectral.moments(y), np.zeros(50, dtype=np.intp))
    mean, second = spectral.read_moments(sums[0], 50, 6)
    np.testing.assert_allclose(mean, y.mean(axis=0), atol=1e-8)
    np.testing.assert_allclose(second, y.T @ y / 50, atol=1e-8)
    np.testing.assert_array_equal(second, second.T)


# --- prototypes ----------------------------------------------------------------------------


def test_two_prototypes_stand_on_the_leading_direction() -> None:
    """Diagonal covariance: mean +- sqrt(lambda - median) e_1, by hand."""
    mean = np.array([0.1, 0.2, 0.0])
    second = np.diag([0.09, 0.01, 0.02]) + np.outer(mean, mean)
    found = spectral.place_prototypes(mean, second, 2, np.random.default_rng(0))
    offsets = found - mean
    np.testing.assert_allclose(np.abs(offsets), [[math.sqrt(0.07), 0, 0]] * 2, atol=1e-12)
    np.testing.assert_allclose(offsets[0], -offsets[1], atol=1e-12)


def test_without_a_leading_direction_they_stay_apart() -> None:
    """Nothing exceeds the median: still two different prototypes, along one axis."""
    found = spectral.place_prototypes(np.zeros(4), 0.01 * np.eye(4), 2, np.random.default_rng(0))
    assert np.linalg.norm(found[0] - found[1]) == pytest.approx(0.02, rel=1e-6)


@pytest.mark.parametrize("clusters", [1, 2, 3, 5, 9])
def test_prototypes_in_the_ball_and_in_the_span(clusters: int) -> None:
    """1, 2, then 4C; offsets of rank C - 1 (at most m); wild moments too."""
    rng = np.random.default_rng(clusters)
    mean, root = 0.1 * rng.standard_normal(6), rng.standard_normal((6, 6))
    found = spectral.place_prototypes(mean, root @ root.T / 100, clusters, rng)
    assert found.shape == ({1: 1, 2: 2}.get(clusters, 4 * clusters), 6)
    assert np.linalg.norm(found, axis=1).max() <= 1 + 1e-12
    small = spectral.place_prototypes(mean, 1e-4 * root @ root.T, clusters, rng) - mean
    assert np.linalg.matrix_rank(small, tol=1e-9) == min(clusters - 1, 6)
    wild = spectral.place_prototypes(mean, 1e3 * (root + root.T), clusters, rng)
    assert np.isfinite(wild).all()
    assert np.linalg.norm(wild, axis=1).max() <= 1 + 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_one_release_tells_two_clusters_apart(seed: int) -> None:
    """Without noise the two prototypes already split the clients as their groups do."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 2, 200)
    y = clients(rng, groups, 16)
    second = y.T @ y / 200
    prototypes = spectral.place_prototypes(y.mean(axis=0), second, 2, rng)
    chosen = nearest_prototype(y, prototypes)
    assert max(np.mean(chosen == groups), np.mean(chosen != groups)) == 1.0


# --- the server's points -------------------------------------------------------------------


def test_projected_points() -> None:
    """Onto the leading C eigenvectors: by hand for a diagonal matrix, idempotent, never longer."""
    points = np.array([[1.0, 2.0, 3.0], [0.1, -0.2, 0.3]])
    found = server_points.project(points, np.diag([0.5, 0.1, 0.9]), 2)
    np.testing.assert_allclose(found, points * [1, 0, 1], atol=1e-12)
    rng = np.random.default_rng(0)
    root = rng.standard_normal((5, 5))
    cloud = rng.standard_normal((20, 5))
    once = server_points.project(cloud, root @ root.T, 3)
    np.testing.assert_allclose(server_points.project(once, root @ root.T, 3), once, atol=1e-10)
    assert np.linalg.matrix_rank(once, tol=1e-9) == 3
    np.testing.assert_allclose(server_points.project(cloud, root @ root.T, 9), cloud, atol=1e-10)


def test_histogram_counts_the_nearest_points() -> None:
    """Against a loop; one client changes it by exactly one."""
    rng = np.random.default_rng(1)
    y, points = clients(rng, rng.integers(0, 3, 60), 6), 0.3 * rng.standard_normal((11, 6))
    contributions, slots = initialisation.client_answers("histogram", y, points)
    layout = server_points.histogram_layout(11)
    assert layout.sensitivity == 1.0
    assert layout.size == 11
    sums, counts = summed(layout, contributions, slots)
    expected = np.zeros(11)
    for row in y:
        expected[np.argmin(np.linalg.norm(points - row, axis=1))] += 1
    np.testing.assert_allclose(sums[:, 0], expected, atol=1e-8)
    assert counts is None


# --- phases --------------------------------------------------------------------------------


def test_phases() -> None:
    """The order of the releases."""
    found = {
        i: [initialisation.phase_of(i, r) for r in (1, 2, 3)] for i in initialisation.FIRST_PHASES
    }
    assert found == {
        "secure-kmeans": ["mean", "lloyd", "lloyd"],
        "spectral": ["moments", "lloyd", "lloyd"],
        "server-points": ["moments", "histogram", "lloyd"],
        "discriminant": ["classes", "scatter", "lloyd"],
        "private-whitening": ["classes", "whitening", "scatter"],
    }


@pytest.mark.parametrize("size", [1, 2, 7, 64, 384])
def test_clients_know_the_size_of_their_embedding(size: int) -> None:
    """From what a request holds, in every phase."""
    prototypes = np.zeros((5, size))
    for phase in ("mean", "moments", "histogram", "lloyd"):
        width = initialisation.phase_layout(phase, size, 5).width
        seen = None if phase in ("mean", "moments") else prototypes
        assert initialisation.embedding_size(phase, width, seen) == size


@pytest.mark.parametrize("phase", ["mean", "moments", "histogram", "lloyd"])
def test_answers_fit_their_layout_and_a_broken_client_adds_nothing(phase: str) -> None:
    """NaN embeddings contribute zeros, not a one in the histogram."""
    y = np.array([[0.1, 0.2], [np.nan, 0.1]])
    prototypes = None if phase in ("mean", "moments") else np.eye(2)
    contributions, slots = initialisation.client_answers(phase, y, prototypes)
    layout = initialisation.phase_layout(phase, 2, 2)
    assert contributions.shape == (2, layout.width)
    total, usable = layout.encode(contributions, slots)
    np.testing.assert_array_equal(usable, [True, False])
    np.testing.assert_array_equal(total, layout.encode(contributions[:1], slots[:1])[0])
