"""Through a whole strategy: the noise in a release is the noise that its ledger was told."""

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from strategies import wire
from strategies.aggregation import Aggregation
from strategies.clustered import ClusteredStrategy
from strategies.privacy.ledger import Ledger, read_releases
from strategies.privacy.plan import plan_privacy
from strategies.privacy.secure_sum import TrustedSum

WIDTH = 10_000


class Captured(ClusteredStrategy):
    """Keeps what a release gives instead of training with it."""

    sums: NDArray[np.float64]
    counts: NDArray[np.float64] | None
    noise_std: float

    def use(
        self,
        request: wire.RoundRequest,
        sums: NDArray[np.float64],
        counts: NDArray[np.float64] | None,
        noise_std: float,
    ) -> None:
        """Keep it."""
        self.sums, self.counts, self.noise_std = sums, counts, noise_std


def empty_round(
    ledger: Ledger,
    seed: int | None,
    *,
    private: bool = True,
    noise_cohort_size: int | None = None,
    number: int = 1,
) -> Captured:
    """A training round that nobody answers: the release is its noise."""
    plan = plan_privacy(
        clients=40,
        sampling=0.5,
        rounds=5,
        private=private,
        noise_multiplier=1.3,
        noise_cohort_size=noise_cohort_size,
    )
    strategy = Captured(
        name="test",
        clients=40,
        clusters=2,
        assignment="loss",
        plan=plan,
        aggregation=Aggregation(threshold=0.7, kappa=0.1),
        ledger=ledger,
        seed=seed,
    )
    strategy.models = [{"weight": np.zeros(WIDTH, dtype=np.float32)}] * 2
    strategy.round = number
    strategy._request = strategy.request(number)
    strategy.aggregate_train(number, [])
    return strategy


@pytest.mark.parametrize(
    ("seed", "level"),
    # One fixed outcome within the central 99.8 %; the system's source: 10^-10 a side.
    [(6, 1e-3), (None, 1e-10)],
    ids=["seeded", "system"],
)
@pytest.mark.parametrize("noise_cohort_size", [None, 10_000])
def test_noise_is_what_the_ledger_was_told(
    seed: int | None, level: float, noise_cohort_size: int | None
) -> None:
    """sum (g / noise_std)^2 ~ chi^2(n), over sums and counters of both clusters."""
    ledger = Ledger(None, "test", 1e-3, budget=None)
    found = empty_round(ledger, seed, noise_cohort_size=noise_cohort_size)
    (told,) = ledger.releases
    scale = 1.0 if noise_cohort_size is None else 20 / 10_000
    sensitivity = 0.7 * math.sqrt(1.01)
    assert told.sensitivity == pytest.approx(sensitivity, rel=1e-12)
    assert told.noise_multiplier == 1.3
    assert told.sampling == 0.5
    assert told.noise_std == pytest.approx(1.3 * scale * sensitivity, rel=1e-12)
    assert found.noise_std == told.noise_std
    assert found.counts is not None
    noise = np.concatenate([found.sums.ravel(), found.counts * 0.1 * 0.7]) / told.noise_std
    assert noise.size == 2 * WIDTH + 2
    law = stats.chi2(noise.size)
    assert law.ppf(level) < np.sum(noise**2) < law.isf(level)
    assert stats.kstest(noise, "norm").pvalue > level


def test_seeded_noise_differs_between_rounds_and_repeats_in_a_replay() -> None:
    """The same noise in two rounds would cancel in their difference."""
    first = empty_round(Ledger(None, "test", 1e-3, None), 0, number=1).sums
    second = empty_round(Ledger(None, "test", 1e-3, None), 0, number=2).sums
    again = empty_round(Ledger(None, "test", 1e-3, None), 0, number=1).sums
    correlation = np.corrcoef(first.ravel(), second.ravel())[0, 1]
    assert abs(correlation) < 4 / math.sqrt(first.size)  # N(0, 1 / n), one fixed outcome
    np.testing.assert_array_equal(first, again)


def test_the_ledger_is_on_disk_before_the_sum_is_revealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that dies in between has spent the release."""
    path = tmp_path / "ledger.jsonl"

    def killed(self: TrustedSum, noise_multiplier: float, sensitivity: float) -> None:
        assert [release.round for release in read_releases(path, "test")] == [1]
        raise KeyboardInterrupt

    monkeypatch.setattr(TrustedSum, "release", killed)
    with pytest.raises(KeyboardInterrupt):
        empty_round(Ledger(path, "test", 1e-3, None), 0)
    assert len(read_releases(path, "test")) == 1


def test_without_privacy_there_is_no_noise_and_no_entry() -> None:
    """Nothing is claimed, nothing is added."""
    ledger = Ledger(None, "test", 1e-3, budget=None)
    found = empty_round(ledger, 0, private=False)
    assert not found.sums.any()
    assert ledger.releases == []
