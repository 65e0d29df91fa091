"""The plan: METHODS 6.2's numbers, the cap, the share of the initialisation, the cohorts."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.privacy.calibration import Event, epsilon_of
from strategies.privacy.ledger import Ledger, Release
from strategies.privacy.plan import (
    PrivacyPlan,
    Stage,
    default_delta,
    default_init_share,
    plan_privacy,
)
from tests.strategies import drawn

RUN: dict[str, Any] = {"clients": 1000, "sampling": 0.05, "rounds": 60, "init_releases": 7}
DELTA = 1000**-1.1


def plan(**changes: Any) -> PrivacyPlan:
    """The plan of METHODS 6.2 with changes."""
    return plan_privacy(**{**RUN, **changes})


def init_of(made: PrivacyPlan) -> Stage:
    """The stage of the initialisation, which must exist."""
    assert made.init is not None
    return made.init


@pytest.mark.parametrize(
    ("epsilon", "init_noise", "rounds", "releases", "expected"),
    [(2.0, 10.58, 60, 7, 1.124), (2.0, 5.29, 30, 7, 1.237), (8.0, 5.29, 60, 7, 0.610)],
)
def test_training_noise_of_methods(
    epsilon: float, init_noise: float, rounds: int, releases: int, expected: float
) -> None:
    """METHODS 6.2: z_i and z_2 for epsilon 2 and 8 (three digits are printed)."""
    made = plan(
        epsilon=epsilon, init_noise_multiplier=init_noise, rounds=rounds, init_releases=releases
    )
    assert made.train.noise_multiplier == pytest.approx(expected, abs=6e-4)
    assert init_of(made).noise_multiplier == init_noise
    assert made.delta == pytest.approx(DELTA, rel=1e-12)
    assert made.epsilon_outside == pytest.approx(epsilon, rel=1e-5)
    assert made.epsilon_outside is not None
    assert made.epsilon_outside <= epsilon


def test_noise_without_amplification() -> None:
    """METHODS 6.2: z_2 = 4.59 with 6 participations."""
    for epsilon_for in ("server", "outside"):  # with a cap both claim the unamplified number
        made = plan(
            epsilon=2.0, init_noise_multiplier=10.58, max_participations=6, epsilon_for=epsilon_for
        )
        assert made.train.noise_multiplier == pytest.approx(4.59, abs=5e-3)
        assert made.epsilon_server == made.epsilon_outside
        assert made.epsilon_server == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize(("cap", "expected"), [(3, 6.4), (6, 9.9)])
def test_cost_of_given_noise_without_amplification(cap: int, expected: float) -> None:
    """METHODS 6.2: z_2 = 1.124 unamplified costs 6.4 at 3 participations and 9.9 at 6."""
    made = plan(noise_multiplier=1.124, init_noise_multiplier=10.58, max_participations=cap)
    assert made.epsilon_server == pytest.approx(expected, abs=0.05)
    assert made.epsilon_outside == made.epsilon_server
    events = [Event(10.58)] * 7 + [Event(1.124)] * cap
    assert made.epsilon_server == pytest.approx(epsilon_of(events, DELTA), rel=1e-12)


def test_cap_beyond_the_rounds_does_nothing() -> None:
    """A client cannot take part more often than there are rounds."""
    capped = plan(rounds=4, epsilon=2.0, max_participations=100)
    exact = plan(rounds=4, epsilon=2.0, max_participations=4)
    server = plan(rounds=4, epsilon=2.0, epsilon_for="server")
    assert capped.train == exact.train == server.train
    assert server.epsilon_outside is not None
    assert server.epsilon_server is not None
    # Calibrated without amplification, the one number is claimed for both.
    assert server.epsilon_outside == server.epsilon_server <= 2.0


def test_without_a_cap_the_server_number_counts_every_round() -> None:
    """Unamplified: all T rounds of every client."""
    made = plan(noise_multiplier=3.0, init_noise_multiplier=8.0, rounds=9)
    unamplified = [Event(8.0)] * 7 + [Event(3.0)] * 9
    amplified = [Event(8.0)] * 7 + [Event(3.0, 0.05)] * 9
    assert made.epsilon_server == pytest.approx(epsilon_of(unamplified, DELTA), rel=1e-12)
    assert made.epsilon_outside == pytest.approx(epsilon_of(amplified, DELTA), rel=1e-12)


def test_sampled_initialisation_is_amplified_outside_only() -> None:
    """init_sampling enters epsilon_outside; the server sees who takes part."""
    made = plan(noise_multiplier=3.0, init_noise_multiplier=4.0, init_sampling=0.2, rounds=9)
    amplified = [Event(4.0, 0.2)] * 7 + [Event(3.0, 0.05)] * 9
    unamplified = [Event(4.0)] * 7 + [Event(3.0)] * 9
    assert made.epsilon_outside == pytest.approx(epsilon_of(amplified, DELTA), rel=1e-12)
    assert made.epsilon_server == pytest.approx(epsilon_of(unamplified, DELTA), rel=1e-12)
    assert init_of(made).cohort == pytest.approx(200)


@pytest.mark.parametrize(
    ("cohort", "share"), [(1, 0.8), (50, 0.8), (1000, 0.8), (5000, 0.37), (10_000, 0.37)]
)
def test_share_of_the_initialisation(cohort: float, share: float) -> None:
    """.8 up to 1,000 clients in the sum, .37 from 5,000 on."""
    assert default_init_share(cohort) == pytest.approx(share, rel=1e-12)


def test_share_between_is_linear_in_the_logarithm() -> None:
    """Half way in the logarithm: sqrt(1000 * 5000) clients, (.8 + .37) / 2."""
    assert default_init_share((1000 * 5000) ** 0.5) == pytest.approx(0.585, rel=1e-12)
    shares = [default_init_share(cohort) for cohort in range(900, 5200, 50)]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"noise_cohort_size": 10_000}, 0.37),
        ({}, 0.8),
        ({"init_sampling": 0.1}, 0.8),
        ({"clients": 6000}, 0.37),
        ({"init_share": 0.5}, 0.5),
        ({"init_share": 0.5, "noise_cohort_size": 10_000}, 0.5),
        ({"max_participations": 5}, 0.8),
    ],
)
def test_initialisation_costs_its_share(changes: dict[str, Any], share: float) -> None:
    """By itself share * epsilon; together with training epsilon."""
    made = plan(epsilon=2.0, **changes)
    alone = [init_of(made).event] * 7
    assert epsilon_of(alone, made.delta) == pytest.approx(share * 2.0, rel=1e-5)
    assert made.epsilon_outside == pytest.approx(2.0, rel=1e-5)
    assert made.epsilon_outside is not None
    assert made.epsilon_outside <= 2.0


def test_simulated_cohort_scales_the_noise_and_not_the_claim() -> None:
    """Noise really added: z * (q K) / 10,000; every claim is about z."""
    simulated = plan(epsilon=2.0, init_share=0.37, noise_cohort_size=10_000)
    real = plan(epsilon=2.0, init_share=0.37)
    assert simulated.train.noise_multiplier == real.train.noise_multiplier
    assert simulated.epsilon_outside == real.epsilon_outside
    assert simulated.train.noise_scale == pytest.approx(50 / 10_000)
    assert init_of(simulated).noise_scale == pytest.approx(1000 / 10_000)
    assert simulated.train.actual_multiplier == pytest.approx(
        simulated.train.noise_multiplier * 0.005
    )
    assert real.train.noise_scale == init_of(real).noise_scale == 1.0
    assert real.train.actual_multiplier == real.train.noise_multiplier


@pytest.mark.parametrize("cohort", [100, 10_000])
@pytest.mark.parametrize("cap", [None, 7])
def test_what_the_noise_is_worth_with_the_real_cohort(cap: int | None, cohort: int) -> None:
    """What a ledger with all of the planned releases would tell of the noise that was added."""
    made = plan(epsilon=2.0, noise_cohort_size=cohort, max_participations=cap)
    ledger = Ledger(None, "pina", made.delta, None, cap)
    stages = [("lloyd", made.init), ("train", made.train)]
    for phase, stage in stages:
        assert stage is not None
        std = stage.actual_multiplier
        release = Release("pina", 1, phase, stage.noise_multiplier, stage.sampling, 1.0, std)
        for _ in range(stage.releases):
            ledger.record(release)
    assert made.epsilon_real_cohort == pytest.approx(ledger.epsilon_actual(), rel=1e-12)
    assert ledger.epsilon() == pytest.approx(2.0, rel=1e-5)
    real = plan(epsilon=2.0, max_participations=cap)
    assert real.epsilon_real_cohort == real.epsilon_outside
    assert plan(private=False).epsilon_real_cohort is None
    unclaimed = dataclasses.replace(made, epsilon_outside=None, epsilon_server=None)
    assert unclaimed.epsilon_real_cohort is None


def test_not_private() -> None:
    """No noise, no claim, the same rounds and cohorts."""
    made = plan(private=False, epsilon=2.0)
    assert made.train == Stage(0.0, 0.05, 60, pytest.approx(50.0), 1.0)
    assert init_of(made).actual_multiplier == 0.0
    assert (made.budget, made.epsilon_outside, made.epsilon_server) == (None, None, None)
    assert not made.private


def test_without_initialisation() -> None:
    """All of epsilon is for training: less noise than with an initialisation."""
    alone = plan(init_releases=0, epsilon=2.0)
    assert alone.init is None
    assert alone.epsilon_outside == pytest.approx(2.0, rel=1e-5)
    assert alone.train.noise_multiplier < plan(epsilon=2.0).train.noise_multiplier


def test_given_noise() -> None:
    """Without epsilon there is no budget; the second noise defaults to the first."""
    made = plan(noise_multiplier=3.0)
    assert made.budget is None
    assert init_of(made).noise_multiplier == made.train.noise_multiplier == 3.0
    assert plan(noise_multiplier=3.0, epsilon=0.5).budget == 0.5


def test_delta() -> None:
    """K^-1.1; 1/2 for one client, where K^-1.1 would be 1."""
    assert default_delta(1000) == pytest.approx(5.01187e-4, rel=1e-5)
    assert default_delta(1) == 0.5
    assert plan(epsilon=2.0, delta=1e-6).delta == 1e-6


@pytest.mark.parametrize(
    ("changes", "message"),
    [({}, "epsilon or noise_multiplier"), ({"epsilon": 1.0, "epsilon_for": "me"}, "epsilon_for")],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    """A private run must say how private."""
    with pytest.raises(ValueError, match=message):
        plan(**changes)


@drawn
@given(st.floats(0.5, 8.0), st.integers(1, 40), st.integers(0, 8), st.integers(1, 50))
def test_no_plan_exceeds_its_budget(epsilon: float, rounds: int, releases: int, cap: int) -> None:
    """The composition of what one client can be in stays within epsilon, and uses it."""
    made = plan_privacy(
        clients=500,
        sampling=0.3,
        rounds=rounds,
        init_releases=releases,
        epsilon=epsilon,
        max_participations=cap,
    )
    events = [Event(made.train.noise_multiplier)] * min(rounds, cap)
    if made.init is not None:
        events += [Event(made.init.noise_multiplier)] * releases
    total = epsilon_of(events, made.delta)
    assert total <= epsilon
    assert total == pytest.approx(epsilon, rel=1e-5)
    assert total == pytest.approx(made.epsilon_server, rel=1e-12)
