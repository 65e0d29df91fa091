"""Accounting against dp_accounting, against the integral itself, and against closed forms."""

import itertools
import math
from collections.abc import Sequence

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, stats

from strategies.privacy.calibration import ORDERS, Event, _renyi, calibrate, epsilon_of
from tests.strategies import drawn

DELTA = 1000**-1.1


def reference(events: Sequence[tuple[Event, int]], delta: float) -> float:
    """dp_accounting's epsilon of the composition, adjacency: add or remove one."""
    accountant = RdpAccountant(
        None, neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    for event, count in events:
        gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(event.sampling, gaussian), count)
    return float(accountant.get_epsilon(delta))


# dp_accounting's series does not converge at some orders below 2, which it then leaves out. They
# are the best ones only at large epsilons, and the integral below is their oracle.
COMPARABLE = 8.0


@settings(drawn, max_examples=14)
@given(
    st.floats(1e-3, 0.95), st.floats(0.5, 20.0), st.integers(1, 500), st.sampled_from([DELTA, 1e-6])
)
def test_sampled_gaussian_equals_dp_accounting(
    sampling: float, noise: float, count: int, delta: float
) -> None:
    """Within 1 % (and 1e-3 where epsilon is nearly 0) over drawn (q, z, T)."""
    event = Event(noise, sampling)
    expected = reference([(event, count)], delta)
    assume(expected < COMPARABLE)
    assert epsilon_of([event] * count, delta) == pytest.approx(expected, rel=0.01, abs=1e-3)


@settings(drawn, max_examples=6)
@given(st.floats(3.0, 12.0), st.floats(0.8, 4.0), st.floats(0.01, 0.5), st.integers(1, 100))
def test_composition_of_two_stages_equals_dp_accounting(
    init: float, train: float, sampling: float, rounds: int
) -> None:
    """An unsampled initialisation of 7 sums and sampled training, as in a run."""
    expected = reference([(Event(init), 7), (Event(train, sampling), rounds)], DELTA)
    assume(expected < COMPARABLE)
    events = [Event(init)] * 7 + [Event(train, sampling)] * rounds
    assert epsilon_of(events, DELTA) == pytest.approx(expected, rel=0.01)
    assert epsilon_of(events[::-1], DELTA) == pytest.approx(epsilon_of(events, DELTA), rel=1e-12)


def renyi_by_quadrature(event: Event, orders: Sequence[float]) -> NDArray[np.float64]:
    """D_a(mixture || base) = log E_base[(1 - q + q exp((2x - 1) / 2z^2))^a] / (a - 1)."""
    q, z = event.sampling, event.noise_multiplier
    x, step = np.linspace(-40 * z, 60 * z + 2 * max(orders), 300_001, retstep=True)
    base = stats.norm.logpdf(x, scale=z)
    ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z**2))
    divergences = []
    for order in orders:
        exponent = base + order * ratio
        top = exponent.max()
        integral = top + math.log(np.exp(exponent - top).sum() * step)
        divergences.append(integral / (order - 1))
    return np.array(divergences)


@pytest.mark.parametrize(
    ("sampling", "noise"), [(0.05, 1.124), (0.5, 0.6), (0.001, 0.4), (0.7, 0.3), (0.9, 2.0)]
)
def test_renyi_divergence_is_the_integral(sampling: float, noise: float) -> None:
    """Also for the small noise at which dp_accounting gives up; fractional and whole orders."""
    chosen = [0, 4, 49, 98, 99, 120, ORDERS.index(63)]
    event = Event(noise, sampling)
    expected = renyi_by_quadrature(event, [ORDERS[index] for index in chosen])
    np.testing.assert_allclose(_renyi(event)[chosen], expected, rtol=1e-5)


def gaussian_epsilon(noise: float, releases: int, delta: float) -> float:
    """Closed form without sampling: Balle et al. over all real orders of T a / 2 z^2."""

    def at(order: float) -> float:
        rdp = releases * order / (2 * noise**2)
        return rdp + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)

    found = optimize.minimize_scalar(
        lambda log_excess: at(1 + math.exp(log_excess)), bounds=(-7, 9), method="bounded"
    )
    return max(0.0, float(found.fun))


@drawn
@given(st.floats(0.5, 20.0), st.integers(1, 30))
def test_unsampled_gaussian_closed_form(noise: float, releases: int) -> None:
    """The grid of orders loses less than 1 %, and never reports less than the optimum."""
    epsilon = epsilon_of([Event(noise)] * releases, DELTA)
    expected = gaussian_epsilon(noise, releases, DELTA)
    assert epsilon == pytest.approx(expected, rel=0.01, abs=1e-3)
    assert epsilon >= expected * (1 - 1e-6)
    # T releases are one release with noise z / sqrt T.
    merged = epsilon_of([Event(noise / math.sqrt(releases))], DELTA)
    assert merged == pytest.approx(epsilon, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("noise", [0.54, 1.0, 1.7, 5.0])
def test_not_below_the_exact_gaussian(noise: float) -> None:
    """Balle and Wang 2018: delta(eps) = Phi(1/2z - eps z) - e^eps Phi(-1/2z - eps z)."""
    epsilon = epsilon_of([Event(noise)], DELTA)
    mu = 1 / noise
    exact = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
        -mu / 2 - epsilon / mu
    )
    assert exact <= DELTA
    assert exact > DELTA / 10  # and not absurdly above it


