"""Base and differences: known noise by Monte Carlo, shrinkage, and the limits that are known."""

import numpy as np
import pytest
from numpy.typing import NDArray

from strategies import wire
from strategies.aggregation import Aggregation
from strategies.coded import (
    BLOCK,
    SMALLEST_SHARE,
    CodedModels,
    difference_variance,
    shares_of,
    shrink,
)
from strategies.pina import PINA
from strategies.privacy.ledger import Ledger
from strategies.privacy.mechanisms import from_grid
from strategies.privacy.secure_sum import TrustedSum
from strategies.release import CONTRAST, Coded
from tests.contract.conftest import CLIENTS, Problem, make_plan, make_strategy, run, start_models


def released(
    layout: Coded,
    updates: NDArray[np.float64],
    chosen: NDArray[np.intp],
    multiplier: float,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Sums (C, D) of one release."""
    secure_sum = TrustedSum(layout.size, rng)
    secure_sum.add(layout.encode(updates, chosen)[0])
    return layout.decode(secure_sum.release(multiplier, layout.sensitivity))[0]


# --- noise ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "counts", [[30.0, 30.0], [54.0, 6.0], [20.0] * 3, [40.0, 15.0, 5.0], [7.0, 3.0, 25.0, 25.0]]
)
@pytest.mark.parametrize("contrast", [CONTRAST, 0.2])
def test_noise_of_the_differences_is_the_stated_one(counts: list[float], contrast: float) -> None:
    """Three rounds of noise through the mechanism; 60,000 numbers a cluster.

    The standard error of a variance is sqrt(2 / 60,000) = .6 %: 3 % are five of them. The counts
    need not add up to the cohort of the release: noise does not know them.
    """
    rng, n_c = np.random.default_rng(2), np.array(counts)
    layout = Coded(len(n_c), 60_000, 0.7, contrast)
    nobody = np.zeros((0, layout.width))
    models = CodedModels.starting_at(np.zeros((len(n_c), layout.width)))
    for multiplier in (1.5, 4.0, 0.3):
        sums = released(layout, nobody, np.zeros(0, dtype=np.intp), multiplier, rng)
        models.add(sums, n_c, multiplier * layout.sensitivity, contrast)
    np.testing.assert_allclose(models.differences.var(axis=1), models.variance, rtol=0.03)
    # Rounds differ in their noise: variances add, standard deviations do not.
    one = difference_variance(n_c, 0.7, contrast)
    np.testing.assert_allclose(models.variance, one * (1.5**2 + 4.0**2 + 0.3**2), rtol=1e-12)
    np.testing.assert_allclose(
        models.base.var(), 0.49 * (1.5**2 + 4.0**2 + 0.3**2) / n_c.sum() ** 2, rtol=0.03
    )


def test_noise_of_even_clusters_is_that_of_the_contrasts_alone() -> None:
    """s (C - 1) / (a N): by hand, C = 2, N = 10: s / 5; C = 3: s .4."""
    np.testing.assert_allclose(
        difference_variance(np.full(2, 5.0), 3.0, 0.5), [0.36] * 2, rtol=1e-12
    )
    np.testing.assert_allclose(
        difference_variance(np.full(3, 10 / 3), 3.0, 0.5), [9 * 0.16] * 3, rtol=1e-12
    )
    np.testing.assert_array_equal(difference_variance(np.array([10.0]), 3.0, 0.5), [0.0])


# --- shrinkage -----------------------------------------------------------------------------


def test_shrinking_by_hand() -> None:
    """Factor 1 - dim v / |block|^2 a block, never negative; the last block is shorter."""
    row = np.concatenate([np.full(BLOCK, 2.0), np.full(BLOCK, 0.5), np.full(5, -4.0)])
    found = shrink(row[None], np.array([1.0]))[0]
    np.testing.assert_allclose(found[:BLOCK], 2.0 * (1 - 1 / 4), rtol=1e-12)
    np.testing.assert_array_equal(found[BLOCK : 2 * BLOCK], 0.0)
    np.testing.assert_allclose(found[2 * BLOCK :], -4.0 * (1 - 1 / 16), rtol=1e-12)
    np.testing.assert_array_equal(shrink(row[None], np.zeros(1)), row[None])
    np.testing.assert_array_equal(shrink(np.zeros((2, 7)), np.array([0.0, 1.0])), 0.0)


@pytest.mark.parametrize("signal", [0.0, 0.3, 1.0, 3.0])
def test_shrinking_never_costs_and_removes_pure_noise(signal: float) -> None:
    """James and Stein: the mean squared error is below that of the noisy row, for every signal.

    200 blocks of 320; the expected error is about signal^2 / (1 + signal^2) of the row's.
    """
    rng = np.random.default_rng(4)
    truth = signal * rng.standard_normal(200 * BLOCK)
    noisy = truth + rng.standard_normal(truth.size)
    error = float(np.mean((shrink(noisy[None], np.ones(1))[0] - truth) ** 2))
    raw = float(np.mean((noisy - truth) ** 2))
    assert error < raw
    assert error == pytest.approx(signal**2 / (1 + signal**2), abs=0.02)


def test_clusters_that_are_only_noise_become_fedavg() -> None:
    """Random clusters, much noise: both models are nearly the base."""
    rng = np.random.default_rng(1)
    layout = Coded(2, 3200, threshold=1.0)
    models = CodedModels.starting_at(np.zeros((2, 3200)))
    updates = np.tile(rng.standard_normal(3200) / 60, (200, 1))
    for _ in range(5):
        sums = released(layout, updates, rng.integers(0, 2, 200), 20.0, rng)
        models.add(sums, np.full(2, 100.0), 20.0, layout.contrast)
    apart = np.linalg.norm(models.rows() - models.base, axis=1)
    assert np.all(apart < 0.15 * np.linalg.norm(models.differences, axis=1))


# --- shares --------------------------------------------------------------------------------


def test_shares() -> None:
    """Normalised; a negative count is none; the floor, and even shares without any count."""
    np.testing.assert_allclose(shares_of(np.array([90.0, 10.0])), [0.9, 0.1], rtol=1e-12)
    low = SMALLEST_SHARE / 2
    np.testing.assert_allclose(shares_of(np.array([50.0, -3.0])), np.array([1, low]) / (1 + low))
    np.testing.assert_array_equal(shares_of(np.array([-1.0, 0.0, -2.0])), np.full(3, 1 / 3))


# --- limits --------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [10, 18, 27])
def test_without_noise_a_model_is_its_clusters_mean(large: int) -> None:
    """W_c = start + mean of its updates, round for round, as with slots and exact counts."""
    rng, chosen = np.random.default_rng(3), np.repeat([0, 1], [large, 30 - large])
    layout = Coded(2, 7, threshold=10.0)
    start = rng.standard_normal((2, 7))
    models, expected = CodedModels.starting_at(start), start.copy()
    for _ in range(4):
        updates = rng.standard_normal((30, 7))
        sums, _ = layout.decode(from_grid(layout.encode(updates, chosen)[0], layout.sensitivity))
        models.add(sums, np.bincount(chosen).astype(float), 0.0, layout.contrast)
        expected += [updates[chosen == c].mean(axis=0) for c in range(2)]
    np.testing.assert_allclose(models.rows(), expected, atol=1e-7)


def test_without_noise_a_run_equals_slots() -> None:
    """The same strategy twice: the initialisation's exact counts are the shares of the division."""
    problem, plan = Problem(), make_plan("pina", private=False)
    aggregation = Aggregation(50.0, skip="none")
    slots, _ = run(make_strategy("pina", plan, aggregation), problem)
    coded, _ = run(make_strategy("pina-coded", plan, aggregation), problem)
    np.testing.assert_allclose(coded, slots, atol=1e-5)


def test_shares_come_from_the_initialisation() -> None:
    """18 clients in one cluster, 6 in the other."""
    problem = Problem()
    problem.groups = np.arange(CLIENTS) % 4 // 3
    problem.targets = np.where(problem.groups[:, None], 1.0, -1.0) * np.ones((CLIENTS, 12))
    strategy = make_strategy("pina-coded", make_plan("pina-coded", private=False))
    run(strategy, problem)
    np.testing.assert_allclose(sorted(strategy.shares()), [0.25, 0.75], rtol=1e-6)
    assert make_strategy("oracle-coded", make_plan("oracle-coded")).shares().tolist() == [0.5, 0.5]


def test_a_run_records_sensitivity_s() -> None:
    """No counters: S, not S sqrt(1 + kappa^2); the initialisation keeps its own."""
    plan = make_plan("pina-coded")
    strategy = make_strategy("pina-coded", plan)
    run(strategy, Problem())
    found = {release.phase: release.sensitivity for release in strategy.ledger.releases}
    assert found == {"mean": 1.0, "lloyd": pytest.approx(2**0.5), "train": 2.0}


def test_different_starts_are_kept() -> None:
    """Only what is learned is shared or shrunk: models that start apart stay so without updates."""
    plan = make_plan("pina-random", private=False, rounds=1)
    strategy = PINA(
        name="pina",
        init="random",
        clients=CLIENTS,
        clusters=2,
        plan=plan,
        aggregation=Aggregation(1.0, release="coded"),
        ledger=Ledger(None, "pina", plan.delta, None),
    )
    start = strategy.models = start_models(2)
    request = strategy.request(1)
    strategy.use(request, np.zeros((2, request.width)), None, 0.0)
    np.testing.assert_array_equal(wire.flatten(strategy.models), wire.flatten(start))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"server_momentum": 0.5}, "release = 'coded': server-momentum = 0.5: must be 0"),
        ({"rescale": "none"}, "release = 'coded': rescale = 'none': must be 'count'"),
        ({"release": "codes"}, "release = 'codes': must be one of"),
    ],
)
def test_refusals(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Aggregation(1.0, **{"release": "coded", **settings})  # type: ignore[arg-type]
