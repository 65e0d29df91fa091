"""The fast search: gains, feasibility, determinism, optima of tiny instances, limits."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.wireless.annealing import (
    DISTANCE_FLOOR,
    Budget,
    anneal_population,
    full_data,
    stack_starts,
)
from strategies.wireless.association import associate, associate_many
from strategies.wireless.association_exact import solve_exactly
from strategies.wireless.baselines import (
    fedavg_value,
    kmeans_clustering,
    random_clustering,
    shapefl_search,
    similarity_clustering,
)
from strategies.wireless.blocks import anneal_blocks, principal_factor
from strategies.wireless.head_selection import select_heads
from strategies.wireless.heat_bath import HeatBath, NoisePool
from strategies.wireless.heat_bath_steps import FORBIDDEN
from strategies.wireless.problem import Clustering, check_clustering, objective
from strategies.wireless.solve import solve
from strategies.wireless.starts import (
    greedy_association,
    random_heads,
    spread_heads,
    transport_association,
)
from tests.wireless.oracles import brute_force, feasible_start

SEEDS = st.integers(0, 10_000)


def bath_of(problem, starts, seed: int = 0) -> HeatBath:
    labels, heads, tables = stack_starts(problem, starts)
    noise = NoisePool(np.random.default_rng(seed), np.float64)
    return HeatBath(full_data(problem), labels, heads, tables, noise)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_every_gain_equals_recomputation(draw, seed: int) -> None:
    """All swaps and moves of one device, allowed or not, in two members with other head counts."""
    problem = draw(seed, devices=9)
    starts = [feasible_start(problem, seed), feasible_start(problem, seed + 1)]
    bath = bath_of(problem, starts)
    floor = 2 * DISTANCE_FLOOR  # the tie-break at alpha = 1
    device = seed % problem.devices
    changes = bath.changes(np.full(2, device))
    for member, start in enumerate(starts):
        value = objective(problem, start)
        assert bath.value[member] == pytest.approx(value, abs=floor)
        for choice, change in enumerate(changes[member]):
            labels = start.labels.copy()
            if choice < problem.devices:
                labels[[device, choice]] = labels[[choice, device]]
            elif choice - problem.devices < len(start.heads):
                labels[device] = choice - problem.devices
            else:
                assert change > FORBIDDEN / 2  # a cluster that does not exist
                continue
            after = Clustering(labels, start.heads)
            try:
                check_clustering(problem, after)
            except ValueError:
                assert change > FORBIDDEN / 2
                continue
            if change < FORBIDDEN / 2:
                assert objective(problem, after) - value == pytest.approx(change, abs=floor)
            else:  # forbidden although feasible: only where nothing would change
                same = (labels == start.labels).all()
                assert same or device in start.heads or choice in start.heads


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_look_ups_stay_exact_over_many_applied_steps(draw, seed: int) -> None:
    problem = draw(seed, devices=12)
    starts = [feasible_start(problem, seed + i) for i in range(5)]
    bath = bath_of(problem, starts, seed)
    for temperature in (0.1, 0.01, 0.0):
        bath.sweep(temperature)
        for member in range(5):
            plan = Clustering(bath.labels[member], bath.heads[member][bath.heads[member] >= 0])
            check_clustering(problem, plan)
            value = objective(problem, plan)
            assert bath.value[member] == pytest.approx(value, abs=2 * DISTANCE_FLOOR)
        kept = [array.copy() for array in bath.state]
        bath.rebuild()
        for name, array in zip(bath.state._fields, kept, strict=True):
            np.testing.assert_allclose(array, getattr(bath.state, name), atol=1e-10)
        bath.draw_heads(temperature)


def test_two_hundred_drawn_instances_stay_feasible(draw) -> None:
    for seed in range(200):
        problem = draw(seed, devices=5 + seed % 12)
        found = select_heads(problem, sweeps=1, rng=np.random.default_rng(seed))
        check_clustering(problem, found.clustering)
        assert found.status == "feasible"
        assert found.value == objective(problem, found.clustering)


def test_search_finds_most_optima(draw) -> None:
    seeds = range(40)
    hits = 0
    for seed in seeds:
        problem = draw(seed, devices=8)
        best = objective(problem, solve_exactly(problem))
        found = select_heads(problem, sweeps=60, rng=np.random.default_rng(seed))
        assert found.value >= best - 1e-12
        hits += found.value <= best + 1e-9
    assert hits >= 38


def test_fixed_head_search_finds_most_optima(draw) -> None:
    hits = 0
    for seed in range(30):
        problem = draw(seed, devices=7)
        heads = np.sort(feasible_start(problem, seed).heads)
        found = associate(problem, heads, sweeps=40, rng=np.random.default_rng(seed))
        assert (found.clustering.heads == heads).all()
        hits += found.value <= brute_force(problem, heads.tolist()) + 1e-9
    assert hits >= 29


@pytest.mark.parametrize("mode", ["fast", "paper"])
def test_the_same_seed_and_sweeps_give_the_same_plan(draw, mode: str) -> None:
    problem = draw(3, devices=30)
    one, two = (
        select_heads(problem, mode=mode, sweeps=5, rng=np.random.default_rng(7)) for _ in range(2)
    )
    assert (one.clustering.labels == two.clustering.labels).all()
    assert (one.clustering.heads == two.clustering.heads).all()


def test_search_leaves_the_global_generator_alone(draw) -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    select_heads(draw(1, devices=12), sweeps=3)
    assert (before == np.random.get_state()[1]).all()  # noqa: NPY002


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_blocks_stay_feasible_and_improve(draw, alpha: float) -> None:
    capacity = np.random.default_rng(5).integers(3, 9, 400)
    problem = draw(5, 400, alpha=alpha, candidates=np.arange(400), capacities=capacity)
    start = greedy_association(problem, spread_heads(problem, 75))
    budget = Budget(sweeps=30)
    found = anneal_blocks(problem, start, budget, np.random.default_rng(0))
    check_clustering(problem, found)
    assert budget.done == 30
    assert objective(problem, found) < 0.98 * objective(problem, start)
    fixed = anneal_blocks(
        problem, start, Budget(sweeps=6), np.random.default_rng(0), free_heads=False
    )
    check_clustering(problem, fixed)
    assert set(fixed.heads) == set(start.heads)


def test_blocks_and_population_agree(draw) -> None:
    problem = draw(8, 120, alpha=0.5, candidates=np.arange(120), capacities=15, weighting="paper")
    start = greedy_association(problem, spread_heads(problem, 8))
    rng = np.random.default_rng(0)
    one = objective(problem, anneal_blocks(problem, start, Budget(sweeps=150), rng))
    two = objective(problem, anneal_population(problem, [start] * 8, Budget(sweeps=60), rng))
    assert one == pytest.approx(two, rel=0.04)


def test_long_gradients_are_factored_with_exact_norms() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 20)) @ rng.normal(size=(20, 500))
    factor, norms = principal_factor(rows, rng)
    assert factor.shape == (300, 128)
    np.testing.assert_allclose(norms, (rows**2).sum(axis=1))
    np.testing.assert_allclose(factor @ factor.T, rows @ rows.T, atol=1e-6 * norms.max())


@pytest.mark.parametrize("method", ["search", "paper"])
@pytest.mark.parametrize("devices", [60, 500])
def test_time_limits_are_obeyed(draw, method: str, devices: int) -> None:
    problem = draw(7, devices, candidates=np.arange(devices), capacities=9)
    started = time.perf_counter()
    found = solve(problem, method=method, seconds=0.5)
    assert time.perf_counter() - started < 15  # generous: a busy machine, not a speed test
    check_clustering(problem, found.clustering)
    assert 0 <= found.lower_bound <= found.value


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 1.0])
def test_never_worse_than_a_baseline(draw, alpha: float) -> None:
    for seed in (1, 2):
        problem = draw(seed, 60, alpha=alpha, candidates=np.arange(60), capacities=10)
        rng = np.random.default_rng(seed)
        found = select_heads(problem, sweeps=20, rng=rng)
        rivals = [random_clustering, kmeans_clustering, similarity_clustering]
        plans = [rival(problem, rng) for rival in rivals] + [shapefl_search(problem, 0.3)]
        for plan in plans:
            check_clustering(problem, plan)
            assert found.value <= objective(problem, plan) + 1e-12
        assert found.value <= fedavg_value(problem) + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_algorithm_1_ends_where_no_operation_improves(draw, seed: int) -> None:
    problem = draw(seed, devices=10)
    found = select_heads(problem, mode="paper", sweeps=50, rng=np.random.default_rng(seed))
    check_clustering(problem, found.clustering)
    heads = found.clustering.heads
    others = np.setdiff1d(problem.candidates, heads)
    trials = [np.append(heads, n) for n in others]
    trials += [np.append(np.delete(heads, i), n) for i in range(len(heads)) for n in others]
    trials += [np.delete(heads, i) for i in range(len(heads)) if len(heads) > 1]
    capacity = problem.capacity_of_device()
    trials = [trial for trial in trials if capacity[trial].sum() >= problem.devices]
    # The descent visits devices in random order, so one trial may end a little lower than before.
    better = 0
    for trial in trials:
        (again,) = associate_many(problem, [trial], np.random.default_rng(seed + 1))
        better += objective(problem, again) < found.value - 1e-9
    assert better <= 1


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_starts_are_feasible(draw, seed: int) -> None:
    problem = draw(seed, devices=14)
    count = problem.smallest_head_count
    rng = np.random.default_rng(seed)
    for heads in (spread_heads(problem, count), random_heads(problem, count, rng)):
        for start in (greedy_association, transport_association):
            check_clustering(problem, start(problem, heads))


@pytest.mark.parametrize("seed", range(8))
def test_transport_is_exact_at_alpha_0(draw, seed: int) -> None:
    problem = draw(seed, devices=7, alpha=0.0)
    heads = np.sort(feasible_start(problem, seed).heads)
    found = transport_association(problem, heads)
    assert objective(problem, found) == pytest.approx(brute_force(problem, heads.tolist()))


def test_budget_checks_its_values() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Budget()
    with pytest.raises(ValueError, match="seconds = -1"):
        Budget(seconds=-1)
    with pytest.raises(ValueError, match="sweeps = 0"):
        Budget(sweeps=0)


def test_size_weighting_does_not_reward_unbalanced_clusters(draw) -> None:
    """The loophole of Eq. 15 at alpha = 1: more heads than needed, some clusters small."""
    fixed = {"alpha": 1.0, "candidates": np.arange(40), "capacities": 10}
    paper = select_heads(draw(4, 40, weighting="paper", **fixed), sweeps=80)
    size = select_heads(draw(4, 40, weighting="size", **fixed), sweeps=80)
    assert len(size.clustering.heads) == 4
    assert len(paper.clustering.heads) > 4


def test_blocks_return_the_start_if_they_find_nothing_better(draw) -> None:
    """At alpha = 0 the transport start is optimal; a few hot sweeps leave it."""
    problem = draw(1, 320, alpha=0.0, candidates=np.arange(320), capacities=15)
    heads = spread_heads(problem, 25)
    best = objective(problem, transport_association(problem, heads))
    assert associate(problem, heads, sweeps=2).value == pytest.approx(best, abs=1e-12)
