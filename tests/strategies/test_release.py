"""Slots and codes: sensitivity in exact integers, layout, and what unusable updates contribute."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from strategies.privacy.mechanisms import GRID_STEPS, from_grid
from strategies.release import CONTRAST, Coded, Layout, Slots, simplex
from tests.strategies import drawn

BOUND = int(GRID_STEPS * (1 + 1e-12)) ** 2
"""Square of one sensitivity in grid steps; 1e-12 covers the float error of clipping."""


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[Layout, NDArray[np.float64], NDArray[np.intp]]:
    """A layout of either kind and the wild updates (huge, infinite, NaN) of one to five clients."""
    clusters, width = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    kappa = draw(st.one_of(st.just(0.0), st.floats(1e-3, 10.0)))
    threshold = draw(st.floats(1e-4, 1e4))
    layout = draw(
        st.sampled_from(
            [Slots(clusters, width, threshold, kappa), Coded(clusters, width, threshold)]
        )
    )
    clients = draw(st.integers(1, 5))
    updates = draw(arrays(np.float64, (clients, width), elements=st.floats(width=64)))
    chosen = draw(arrays(np.intp, clients, elements=st.integers(0, clusters - 1)))
    return layout, updates, chosen


def squared(vector: NDArray[np.int64]) -> int:
    """Squared norm without rounding."""
    return sum(int(value) ** 2 for value in vector)


@drawn
@given(cohorts())
@pytest.mark.filterwarnings("ignore:overflow")
def test_one_client_changes_the_sum_by_at_most_the_sensitivity(
    cohort: tuple[Layout, NDArray[np.float64], NDArray[np.intp]],
) -> None:
    """Its vector alone, and as the difference between the sums with and without it."""
    layout, updates, chosen = cohort
    total, _ = layout.encode(updates, chosen)
    assert total.shape == (layout.size,)
    assert total.dtype == np.int64
    for client in range(len(updates)):
        alone, _ = layout.encode(updates[[client]], chosen[[client]])
        assert squared(alone) <= BOUND
        without, _ = layout.encode(np.delete(updates, client, 0), np.delete(chosen, client))
        np.testing.assert_array_equal(total - without, alone)


def test_sensitivity_is_reached() -> None:
    """A clipped update comes up to S sqrt(1 + kappa^2): the bound is not loose."""
    layout = Slots(3, 5, threshold=0.7, kappa=0.1)
    assert layout.sensitivity == pytest.approx(0.7 * math.sqrt(1.01), rel=1e-15)
    total, _ = layout.encode(np.full((1, 5), 9.0), np.array([1]))
    assert math.sqrt(squared(total)) == pytest.approx(GRID_STEPS, rel=1e-8)
    assert Slots(3, 5, 0.7).sensitivity == 0.7
    # METHODS 6.2, a Lloyd release: [onehot (x) y; onehot] / sqrt 2.
    assert Slots(2, 5, 1.0, 1.0).sensitivity == pytest.approx(math.sqrt(2), rel=1e-15)


def test_layout_by_hand() -> None:
    """Clipping, slots, counters: C = 3, D = 2, S = 1, kappa = .5."""
    layout = Slots(3, 2, threshold=1.0, kappa=0.5)
    updates = np.array([[3.0, 4.0], [0.3, 0.0], [0.0, -0.5]])
    total, usable = layout.encode(updates, np.array([2, 0, 2]))
    assert usable.all()
    assert total.size == layout.size == 9
    np.testing.assert_allclose(
        from_grid(total, layout.sensitivity),
        [0.3, 0, 0, 0, 0.6, 0.3, 0.5, 0, 1.0],
        atol=1e-11,
    )
    sums, counts = layout.decode(from_grid(total, layout.sensitivity))
    np.testing.assert_allclose(sums, [[0.3, 0], [0, 0], [0.6, 0.3]], atol=1e-11)
    assert counts is not None
    np.testing.assert_allclose(counts, [1, 0, 2], atol=1e-10)


def test_without_counters() -> None:
    """kappa = 0 sends no counter and decodes none."""
    layout = Slots(2, 3, threshold=2.0)
    total, _ = layout.encode(np.ones((4, 3), dtype=np.float32), np.array([0, 1, 1, 1]))
    assert total.size == 6
    sums, counts = layout.decode(from_grid(total, layout.sensitivity))
    assert counts is None
    np.testing.assert_allclose(sums, [[1] * 3, [3] * 3], atol=1e-11)


@pytest.mark.parametrize("layout", [Slots(2, 3, 1.0, 0.1), Coded(2, 3, 1.0)])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_unusable_update_contributes_nothing_at_all(bad: float, layout: Layout) -> None:
    """Not even its counter, which would tell the server of a client without a sum."""
    good, broken = [0.1, 0.2, 0.3], [0.1, bad, 0.3]
    alone, usable = layout.encode(np.array([broken]), np.array([1]))
    assert not alone.any()
    assert not usable.any()
    total, usable = layout.encode(np.array([good, broken]), np.array([1, 1]))
    np.testing.assert_array_equal(usable, [True, False])
    np.testing.assert_array_equal(total, layout.encode(np.array([good]), np.array([1]))[0])


def test_nobody() -> None:
    """A node without clients adds zeros."""
    layout = Slots(2, 3, threshold=1.0, kappa=0.1)
    total, usable = layout.encode(np.zeros((0, 3)), np.zeros(0, dtype=int))
    assert not total.any()
    assert total.shape == (8,)
    assert usable.shape == (0,)


def test_a_zero_update_is_still_counted() -> None:
    """The client took part; its slot is zero, its counter is not."""
    layout = Slots(2, 3, threshold=1.0, kappa=0.1)
    total, _ = layout.encode(np.zeros((1, 3)), np.array([1]))
    _, counts = layout.decode(from_grid(total, layout.sensitivity))
    assert counts is not None
    np.testing.assert_allclose(counts, [0, 1], atol=1e-10)


@pytest.mark.parametrize("layout", [Slots(3, 8, 0.5, 0.1), Coded(3, 8, 0.5)])
def test_nodes_may_split_the_clients_in_any_way(layout: Layout) -> None:
    """The sum of the nodes' totals is the total of all, in every bit."""
    rng = np.random.default_rng(3)
    updates = rng.standard_normal((40, 8)) * 10.0 ** rng.integers(-8, 2, (40, 1))
    chosen = rng.integers(0, 3, 40)
    total, _ = layout.encode(updates, chosen)
    for _ in range(5):
        nodes = np.split(rng.permutation(40), np.sort(rng.choice(40, 6)))
        parts = [layout.encode(updates[node], chosen[node])[0] for node in nodes]
        np.testing.assert_array_equal(np.sum(parts, axis=0), total)


