"""The ledger: every release that was, or may have been, made, on disk before it is used.

A release is recorded first and used afterwards; a run that dies in between has spent it. The
budget is checked before a release, so no run ever exceeds it.
"""

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path

from strategies import run_record
from strategies.privacy.calibration import Event, epsilon_of


class BudgetExhaustedError(RuntimeError):
    """The next release would exceed the privacy budget."""


@dataclasses.dataclass(frozen=True)
class Release:
    """One use of a mechanism on client data.

    Attributes
    ----------
    method, round : str, int
        Which strategy released, and in which of its rounds (from 1).
    phase : str
        What was released: "mean", "moments", "histogram", "lloyd", "train", or a "sketch", which
        no epsilon covers.
    noise_multiplier : float
        Standard deviation of the noise of the assumed cohort, in sensitivities.
    sampling : float
        Probability with which a client took part (Poisson sampling).
    sensitivity : float
        L2 sensitivity of the sum to adding or removing one client.
    noise_std : float
        Standard deviation of the noise that was really added to the sum.
    """

    method: str
    round: int
    phase: str
    noise_multiplier: float
    sampling: float
    sensitivity: float
    noise_std: float

    @property
    def assumed(self) -> Event:
        """The accounting event under the assumed (perhaps simulated) cohort."""
        return Event(self.noise_multiplier, self.sampling)

    @property
    def actual(self) -> Event:
        """The accounting event of the noise that was really added."""
        return Event(self.noise_std / self.sensitivity, self.sampling)


class Ledger:
    """Append-only record of releases with a budget.

    Parameters
    ----------
    path : Path or None
        A JSON-lines file, read at start and appended to (fsync before return); None keeps the
        ledger in memory.
    method : str
        Only this method's releases count: epsilons are per stand-alone run.
    delta : float
        delta of the guarantee.
    budget : float or None
        Largest allowed epsilon; None only records.
    cap : int or None
        Most training rounds of one client, if the sampler enforces a cap; the releases are then
        counted without amplification (see ``strategies.privacy.plan``).
    """

    def __init__(
        self,
        path: Path | None,
        method: str,
        delta: float,
        budget: float | None,
        cap: int | None = None,
    ) -> None:
        self.path = path
        self.method = method
        self.delta = delta
        self.budget = budget
        self.cap = cap
        self.releases: list[Release] = []
        if path is not None:
            run_record.drop_cut_line(path)  # or the next line would be glued to it
            self.releases = read_releases(path, method)

    def check(self, release: Release) -> None:
        """Raise BudgetExhaustedError if one more release would exceed the budget."""
        if self.budget is None:
            return
        after = self._epsilon([*self.releases, release], actual=False)
        # The calibration stops within 1e-6 below the budget; rounding must not end a run early.
        if after > self.budget * (1 + 1e-9):
            raise BudgetExhaustedError(
                f"{self.method}: the next release would bring epsilon to {after:.4g}, beyond the "
                f"budget of {self.budget:g} (delta = {self.delta:.3g}); "
                f"{len(self.releases)} releases are recorded"
            )

    def record(self, release: Release) -> None:
        """Check the budget, then write the release to disk; only then may it be used."""
        self.check(release)
        self.releases.append(release)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(release)) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def epsilon(self) -> float:
        """Epsilon spent so far under the assumed cohort (0 without releases)."""
        return self._epsilon(self.releases, actual=False)

    def epsilon_actual(self) -> float:
        """Epsilon spent so far with the noise that was really added."""
        return self._epsilon(self.releases, actual=True)

    def _epsilon(self, releases: list[Release], *, actual: bool) -> float:
        # No epsilon covers a sketch; a run with sketches claims none at all.
        releases = [release for release in releases if release.phase != "sketch"]
        events = [release.actual if actual else release.assumed for release in releases]
        if self.cap is not None:
            init = [event for event, r in zip(events, releases, strict=True) if r.phase != "train"]
            train = [event for event, r in zip(events, releases, strict=True) if r.phase == "train"]
            costliest = sorted(train, key=lambda event: event.noise_multiplier)[: self.cap]
            events = [Event(event.noise_multiplier) for event in (*init, *costliest)]
        return epsilon_of(events, self.delta)


def read_releases(path: Path, method: str) -> list[Release]:
    """Releases of one method; a last line that was cut off while written is not counted.

    A cut line means that ``record`` did not return, so its release was not used.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    releases: Iterable[Release] = (Release(**json.loads(line)) for line in lines[:-1] if line)
    return [release for release in releases if release.method == method]
