"""Every partition satisfies the inequalities; with those that X violates the bound rises."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from strategies.wireless.partition_cuts import PartitionCuts, violated
from strategies.wireless.problem import load_instance
from strategies.wireless.semidefinite import ProjectionBound
from tests.wireless.oracles import brute_force_heads


def shared_by(labels) -> np.ndarray:
    together = labels[:, None] == labels[None, :]
    return together / together.sum(axis=1, keepdims=True)


def left_side(vector, shared) -> float:
    return float(vector @ np.diag(shared) - vector @ shared @ vector)


@pytest.mark.parametrize("seed", range(10))
def test_partitions_satisfy_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shared = shared_by(rng.integers(5, size=20))
    for vector in rng.integers(-3, 4, (200, 20)):
        assert left_side(vector, shared) <= 1e-12
    assert len(violated(shared)) == 0


@pytest.mark.parametrize("seed", range(10))
def test_what_is_found_is_violated(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mixed = np.mean([shared_by(rng.permutation(20) % 5) for _ in range(3)], axis=0)
    noise = 0.05 * rng.random((20, 20))
    shared = mixed + noise + noise.T
    found = violated(shared).astype(float)
    assert len(found)
    assert all(left_side(vector, shared) > 1e-3 for vector in found)


def test_triangles_are_found() -> None:
    """Device 0 shares a cluster with 1 and with 2, which do not share one."""
    shared = np.eye(3) / 2
    shared[0, 1:] = shared[1:, 0] = 1 / 2
    (found,) = violated(shared)
    assert found.tolist() == [-1, 1, 1]
    worst = max(
        shared[u, v] + shared[u, w] - shared[v, w] - shared[u, u]
        for u in range(3)
        for v, w in combinations(sorted({0, 1, 2} - {u}), 2)
    )
    assert left_side(found.astype(float), shared) == pytest.approx(2 * worst)


def test_rows_and_multipliers() -> None:
    """<A_i, X> by the sparse rows equals the definition; multipliers never fall below 0."""
    rng = np.random.default_rng(0)
    shared = rng.random((12, 12))
    shared += shared.T
    cuts = PartitionCuts(12)
    assert not cuts.ascend(shared, 1.0).any()
    cuts.add_violated(shared)
    sides = [left_side(vector.astype(float), shared) for vector in cuts.vectors]
    np.testing.assert_allclose(cuts.rows @ shared.ravel(), sides, atol=1e-12)
    added = cuts.ascend(shared, 1.0)
    np.testing.assert_allclose(added, added.T)
    assert np.vdot(added, shared) == pytest.approx(cuts.multipliers @ sides)
    count = len(cuts.vectors)
    cuts.add_violated(shared)
    assert len(cuts.vectors) == count  # known already
    for _ in range(200):
        cuts.ascend(shared_by(np.arange(12) % 3), 100.0)
    assert (cuts.multipliers >= 0).all()
    cuts.multipliers[:] = 0.0
    cuts.add_violated(shared_by(np.arange(12) % 3))
    assert len(cuts.vectors) == 0  # useless ones are forgotten


@pytest.mark.parametrize("seed", range(10))
def test_bound_with_cuts_is_valid(draw, seed: int) -> None:
    """Whatever the multipliers, of inequalities that were found and of drawn ones."""
    problem = draw(seed, alpha=1.0, weighting="size")
    rows = problem.unit_gradients.astype(float)
    most, devices = int(problem.capacities.max()), problem.devices
    bound = ProjectionBound(rows @ rows.T, problem.smallest_head_count, most, np.zeros(0, int))
    best = brute_force_heads(problem)
    gram, cuts, rng = bound.gram, PartitionCuts(devices), np.random.default_rng(seed)
    for _ in range(60):
        cuts.add_violated(bound.boxed)
        bound.gram = gram + cuts.ascend(bound.boxed, bound.penalty)
        bound.step()
        assert bound.bound() <= best + 1e-12
    for scale in (1e-3, 0.1, 3.0):
        for vector in rng.integers(-2, 3, (20, devices)).astype(float):
            cut = np.diag(vector) - np.outer(vector, vector)
            bound.gram = gram + scale * rng.random() * cut
            assert bound.bound() <= best + 1e-12


def test_a_wrong_sign_would_be_noticed(draw) -> None:
    """The inequalities turned round do push the bound above the optimum."""
    problem = draw(0, alpha=1.0, weighting="size")
    rows = problem.unit_gradients.astype(float)
    most, devices = int(problem.capacities.max()), problem.devices
    bound = ProjectionBound(rows @ rows.T, problem.smallest_head_count, most, np.zeros(0, int))
    bound.gram = bound.gram + 3.0 * (np.ones((devices, devices)) - np.eye(devices))
    assert bound.bound() > brute_force_heads(problem)


def test_cuts_raise_a_converged_bound(instances) -> None:
    """Without them it converges to .133916."""
    problem, _ = load_instance(instances / "u100_n30_v10_a100.npz")
    rows = problem.unit_gradients.astype(float)
    bound = ProjectionBound(rows @ rows.T, 10, 10, np.zeros(0, int))
    ticks = iter(range(10**9))
    bound.improve(1.0, lambda: next(ticks), 1500)
    assert 0.13395 < bound.value < 0.1393
