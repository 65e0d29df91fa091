"""Exact methods against brute force, against each other and on the proved instances."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from strategies.wireless import association_pulp
from strategies.wireless.association import associate
from strategies.wireless.association_exact import (
    associate_exactly,
    solve_exactly,
    subset_convolution,
)
from strategies.wireless.association_pulp import (
    partition_with_fixed_heads,
    partition_with_free_heads,
)
from strategies.wireless.bounds import PriceBound, reduced
from strategies.wireless.p_median import p_median, possible_pairs
from strategies.wireless.problem import (
    InfeasibleCapacityError,
    check_clustering,
    load_instance,
    objective,
)
from strategies.wireless.solve import solve
from tests.wireless.oracles import brute_force, brute_force_heads, feasible_start

SOLVERS = ["highs", "cbc"]


@pytest.mark.parametrize("bits", [0, 1, 3, 8, 9])
def test_subset_convolution_equals_the_definition(bits: int) -> None:
    rng = np.random.default_rng(bits)
    first, second = rng.random((2, 1 << bits))
    second[rng.random(1 << bits) < 0.3] = np.inf
    for mask, found in enumerate(subset_convolution(first, second, bits)):
        options = [first[mask ^ s] + second[s] for s in range(mask + 1) if s & mask == s]
        assert found == min(options)


@pytest.mark.parametrize("seed", range(25))
def test_fixed_heads_equal_brute_force(draw, seed: int) -> None:
    problem = draw(seed)
    heads = np.sort(feasible_start(problem, seed).heads)
    best = brute_force(problem, heads.tolist())
    found = associate_exactly(problem, heads)
    check_clustering(problem, found)
    assert objective(problem, found) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("seed", range(25))
def test_free_heads_equal_brute_force(draw, seed: int) -> None:
    problem = draw(seed, devices=4 + seed % 3)
    found = solve_exactly(problem)
    check_clustering(problem, found)
    assert objective(problem, found) == pytest.approx(brute_force_heads(problem), abs=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(6))
def test_pulp_equals_brute_force(draw, seed: int, solver: str) -> None:
    problem = draw(seed, devices=6)
    heads = np.sort(feasible_start(problem, seed).heads)
    fixed = partition_with_fixed_heads(problem, heads, seconds=30, solver=solver)
    assert fixed.status == "optimal"
    assert fixed.value == pytest.approx(brute_force(problem, heads.tolist()), abs=1e-9)
    free = partition_with_free_heads(problem, seconds=30, solver=solver)
    assert free.status == "optimal"
    assert free.value == pytest.approx(brute_force_heads(problem), abs=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(4))
def test_p_median_equals_the_other_exact_method(draw, seed: int, solver: str) -> None:
    problem = draw(seed, devices=10, alpha=0.0)
    found = p_median(problem, seconds=30, solver=solver)
    assert found.status == "optimal"
    assert found.value == pytest.approx(objective(problem, solve_exactly(problem)), abs=1e-9)


def test_pairs_left_out_of_the_p_median_are_in_no_optimum(draw) -> None:
    left_out = 0
    for seed in range(40):
        problem = draw(seed, devices=9, alpha=0.0)
        best = solve_exactly(problem)
        rows = reduced(problem.unit_gradients)
        prices = PriceBound(problem, rows, problem.smallest_head_count)
        prices.improve(objective(problem, best), 60)
        possible = possible_pairs(problem, prices, objective(problem, best))
        position = np.full(problem.devices, -1)
        position[problem.candidates] = np.arange(len(problem.candidates))
        assert possible[position[best.heads[best.labels]], np.arange(problem.devices)].all()
        left_out += int((~possible).sum())
    assert left_out > 100


def test_p_median_refuses_other_alpha(draw) -> None:
    with pytest.raises(ValueError, match=r"alpha = 0.5: must be 0"):
        p_median(draw(1, alpha=0.5), seconds=1)


@pytest.mark.parametrize("seed", range(10))
def test_value_does_not_change_when_devices_are_permuted(draw, seed: int) -> None:
    problem = draw(seed, devices=9)
    order = np.random.default_rng(seed).permutation(problem.devices)
    place = np.argsort(order)
    permuted = replace(
        problem,
        positions_m=problem.positions_m[order],
        unit_gradients=problem.unit_gradients[order],
        candidates=place[problem.candidates],
    )
    one, two = objective(problem, solve_exactly(problem)), solve_exactly(permuted)
    assert objective(permuted, two) == pytest.approx(one, abs=1e-12)


def test_proved_instances(instances) -> None:
    names = sorted(path for path in instances.glob("*.npz") if path.name[0] in "fj")
    assert len(names) >= 24
    for path in names:
        problem, heads = load_instance(path)
        with np.load(path) as stored:
            best = float(stored["best_value"])
        found = solve(problem, heads)
        assert found.status == "optimal", path.name
        assert found.value == pytest.approx(best, abs=1e-9), path.name
        assert found.gap == 0.0


def test_too_many_devices_are_refused(draw) -> None:
    problem = draw(3, devices=40)
    with pytest.raises(ValueError, match="U = 40"):
        solve_exactly(problem)
    with pytest.raises(ValueError, match="U - K"):
        associate_exactly(problem, problem.candidates[:20])
    with pytest.raises(ValueError, match="columns"):
        partition_with_free_heads(problem, seconds=1)


def test_infeasible_heads_are_found_before_any_solver(draw, monkeypatch) -> None:
    problem = draw(2, devices=8, candidates=np.array([0, 1, 2]), capacities=np.array([2, 6, 2]))

    def never(*_: object) -> None:
        raise AssertionError("a solver ran")

    monkeypatch.setattr(association_pulp, "run_solver", never)
    monkeypatch.setattr("strategies.wireless.association_exact.subset_convolution", never)
    for method in ("pulp", "exact", "fast"):
        with pytest.raises(InfeasibleCapacityError, match="4 too few"):
            associate(problem, np.array([0, 2]), method=method, seconds=1)
    with pytest.raises(InfeasibleCapacityError):
        solve(problem, np.array([0, 2]))


@pytest.mark.parametrize("solver", SOLVERS)
def test_time_limit_is_obeyed_and_status_is_honest(draw, solver: str) -> None:
    problem = draw(1, devices=60, alpha=0.0, candidates=np.arange(60), capacities=np.full(60, 7))
    started = time.perf_counter()
    found = p_median(problem, seconds=0.2, solver=solver)
    assert time.perf_counter() - started < 20  # building and a stuck presolve, not the search
    check_clustering(problem, found.clustering)
    assert found.value == pytest.approx(objective(problem, found.clustering))
    if found.status == "optimal":
        assert found.gap == 0
    nothing = p_median(problem, seconds=1e-6, solver=solver)
    assert nothing.status == "feasible"
    check_clustering(problem, nothing.clustering)


def test_solver_that_stopped_early_is_not_called_optimal(draw, monkeypatch) -> None:
    import pulp

    real = pulp.LpProblem.solve

    def stopped(self: pulp.LpProblem, *args: object) -> int:
        status = real(self, *args)
        self.sol_status = pulp.LpSolutionIntegerFeasible  # what PuLP reports at a time limit
        return status

    monkeypatch.setattr(pulp.LpProblem, "solve", stopped)
    problem = draw(1, devices=6)
    assert partition_with_free_heads(problem, seconds=30).status == "feasible"


def test_missing_solver_is_one_clear_error(draw, monkeypatch) -> None:
    import pulp

    monkeypatch.setattr(pulp.HiGHS, "available", lambda self: False)
    with pytest.raises(RuntimeError, match="pip install highspy"):
        partition_with_free_heads(draw(1), seconds=5)
    with pytest.raises(ValueError, match="solver = 'gurobi'"):
        partition_with_free_heads(draw(1), seconds=5, solver="gurobi")
    monkeypatch.setitem(sys.modules, "pulp", None)
    with pytest.raises(RuntimeError, match="pip install pulp"):
        partition_with_free_heads(draw(1), seconds=5)


def test_native_output_is_silenced(draw, capfd) -> None:
    partition_with_free_heads(draw(1), seconds=5)
    assert capfd.readouterr().out == ""
