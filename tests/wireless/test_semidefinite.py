"""The semidefinite bound is valid whatever its multipliers, and better than the mean gradient."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from strategies.wireless.association_exact import solve_exactly
from strategies.wireless.bounds import lower_bound
from strategies.wireless.problem import load_instance, objective
from strategies.wireless.semidefinite import ProjectionBound
from tests.wireless.oracles import brute_force, brute_force_heads, feasible_start

NOBODY = np.zeros(0, dtype=np.int64)


def bound_for(problem, apart=NOBODY) -> ProjectionBound:
    rows = problem.unit_gradients.astype(float)
    clusters = len(apart) if len(apart) else problem.smallest_head_count
    return ProjectionBound(rows @ rows.T, clusters, int(problem.capacities.max()), apart)


@pytest.mark.parametrize("seed", range(20))
def test_any_multipliers_give_a_valid_bound(draw, seed: int) -> None:
    problem = draw(seed, alpha=1.0, weighting="size")
    best = brute_force_heads(problem)
    bound = bound_for(problem)
    assert bound.value <= best + 1e-12
    for _ in range(40):
        bound.step()
        assert bound.bound() <= best + 1e-12
    rng = np.random.default_rng(seed)
    for scale in (0.01, 0.3, 3.0):
        drawn = scale * rng.normal(size=bound.gram.shape)
        bound.multipliers = drawn + drawn.T
        assert bound.bound() <= best + 1e-12


@pytest.mark.parametrize("seed", range(15))
def test_fixed_heads_are_kept_apart(draw, seed: int) -> None:
    problem = draw(seed, alpha=1.0, weighting="size")
    heads = np.sort(feasible_start(problem, seed).heads)
    bound = bound_for(problem, heads)
    bound.improve(np.inf, time.process_time, time.process_time() + 0.1)
    best = brute_force(problem, heads.tolist())
    assert bound.value <= best + 1e-12
    assert lower_bound(problem, 1.01 * best, 0.1, heads) <= best + 1e-12


@pytest.mark.parametrize("weighting", ["size", "paper"])
@pytest.mark.parametrize("alpha", [0.9, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_certificate_near_alpha_1(draw, seed: int, alpha: float, weighting: str) -> None:
    """With the distance beside it, and with unequal capacities, many heads and zero gradients."""
    problem = draw(5 * seed, devices=9, alpha=alpha, weighting=weighting)
    best = objective(problem, solve_exactly(problem))
    assert lower_bound(problem, 1.01 * best, seconds=0.1) <= best + 1e-12


def test_it_finds_the_optimum_of_a_problem_with_one_cluster(draw) -> None:
    problem = draw(3, devices=6, alpha=1.0, weighting="size", candidates=np.arange(6), capacities=6)
    mean = problem.unit_gradients.mean(axis=0)
    assert bound_for(problem).value == pytest.approx(mean @ mean, abs=1e-9)


def test_it_beats_the_mean_gradient_on_a_shared_instance(instances) -> None:
    problem, _ = load_instance(instances / "u100_n30_v10_a100.npz")
    problem = replace(problem, weighting="size")
    mean = problem.unit_gradients.mean(axis=0)
    bound = bound_for(problem)
    for _ in range(150):
        bound.step()
    assert 1.005 * (mean @ mean) < bound.bound() < 1.055 * (mean @ mean)
