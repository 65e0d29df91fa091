"""The ledger: on disk before use, never beyond the budget, robust against a cut line."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from strategies.privacy.calibration import Event, epsilon_of
from strategies.privacy.ledger import BudgetExhaustedError, Ledger, Release, read_releases

DELTA = 1e-3


def release(number: int = 1, **changes: Any) -> Release:
    """A training release with changes."""
    values: dict[str, Any] = {
        "method": "pina",
        "round": number,
        "phase": "train",
        "noise_multiplier": 2.0,
        "sampling": 0.1,
        "sensitivity": 1.005,
        "noise_std": 2.0 * 1.005,
    }
    return Release(**{**values, **changes})


def test_a_release_is_on_disk_before_record_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the moment of fsync the whole line is in the file that is synchronised."""
    path = tmp_path / "ledger.jsonl"
    seen: list[bytes] = []

    def fsync(descriptor: int) -> None:
        assert os.fstat(descriptor).st_ino == path.stat().st_ino
        seen.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", fsync)
    ledger = Ledger(path, "pina", DELTA, budget=None)
    ledger.record(release(1))
    ledger.record(release(2))
    assert [content.count(b"\n") for content in seen] == [1, 2]
    assert seen[-1] == path.read_bytes()
    assert json.loads(seen[0]) == dataclasses.asdict(release(1))


def test_a_new_ledger_reads_what_was_recorded(tmp_path: Path) -> None:
    """Every number comes back exactly; other methods' releases do not count."""
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path, "pina", DELTA, budget=None)
    other = Ledger(path, "fedavg", DELTA, budget=None)
    made = [release(1, noise_std=0.1 + 0.2), release(2, phase="mean", sampling=1.0)]
    first.record(made[0])
    other.record(release(1, method="fedavg", noise_multiplier=0.5))
    first.record(made[1])
    assert Ledger(path, "pina", DELTA, budget=None).releases == made
    assert read_releases(path, "fedavg") == other.releases
    assert Ledger(path, "pina", DELTA, budget=None).epsilon() == first.epsilon()
    assert read_releases(tmp_path / "absent", "pina") == []


@pytest.mark.parametrize("kept", [1, 30, -1])
def test_a_cut_last_line_is_not_counted(tmp_path: Path, kept: int) -> None:
    """Cut anywhere, also just before its line break: record() had not returned."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, "pina", DELTA, budget=None)
    ledger.record(release(1))
    whole = path.read_bytes()
    ledger.record(release(2))
    path.write_bytes(whole + path.read_bytes()[len(whole) :][:kept])
    assert read_releases(path, "pina") == [release(1)]


def test_recording_after_a_cut_line_keeps_the_file_readable(tmp_path: Path) -> None:
    """The next release must not be glued to the cut line and be lost with it."""
    path = tmp_path / "ledger.jsonl"
    Ledger(path, "pina", DELTA, budget=None).record(release(1))
    with path.open("ab") as file:
        file.write(b'{"method": "pi')
    Ledger(path, "pina", DELTA, budget=None).record(release(2))
    assert read_releases(path, "pina") == [release(1), release(2)]


def test_budget_is_checked_before_the_release(tmp_path: Path) -> None:
    """The refused release is neither in memory nor on disk; what was recorded stays."""
    path = tmp_path / "ledger.jsonl"
    budget = epsilon_of([Event(2.0, 0.1)] * 3, DELTA)
    ledger = Ledger(path, "pina", DELTA, budget=budget)
    for number in (1, 2, 3):
        ledger.check(release(number))
        ledger.record(release(number))
    content = path.read_bytes()
    with pytest.raises(BudgetExhaustedError, match="3 releases"):
        ledger.check(release(4))
    with pytest.raises(BudgetExhaustedError):
        ledger.record(release(4))
    assert path.read_bytes() == content
    assert len(ledger.releases) == 3
    assert ledger.epsilon() <= budget
    # A run that is started again has no new budget.
    with pytest.raises(BudgetExhaustedError):
        Ledger(path, "pina", DELTA, budget=budget).record(release(4))


def test_check_alone_spends_nothing() -> None:
    """It may be asked any number of times."""
    ledger = Ledger(None, "pina", DELTA, budget=epsilon_of([Event(2.0, 0.1)], DELTA))
    for _ in range(3):
        ledger.check(release())
    assert ledger.epsilon() == 0.0
    ledger.record(release())
    with pytest.raises(BudgetExhaustedError):
        ledger.check(release())


def test_noise_free_release_exceeds_every_budget() -> None:
    """Its epsilon is infinite."""
    with pytest.raises(BudgetExhaustedError):
        Ledger(None, "pina", DELTA, budget=1e9).check(release(noise_multiplier=0.0))
    Ledger(None, "pina", DELTA, budget=None).record(release(noise_multiplier=0.0))


def test_assumed_and_actual_noise() -> None:
    """A simulated cohort of 10,000 for 50: the actual noise is 1/200 of the assumed."""
    ledger = Ledger(None, "pina", DELTA, budget=None)
    sensitivity = 0.3
    for number in range(1, 5):
        ledger.record(release(number, sensitivity=sensitivity, noise_std=sensitivity * 2.0 / 200))
    assert ledger.epsilon() == epsilon_of([Event(2.0, 0.1)] * 4, DELTA)
    assert ledger.epsilon_actual() == pytest.approx(
        epsilon_of([Event(2.0 / 200, 0.1)] * 4, DELTA), rel=1e-9
    )


def test_cap_counts_the_costliest_rounds_unamplified() -> None:
    """Initialisation always; of training the ``cap`` releases with the least noise."""
    ledger = Ledger(None, "pina", DELTA, budget=None, cap=2)
    ledger.record(release(1, phase="mean", noise_multiplier=5.0, sampling=0.5))
    ledger.record(release(2, phase="lloyd", noise_multiplier=6.0, sampling=0.5))
    for number, noise in enumerate((3.0, 1.5, 4.0, 2.0), start=3):
        ledger.record(release(number, noise_multiplier=noise))
    expected = [Event(5.0), Event(6.0), Event(1.5), Event(2.0)]
    assert ledger.epsilon() == pytest.approx(epsilon_of(expected, DELTA), rel=1e-12)


def test_with_a_cap_rounds_beyond_it_are_free() -> None:
    """No client is in them a third time."""
    budget = epsilon_of([Event(2.0)] * 2, DELTA)
    ledger = Ledger(None, "pina", DELTA, budget=budget, cap=2)
    for number in range(1, 9):
        ledger.record(release(number))
    assert ledger.epsilon() == pytest.approx(budget, rel=1e-12)
