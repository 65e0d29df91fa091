"""The certificate never exceeds the optimum, whatever it is made from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.wireless import bounds
from strategies.wireless.association_exact import solve_exactly
from strategies.wireless.bounds import PriceBound, lower_bound, quick_bounds, reduced
from strategies.wireless.cheapest_cluster import cheapest, move_tangents
from strategies.wireless.problem import load_instance, objective
from strategies.wireless.solve import solve
from strategies.wireless.subsets import bound_for_head_count
from tests.wireless.oracles import brute_force, feasible_start

SEEDS = st.integers(0, 10_000)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_bound_is_at_most_the_optimum(draw, seed: int) -> None:
    problem = draw(seed)
    best = objective(problem, solve_exactly(problem))
    assert lower_bound(problem, 1.01 * best, seconds=0.05) <= best + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_separate_bounds_are_valid_too(draw, seed: int, monkeypatch) -> None:
    problem = draw(seed)
    best = objective(problem, solve_exactly(problem))
    monkeypatch.setattr(bounds, "JOINT_LIMIT", 0)
    assert lower_bound(problem, 1.01 * best, seconds=0.05) <= best + 1e-12
    monkeypatch.setattr(bounds, "DISTANCE_LIMIT", 0)
    assert lower_bound(problem, 1.01 * best, seconds=0.05) <= best + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_bound_for_fixed_heads(draw, seed: int) -> None:
    problem = draw(seed)
    heads = np.sort(feasible_start(problem, seed).heads)
    best = brute_force(problem, heads.tolist())
    assert lower_bound(problem, 1.01 * best, 0.05, heads) <= best + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_any_prices_and_tangents_give_a_valid_bound(draw, seed: int) -> None:
    problem = draw(seed)
    found = solve_exactly(problem)
    rng = np.random.default_rng(seed)
    bound = PriceBound(problem, reduced(problem.unit_gradients), len(found.heads))
    for _ in range(20):
        bound.prices = rng.normal(size=problem.devices) * 0.2
        bound.tangents = rng.normal(size=bound.tangents.shape)
        value, _ = bound.evaluate(smoothing=0.0)
        assert value <= objective(problem, found) + 1e-12


@pytest.mark.parametrize("seed", range(30))
def test_cheapest_clusters_by_sorting(seed: int) -> None:
    """Heads and none, one row of costs for all sizes and one each, sizes that are not allowed."""
    rng = np.random.default_rng(seed)
    devices, most = int(rng.integers(4, 12)), int(rng.integers(1, 5))
    heads = int(rng.integers(1, 4))
    costs = rng.normal(size=(heads, most if seed % 2 else 1, devices))
    owner = rng.permutation(devices)[:heads] if seed % 3 else np.full(heads, -1)
    constant = rng.normal(size=(heads, most))
    constant[rng.random(constant.shape) < 0.3] = np.inf
    value, size, members = cheapest(costs, owner, constant)
    for n in range(heads):
        totals = []
        for j in range(most):
            row = costs[n, min(j, costs.shape[1] - 1)]
            forced = [] if owner[n] < 0 else [owner[n]]
            others = [u for u in np.argsort(row) if u not in forced]
            chosen = (forced + others)[: j + 1]
            totals.append(constant[n, j] + row[chosen].sum())
            if size[n] == j + 1:
                assert members[n, : j + 1].tolist() == chosen
        assert value[n] == pytest.approx(min(totals))
        assert size[n] == (0 if np.isinf(min(totals)) else np.argmin(totals) + 1)


def test_tangents_move_towards_the_means() -> None:
    rng = np.random.default_rng(0)
    tangents, rows = rng.normal(size=(3, 4, 5)), rng.normal(size=(6, 5))
    size, members = np.array([2, 0, 4]), rng.integers(0, 6, (3, 4))
    expected = tangents.copy()
    expected[0, 1] += 0.3 * (rows[members[0, :2]].mean(axis=0) - tangents[0, 1])
    expected[2, 3] += 0.3 * (rows[members[2]].mean(axis=0) - tangents[2, 3])
    move_tangents(tangents, rows, size, members, 0.3)
    np.testing.assert_allclose(tangents, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["float64", "float32", "columns", "many"])
def test_a_bound_compiles_nothing_that_was_not_prepared(draw, monkeypatch, kind: str) -> None:
    bounds.prepare()
    prepared = [len(loop.signatures) for loop in (cheapest, move_tangents)]
    problem = draw(1, 30, alpha=0.5, candidates=np.arange(30), capacities=6)
    if kind == "columns":
        gradients = np.asfortranarray(problem.unit_gradients[:, :5])
    else:
        gradients = problem.unit_gradients[:, :5].astype("float64" if kind == "float64" else "f4")
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    problem = replace(problem, unit_gradients=gradients)
    if kind == "many":
        monkeypatch.setattr(bounds, "REDUCE_LIMIT", 20)
    lower_bound(problem, 1.0, seconds=0.05)
    lower_bound(problem, 1.0, 0.05, np.arange(6))
    monkeypatch.setattr(bounds, "JOINT_LIMIT", 0)
    lower_bound(problem, 1.0, seconds=0.05)
    assert prepared == [len(loop.signatures) for loop in (cheapest, move_tangents)]


@pytest.mark.parametrize("seed", range(20))
def test_quick_bounds_hold_for_every_number_of_heads(draw, seed: int) -> None:
    problem = draw(seed)
    counts = list(range(problem.smallest_head_count, len(problem.candidates) + 1))
    found = quick_bounds(problem, reduced(problem.unit_gradients), counts, upper=np.inf)
    for trial in range(30):
        start = feasible_start(problem, 100 * seed + trial)
        if len(start.heads) in counts:
            value = objective(problem, start)
            assert found[counts.index(len(start.heads))] <= value + 1e-12
            assert bound_for_head_count(problem, len(start.heads)) <= value + 1e-12


def test_certificate_on_a_shared_instance(instances) -> None:
    """Loose on purpose: the sizes of the gaps are measured in benchmarks/clustering.py."""
    problem, _ = load_instance(instances / "u100_n100_v15_a050.npz")
    found = solve(problem, seconds=4.0)
    assert found.status == "feasible"
    assert 0.5 * found.value < found.lower_bound < found.value
    assert found.gap == pytest.approx(1 - found.lower_bound / found.value)
