"""The end of every round: diagnostics in simulation, one line of the record, the checkpoint."""

import statistics
import time
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from app_kit.progress import clock, say
from pina_app.classifier import Classifier
from pina_app.config import PinaConfig
from pina_app.diagnostics import UNKNOWN, Diagnostics
from pina_app.results import epsilons
from strategies.checkpoint import RunDirectory
from strategies.clustered import ClusteredStrategy


class Rounds:
    """Commits the rounds of one strategy; ``commit`` is Flower's ``evaluate_fn``."""

    def __init__(
        self,
        config: PinaConfig,
        directory: RunDirectory,
        strategy: ClusteredStrategy,
        classifier: Classifier,
    ) -> None:
        self.directory = directory
        self.evaluate_every = config.evaluate_every
        self.strategy = strategy
        self.diagnostics = Diagnostics(config, classifier) if config.simulation else None
        self.last = time.monotonic()
        self._seconds: list[float] = []

    def commit(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Write the round to disk and tell the progress."""
        if server_round == 0:  # nothing has happened yet
            self.last = time.monotonic()
            return None
        strategy = self.strategy
        measured = self._measure()
        now = time.monotonic()
        line: dict[str, Any] = {
            "method": strategy.name,
            "round": strategy.round,
            "phase": strategy.request(strategy.round).phase,
            "stage_round": strategy.request(strategy.round).round,
            **measured,
            **epsilons(strategy.plan, strategy),
            "skipped": strategy.skipped,
            **strategy.traffic.line(),
            "seconds": round(now - self.last, 3),
        }
        if not strategy.plan.private:
            line["unusable"] = strategy.unusable
        self.directory.commit_round(strategy.name, strategy.state(), line)
        self._seconds = [*self._seconds[-9:], line["seconds"]]
        # The median: the first round also starts the workers.
        eta = statistics.median(self._seconds) * (strategy.total_rounds - strategy.round)
        say("%s", progress(line, strategy.total_rounds, eta))
        self.last = now
        return None

    def _measure(self) -> dict[str, Any]:
        strategy = self.strategy
        request, prototypes = strategy.request(strategy.round), strategy.prototypes()
        trained = request.phase == "train"
        merged = prototypes is None or len(prototypes) == strategy.clusters
        if self.diagnostics is None or not (trained or (prototypes is not None and merged)):
            return UNKNOWN
        due = request.round % self.evaluate_every == 0 or strategy.round == strategy.total_rounds
        if trained and not due:
            return UNKNOWN
        return self.diagnostics.evaluate(
            strategy.models, request.assignment, prototypes, strategy.frame(), trained=trained
        )


def progress(line: dict[str, Any], total: int, eta_s: float) -> str:
    """One live line a round."""
    parts = [f"{line['method']:>7} {line['round']:>3}/{total} {line['phase']:<9}"]
    if line["accuracy_mean"] is not None:
        parts.append(f"accuracy {line['accuracy_mean']:.3f}")
    if line["ari"] is not None:
        parts.append(f"ARI {line['ari']:.2f}")
    if line["epsilon_outside"] is not None:
        parts.append(f"epsilon {line['epsilon_outside']:.2f}")
    return "  ".join([*parts, f"{clock(eta_s)} left"])
