"""Local noise: its law, whose it is, and what the ledger says."""

import dataclasses

import numpy as np
import pytest

from strategies.clustered import ClusteredStrategy
from strategies.local_noise import local_noise
from strategies.privacy.mechanisms import GRID_STEPS
from tests.contract.conftest import CLIENTS, Problem, make_plan, make_strategy, run
from tests.contract.conftest import start_models as start


def test_every_client_adds_the_noise_of_a_whole_release() -> None:
    """Variance of the sum of n clients: n z^2, within 5 standard errors; no client, no noise."""
    strategy = make_strategy("ifca-ldp", make_plan("ifca-ldp", noise_multiplier=1.5))
    strategy.models = start(2)
    request = dataclasses.replace(strategy.request(1), width=20_000)
    assert request.noise_multiplier == 1.5
    assert not local_noise(request, [], 0).any()
    for clients in ([3], [1, 5, 9, 2]):
        noise = local_noise(request, clients, 0) / GRID_STEPS
        expected = len(clients) * 1.5**2
        assert abs(noise.var() / expected - 1) < 5 * np.sqrt(2 / noise.size)
    alone = [local_noise(request, [client], 0) for client in (1, 5)]
    np.testing.assert_array_equal(local_noise(request, [1, 5], 0), alone[0] + alone[1])
    assert (local_noise(request, [1], None) != alone[0]).any()


def test_the_ledger_counts_what_one_client_adds_and_the_server_adds_nothing() -> None:
    """z of the plan, whatever the size of the cohort."""
    strategy = make_strategy("ifca-ldp", make_plan("ifca-ldp", sampling=0.5))
    seen: list[float] = []
    use = strategy.use

    def watch(request, sums, counts, noise_std):  # type: ignore[no-untyped-def]
        seen.append(noise_std)
        use(request, sums, counts, noise_std)

    strategy.use = watch  # type: ignore[method-assign]
    problem = Problem()
    run(strategy, problem)
    for release in strategy.ledger.releases:
        assert release.noise_std == release.noise_multiplier * release.sensitivity
    assert strategy.ledger.epsilon() == strategy.ledger.epsilon_actual()
    # What is in the sum: the noise of the expected cohort.
    assert seen[0] == pytest.approx(np.sqrt(0.5 * CLIENTS) * strategy.ledger.releases[0].noise_std)


def test_without_noise_it_is_ifca() -> None:
    problem = Problem()
    plan = make_plan("ifca", private=False)
    np.testing.assert_array_equal(
        run(make_strategy("ifca-ldp", plan), problem)[0],
        run(make_strategy("ifca", plan), problem)[0],
    )


def test_a_simulated_cohort_is_refused() -> None:
    """No crowd shares the noise of a single client."""
    plan = make_plan("ifca", noise_cohort_size=1000)
    with pytest.raises(ValueError, match="local_noise: needs a plan with noise_cohort_size = None"):
        make_strategy("ifca-ldp", plan)
    assert isinstance(make_strategy("ifca", plan), ClusteredStrategy)
