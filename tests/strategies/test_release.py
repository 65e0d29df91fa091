"""The slots: sensitivity in exact integers, layout, and what unusable updates contribute."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from strategies.privacy.mechanisms import GRID_STEPS, from_grid
from strategies.release import Slots
from tests.strategies import drawn

BOUND = int(GRID_STEPS * (1 + 1e-12)) ** 2
"""Square of one sensitivity in grid steps; 1e-12 covers the float error of clipping."""


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[Slots, NDArray[np.float64], NDArray[np.intp]]:
    """A layout and the wild updates (huge, infinite, NaN) of one to five clients."""
    clusters, width = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    kappa = draw(st.one_of(st.just(0.0), st.floats(1e-3, 10.0)))
    layout = Slots(clusters, width, draw(st.floats(1e-4, 1e4)), kappa)
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
    cohort: tuple[Slots, NDArray[np.float64], NDArray[np.intp]],
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


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_unusable_update_contributes_nothing_at_all(bad: float) -> None:
    """Not even its counter, which would tell the server of a client without a sum."""
    layout = Slots(2, 3, threshold=1.0, kappa=0.1)
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


def test_nodes_may_split_the_clients_in_any_way() -> None:
    """The sum of the nodes' totals is the total of all, in every bit."""
    rng = np.random.default_rng(3)
    layout = Slots(3, 8, threshold=0.5, kappa=0.1)
    updates = rng.standard_normal((40, 8)) * 10.0 ** rng.integers(-8, 2, (40, 1))
    chosen = rng.integers(0, 3, 40)
    total, _ = layout.encode(updates, chosen)
    for _ in range(5):
        nodes = np.split(rng.permutation(40), np.sort(rng.choice(40, 6)))
        parts = [layout.encode(updates[node], chosen[node])[0] for node in nodes]
        np.testing.assert_array_equal(np.sum(parts, axis=0), total)
