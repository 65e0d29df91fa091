"""The block engine draws steps from the same changes as the plain one, and makes them exactly."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.wireless.annealing import Budget, full_data, weight_table
from strategies.wireless.block_bath import BlockBath
from strategies.wireless.blocks import anneal_blocks
from strategies.wireless.head_selection import select_heads
from strategies.wireless.heat_bath import FORBIDDEN, Data, HeatBath, NoisePool
from strategies.wireless.problem import Clustering, check_clustering, objective
from strategies.wireless.starts import greedy_association, spread_heads
from tests.wireless.oracles import feasible_start


def baths(problem, seed: int, shared: bool = False, batch: int = 4) -> tuple[BlockBath, HeatBath]:
    """Both engines with two copies of an instance, a cluster and a device of padding each."""
    start, data = feasible_start(problem, seed), full_data(problem)
    count = len(start.heads)
    table = weight_table(problem, count, problem.devices + 3)
    labels = np.full((2, problem.devices + 1), -1)
    labels[:, :-1] = start.labels
    heads = np.full((2, count + 1), -1)
    heads[:, :-1] = start.heads

    def padded(array: np.ndarray) -> np.ndarray:
        grown = np.pad(array[0], [(0, 1)] * (array.ndim - 1))
        return grown[None] if shared else np.stack([grown, grown])

    data = Data(*(padded(getattr(data, k)) for k in ("gram", "distance", "to_server", "capacity")))
    rng = np.random.default_rng(seed)
    tables = np.tile(table, (2, 1))
    noise = NoisePool(rng, labels.size, np.float32)
    block = BlockBath(data, labels, heads, tables, noise, batch)
    plain = HeatBath(data, labels, heads, tables, NoisePool(rng, labels.size))
    return block, plain


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("shared", [True, False])
def test_changes_are_those_of_the_plain_engine(draw, seed: int, shared: bool) -> None:
    block, plain = baths(draw(seed, devices=9), seed, shared)
    everyone = np.tile(np.arange(10), (2, 1))
    swaps, moves = block.swap_changes(everyone), block.move_changes()
    np.testing.assert_allclose(block.value, plain.value, atol=1e-6)
    for device in range(10):
        expected = plain.changes(everyone[:, device])
        able = expected < FORBIDDEN / 2
        found = np.concatenate([swaps[:, device], moves[:, :, device]], axis=1)
        np.testing.assert_allclose(found[able], expected[able], atol=2e-6)
        forbidden = ~able
        same = block.labels == block.labels[:, [device]]
        forbidden[:, :10] &= ~same  # swaps within a cluster are dropped when they are drawn
        assert (found[forbidden] > FORBIDDEN / 2).all()
        assert (found[:, :10][same] > -1e-6).all()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("batch", [1, 4, 50])
@pytest.mark.parametrize("shared", [True, False])
def test_look_ups_stay_exact_over_many_steps(draw, seed: int, batch: int, shared: bool) -> None:
    problem = draw(seed, devices=14)
    block, _ = baths(problem, seed, shared, batch)
    for temperature in (0.1, 0.01, 1e-5):
        for _ in range(5):
            block.sweep(temperature)
        fresh = BlockBath(
            block.data,
            np.where(block.padding, -1, block.labels),
            block.heads,
            block.table,
            block.noise,
        )
        for name in ("products", "squares", "counts", "weight", "cost", "member"):
            found, expected = getattr(block, name), getattr(fresh, name)
            np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(block.value, fresh.value, atol=1e-6)
        block.draw_heads(temperature)
        block.exchange_heads(temperature)
        for row in range(2):
            plan = Clustering(block.labels[row, :-1], block.heads[row, :-1])
            check_clustering(problem, plan)


def test_steps_that_share_a_cluster_are_dropped(draw) -> None:
    block, _ = baths(draw(1, devices=9), 1)
    source, target = np.array([0, 2, 1, 3, 0]), np.array([1, 3, 4, 2, 5])
    block.counts = np.zeros(6)
    assert block._without_collisions(np.arange(5), source, target).tolist() == [0, 1]
    assert block._without_collisions(np.array([2, 3, 4]), source, target).tolist() == [2, 3, 4]


def test_the_population_is_deterministic_too(draw) -> None:
    problem = draw(4, 60, alpha=0.5, candidates=np.arange(60), capacities=9)
    found = [select_heads(problem, sweeps=8, rng=np.random.default_rng(2)) for _ in "ab"]
    assert found[0].value == found[1].value
    assert (found[0].clustering.labels == found[1].clustering.labels).all()


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_sweep_budget_is_deterministic(draw, alpha: float) -> None:
    problem = draw(2, 400, alpha=alpha, candidates=np.arange(400), capacities=15)
    start = greedy_association(problem, spread_heads(problem, 27))
    found = [
        anneal_blocks(problem, start, Budget(sweeps=12), np.random.default_rng(5)) for _ in "ab"
    ]
    assert (found[0].labels == found[1].labels).all()
    assert (found[0].heads == found[1].heads).all()
    assert objective(problem, found[0]) < objective(problem, start)
