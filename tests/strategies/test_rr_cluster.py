"""RR-Cluster: the moves reach the smallest size, and nothing moves where none is needed."""

import dataclasses

import numpy as np
import pytest

from strategies.rr_cluster import RRCluster, moved, moves
from tests.contract.conftest import (
    CLIENTS,
    Problem,
    make_plan,
    make_strategy,
    run,
    start_models,
)


@pytest.mark.parametrize(
    ("counts", "smallest"),
    [
        ([90.0, 10.0], 30.0),
        ([50.0, 45.0, 5.0, 0.0], 20.0),
        ([99.0, 1.0, -3.0], 10.0),  # a noisy count may be negative
        ([60.0, 40.0], 30.0),
        ([50.0, 50.0], 50.0),
    ],
)
def test_expected_sizes_reach_the_smallest(counts: list[float], smallest: float) -> None:
    """counts - leavers + joiners, computed cluster by cluster; nobody is lost."""
    sizes = np.array(counts)
    leave, join = moves(sizes, smallest)
    assert ((leave >= 0) & (leave <= 1)).all()
    leavers = leave * sizes
    after = np.maximum(sizes, 0) - leavers + leavers.sum() * join
    assert after.min() >= smallest - 1e-9 or sizes.sum() < smallest * len(sizes)
    assert after.sum() == pytest.approx(np.maximum(sizes, 0).sum())
    if sizes.min() >= smallest:
        assert not leave.any()
        assert not join.any()


def test_more_is_not_moved_than_there_is_to_spare() -> None:
    """80 clients cannot fill three clusters of 50: the large one keeps its 50."""
    leave, join = moves(np.array([80.0, 0.0, 0.0]), 50.0)
    np.testing.assert_allclose(leave, [30 / 80, 0, 0])
    np.testing.assert_allclose(join, [0, 0.5, 0.5])


def test_moves_follow_their_probabilities() -> None:
    """20,000 clients, each with a stream of its own: within 5 standard errors of the law."""
    strategy = make_strategy("rr-cluster", make_plan("rr-cluster"))

    strategy.models = start_models(2)
    request = dataclasses.replace(strategy.request(1), leave=[0.3, 0.0], join=[0.0, 1.0])
    chosen = np.arange(20_000) % 2
    after = moved(request, range(20_000), chosen, 0)
    left = np.mean(after[chosen == 0] == 1)
    assert abs(left - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 10_000)
    assert (after[chosen == 1] == 1).all()
    np.testing.assert_array_equal(after, moved(request, range(20_000), chosen, 0))
    assert (moved(request, range(20_000), chosen, None) != after).any()


def test_without_a_smallest_size_it_is_ifca() -> None:
    problem = Problem()
    plan = make_plan("ifca", private=False)
    ifca, _ = run(make_strategy("ifca", plan), problem)
    strategy = RRCluster(
        smallest_share=0.0,
        **{
            key: getattr(make_strategy("ifca", plan), key)
            for key in ("name", "clients", "clusters", "plan", "aggregation", "ledger", "seed")
        },
    )
    np.testing.assert_array_equal(run(strategy, problem)[0], ifca)


def test_a_small_cluster_is_filled() -> None:
    """One client in ten belongs to the second cluster: it trains with the wanted share."""
    problem = Problem()
    problem.targets[:] = 1.0
    problem.targets[:2] = 0.0
    strategy = make_strategy("rr-cluster", make_plan("rr-cluster", private=False, rounds=8))
    sizes = []
    use = strategy.use

    def watch(request, sums, counts, noise_std):  # type: ignore[no-untyped-def]
        sizes.append(np.min(counts))
        use(request, sums, counts, noise_std)

    strategy.use = watch  # type: ignore[method-assign]
    run(strategy, problem)
    assert np.mean(sizes[1:]) > 0.25 * CLIENTS  # 0.4 is asked for, without moves it is .08


@pytest.mark.parametrize("share", [-0.1, 0.6])
def test_an_impossible_share_is_refused(share: float) -> None:
    plan = make_plan("ifca")
    common = make_strategy("ifca", plan)
    with pytest.raises(ValueError, match=r"smallest_share = .*must be in \[0, 1 / C = 0.5\]"):
        RRCluster(
            smallest_share=share,
            name="x",
            clients=CLIENTS,
            clusters=2,
            plan=plan,
            aggregation=common.aggregation,
            ledger=common.ledger,
        )
