"""Padded blocks in single precision: the same changes, exact look-ups, exchanges of heads."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from strategies.wireless import compiled, heat_bath_steps
from strategies.wireless.annealing import Budget, full_data, weight_table
from strategies.wireless.association import associate
from strategies.wireless.blocks import anneal_blocks
from strategies.wireless.head_selection import select_heads
from strategies.wireless.heat_bath import Data, HeatBath, NoisePool, prepare
from strategies.wireless.heat_bath_steps import FORBIDDEN
from strategies.wireless.problem import Clustering, check_clustering, objective
from strategies.wireless.starts import greedy_association, spread_heads
from tests.wireless.oracles import feasible_start


def padded_bath(problem, seed: int, kind: type[np.floating], *, shared: bool) -> HeatBath:
    """Two copies of an instance, with a cluster and a device of padding each."""
    start, data = feasible_start(problem, seed), full_data(problem)
    table = weight_table(problem, len(start.heads), problem.devices + 3)
    labels = np.full((2, problem.devices + 1), -1)
    labels[:, :-1] = start.labels
    heads = np.full((2, len(start.heads) + 1), -1)
    heads[:, :-1] = start.heads

    def padded(array: np.ndarray) -> np.ndarray:
        grown = np.pad(array[0], [(0, 1)] * (array.ndim - 1))
        return grown[None] if shared else np.stack([grown, grown])

    data = Data(*(padded(getattr(data, k)) for k in ("gram", "distance", "to_server", "capacity")))
    noise = NoisePool(np.random.default_rng(seed), kind)
    return HeatBath(data, labels, heads, np.tile(table, (2, 1)), noise)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("shared", [True, False])
def test_changes_in_single_precision_and_with_padding(draw, seed: int, shared: bool) -> None:
    """Against those in double precision of the plain instance, which test_search recomputes."""
    problem = draw(seed, devices=9)
    start = feasible_start(problem, seed)
    table = weight_table(problem, len(start.heads), problem.devices + 2)
    plain = HeatBath(
        full_data(problem), start.labels[None], start.heads[None], table[None],
        NoisePool(np.random.default_rng(0), np.float64),
    )  # fmt: skip
    bath = padded_bath(problem, seed, np.float32, shared=shared)
    np.testing.assert_allclose(bath.value, np.repeat(plain.value, 2), atol=1e-6)
    for device in range(9):
        (expected,) = plain.changes(np.array([device]))
        able = expected < FORBIDDEN / 2
        for found in bath.changes(np.array([device, device])):
            assert found[[9, -1]].min() > FORBIDDEN / 2  # padding
            found = np.delete(found, [9, len(found) - 1])
            np.testing.assert_allclose(found[able], expected[able], atol=2e-6)
            assert (found[~able] > FORBIDDEN / 2).all()
    assert bath.changes(np.array([9, 9])).min() > FORBIDDEN / 2


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shared", [True, False])
def test_look_ups_stay_exact_over_many_steps(draw, seed: int, shared: bool) -> None:
    problem = draw(seed, devices=14)
    bath = padded_bath(problem, seed, np.float32, shared=shared)
    for temperature in (0.1, 0.01, 1e-5):
        for _ in range(5):
            bath.sweep(temperature)
        kept, value = [array.copy() for array in bath.state], bath.value
        bath.rebuild()
        for name, array in zip(bath.state._fields, kept, strict=True):
            expected = getattr(bath.state, name)
            np.testing.assert_allclose(array, expected, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(value, bath.value, atol=1e-6)
        bath.draw_heads(temperature)
        bath.exchange_heads(temperature)
        for row in range(2):
            plan = Clustering(bath.labels[row, :-1], bath.heads[row, :-1])
            check_clustering(problem, plan)
            assert bath.value[row] == pytest.approx(objective(problem, plan), abs=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_an_exchange_of_heads_is_accepted_by_its_exact_change(draw, seed: int) -> None:
    """Every head with every device: done from the change of the objective on, and not below."""
    problem = draw(seed, devices=9, candidates=np.arange(9), capacities=6)
    start = padded_bath(problem, seed, np.float64, shared=True)
    done = 0

    def exchanged(cluster: int, device: int, most: float) -> HeatBath:
        bath = padded_bath(problem, seed, np.float64, shared=True)
        where = np.full(2, cluster), np.full(2, device)
        bath.steps.exchange_heads(bath.state, *where, np.full(2, most))
        return bath

    for cluster in range(start.heads.shape[1] - 1):
        for device in range(9):
            after = exchanged(cluster, device, np.inf)
            if (after.heads == start.heads).all():
                continue
            done += 1
            check_clustering(problem, Clustering(after.labels[0, :-1], after.heads[0, :-1]))
            value = after.value[0]
            after.rebuild()
            assert value == pytest.approx(after.value[0], rel=1e-9)
            change = value - start.value[0]
            assert (exchanged(cluster, device, change - 1e-9).heads == start.heads).all()
            assert (exchanged(cluster, device, change + 1e-9).heads == after.heads).all()
    # A single cluster has nobody to exchange with, and neither have nine heads.
    assert done > 0 or start.heads.shape[1] - 1 in (1, 9)


def test_the_draw_follows_boltzmann(draw) -> None:
    """One device, many draws: frequencies of its steps are exp(-change / temperature)."""
    problem = draw(2, devices=8, capacities=8)
    start = feasible_start(problem, 2)
    table = weight_table(problem, len(start.heads), problem.devices + 2)
    device = int(np.setdiff1d(np.arange(8), start.heads)[0])
    rng = np.random.default_rng(0)
    counts: dict[tuple[int, ...], int] = {}
    draws, noise = 4000, NoisePool(rng, np.float64)
    labels, heads = start.labels[None], start.heads[None]
    bath = HeatBath(full_data(problem), labels, heads, table[None], noise)
    (changes,) = bath.changes(np.array([device]))
    allowed = changes[changes < FORBIDDEN / 2]
    temperature = float(np.ptp(allowed)) / 2
    others = np.delete(np.arange(8), device)
    for _ in range(draws):
        bath.labels[:] = start.labels
        bath.rebuild()
        bath.state.locked[0, others] = True  # only this device takes a turn ...
        bath.state.own_cost[0, others] = -FORBIDDEN  # ... and has no partner, so it moves
        bath.sweep(temperature)
        after = tuple(bath.labels[0])
        counts[after] = counts.get(after, 0) + 1
    moves = changes[8:]
    moves = np.append(moves[moves < FORBIDDEN / 2], 0.0)
    expected = np.sort(np.exp(-moves / temperature) / np.exp(-moves / temperature).sum())
    found = np.sort([count / draws for count in counts.values()])
    assert len(found) == len(expected) >= 2
    np.testing.assert_allclose(found, expected, atol=0.04)  # 5 standard deviations


def test_loops_compile_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*, cache: bool = False, **options: object) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return numba.njit(**options)

    monkeypatch.setattr(compiled, "njit", refuse)

    @compiled.compiled()
    def twice(x: int) -> int:
        return 2 * x

    assert twice(3) == 6


def test_a_search_compiles_nothing_that_was_not_prepared(draw) -> None:
    """A compilation would eat seconds of its budget."""
    prepare()
    loops = ("rebuild", "sweep", "draw_heads", "exchange_heads", "block_distances")
    prepared = {name: len(getattr(heat_bath_steps, name).signatures) for name in loops}
    for devices in (20, 400):
        problem = draw(3, devices, alpha=0.5, candidates=np.arange(devices), capacities=9)
        found = select_heads(problem, sweeps=6)
        associate(problem, found.clustering.heads, sweeps=3)
    select_heads(draw(3, 12), mode="paper", sweeps=1)
    assert prepared == {name: len(getattr(heat_bath_steps, name).signatures) for name in loops}


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