def test_one_unsampled_release() -> None:
    """METHODS 6.1: z = 1.70 for epsilon 2, 0.54 for epsilon 8 (delta 1000^-1.1)."""
    for epsilon, noise in ((2.0, 1.70), (8.0, 0.54)):
        found = calibrate(lambda z: [Event(z)], epsilon, DELTA)
        assert found == pytest.approx(noise, abs=0.005)


def test_initialisation_alone() -> None:
    """METHODS 6.2: seven sums of z = 10.58 cost .745."""
    assert epsilon_of([Event(10.58)] * 7, DELTA) == pytest.approx(0.745, abs=5e-4)


def check_calibration(epsilon: float, sampling: float, count: int) -> None:
    """What it returns meets the budget; a relative 1e-5 less noise does not."""

    def events(noise: float) -> list[Event]:
        return [Event(noise, sampling)] * count

    noise = calibrate(events, epsilon, DELTA)
    assert epsilon_of(events(noise), DELTA) <= epsilon
    assert epsilon_of(events(noise * (1 - 1e-5)), DELTA) > epsilon


@drawn
@given(st.floats(0.1, 20.0), st.integers(1, 60))
def test_calibration_is_tight_and_never_overshoots(epsilon: float, count: int) -> None:
    """Without sampling, where accounting is fast."""
    check_calibration(epsilon, 1.0, count)


@pytest.mark.parametrize(("epsilon", "sampling", "count"), [(2.0, 0.05, 60), (8.0, 0.05, 20)])
def test_calibration_of_sampled_releases(epsilon: float, sampling: float, count: int) -> None:
    """The same with sampling."""
    check_calibration(epsilon, sampling, count)


def test_more_noise_fewer_clients_fewer_rounds_cost_less() -> None:
    """Monotone in z, q and T, also across the noise below which sampling is not counted."""
    noises = [0.1, 0.24, 0.25, 0.26, 0.5, 1.0, 4.0]
    by_noise = [epsilon_of([Event(z, 0.2)] * 5, DELTA) for z in noises]
    assert all(a > b for a, b in itertools.pairwise(by_noise))
    by_sampling = [epsilon_of([Event(1.0, q)] * 5, DELTA) for q in (0.01, 0.1, 0.5, 0.99, 1.0)]
    assert all(a < b for a, b in itertools.pairwise(by_sampling))
    by_count = [epsilon_of([Event(1.0, 0.1)] * t, DELTA) for t in (1, 2, 10, 100)]
    assert all(a < b for a, b in itertools.pairwise(by_count))
    assert epsilon_of([Event(0.1, 0.2)], DELTA) == epsilon_of([Event(0.1)], DELTA)


def test_limits() -> None:
    """Nothing costs nothing; no noise costs everything."""
    assert epsilon_of([], DELTA) == 0.0
    assert epsilon_of([Event(0.0)], DELTA) == math.inf
    assert epsilon_of([Event(5.0), Event(0.0, 0.01)], DELTA) == math.inf
    assert epsilon_of([Event(1e6)], DELTA) < 1e-2


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-3, 2.0, math.nan])
def test_delta_out_of_range(delta: float) -> None:
    """delta must be in (0, 1)."""
    with pytest.raises(ValueError, match="delta"):
        epsilon_of([Event(1.0)], delta)


@pytest.mark.parametrize(
    ("noise", "sampling"), [(-1.0, 0.5), (math.nan, 0.5), (1.0, 0.0), (1.0, 1.1), (1.0, math.nan)]
)
def test_event_out_of_range(noise: float, sampling: float) -> None:
    """An event without a meaning is refused."""
    with pytest.raises(ValueError, match="must be"):
        Event(noise, sampling)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_calibration_needs_a_budget(epsilon: float) -> None:
    """epsilon must be positive."""
    with pytest.raises(ValueError, match="epsilon"):
        calibrate(lambda z: [Event(z)], epsilon, DELTA)


def test_calibration_says_when_the_rest_exceeds_the_budget() -> None:
    """No noise of one stage mends another that is too expensive."""
    with pytest.raises(ValueError, match="already exceed"):
        calibrate(lambda z: [Event(1.0), Event(z)], 1.0, DELTA)