# --- codes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [1, 2, 3, 4, 7, 20])
def test_simplex(clusters: int) -> None:
    """Unit vectors, equal inner products -1 / (C - 1), hence a sum of zero."""
    vertices = simplex(clusters)
    assert vertices.shape == (clusters, clusters - 1)
    expected = np.eye(clusters) if clusters == 1 else np.full((clusters, clusters), -1.0)
    if clusters > 1:
        expected /= clusters - 1
        np.fill_diagonal(expected, 1.0)
        np.testing.assert_allclose(vertices @ vertices.T, expected, atol=1e-14)
    np.testing.assert_allclose(vertices.sum(axis=0), 0.0, atol=1e-14)


def test_code_by_hand() -> None:
    """C = 2, D = 2, S = sqrt(1.25): [u1 + u2 ; .5 (u1 - u2)], u clipped to 1."""
    layout = Coded(2, 2, threshold=math.sqrt(1.25))
    updates = np.array([[3.0, 4.0], [0.3, 0.0]])
    total, usable = layout.encode(updates, np.array([0, 1]))
    assert usable.all()
    values = from_grid(total, layout.sensitivity)
    np.testing.assert_allclose(values, [0.9, 0.8, 0.15, 0.4], atol=1e-9)
    sums, counts = layout.decode(values)
    assert counts is None
    np.testing.assert_allclose(sums, [[0.6, 0.8], [0.3, 0.0]], atol=1e-9)


@pytest.mark.parametrize("clusters", [1, 2, 3, 5])
@pytest.mark.parametrize("contrast", [CONTRAST, 0.2])
def test_codes_decode_to_what_slots_hold(clusters: int, contrast: float) -> None:
    """Without noise and clipping: the clusters' sums, which add up to the common part."""
    rng = np.random.default_rng(clusters)
    updates, chosen = 0.05 * rng.standard_normal((30, 6)), rng.integers(0, clusters, 30)
    coded, slots = Coded(clusters, 6, 2.0, contrast), Slots(clusters, 6, 2.0)
    values = from_grid(coded.encode(updates, chosen)[0], coded.sensitivity)
    sums, _ = coded.decode(values)
    expected, _ = slots.decode(from_grid(slots.encode(updates, chosen)[0], slots.sensitivity))
    np.testing.assert_allclose(sums, expected, atol=1e-7)
    np.testing.assert_allclose(sums.sum(axis=0), values[:6], atol=1e-12)


@pytest.mark.parametrize("clusters", [1, 2, 4])
@pytest.mark.parametrize("contrast", [CONTRAST, 0.35, 2.0])
def test_sensitivity_of_a_code_is_reached(clusters: int, contrast: float) -> None:
    """A clipped update comes up to S, and never beyond in exact integers."""
    layout = Coded(clusters, 5, 0.7, contrast)
    assert layout.sensitivity == 0.7
    for cluster in range(clusters):
        total, _ = layout.encode(np.full((1, 5), 9.0), np.array([cluster]))
        assert squared(total) <= BOUND
        assert math.sqrt(squared(total)) == pytest.approx(GRID_STEPS, rel=1e-8)


def test_one_cluster_has_no_contrasts() -> None:
    """The vector is the update, clipped to S itself."""
    layout = Coded(1, 3, threshold=1.0)
    total, _ = layout.encode(np.array([[0.0, 3.0, 4.0]]), np.array([0]))
    assert layout.size == 3
    np.testing.assert_allclose(from_grid(total, 1.0), [0.0, 0.6, 0.8], atol=1e-9)
    assert CONTRAST == 0.5  # METHODS 6.4
