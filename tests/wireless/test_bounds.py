"""The certificate never exceeds the optimum, whatever it is made from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.wireless import bounds
from strategies.wireless.association_exact import solve_exactly
from strategies.wireless.bounds import PriceBound, lower_bound, quick_bounds, reduced
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
