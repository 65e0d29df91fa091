"""The end of every round: accuracy of the global model, one line of the record, the checkpoint."""

import statistics
import time
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from app_kit.progress import clock, say
from strategies.checkpoint import RunDirectory
from strategies.hierarchical import HierarchicalFedAvg
from wireless_cfl_app.config import WirelessConfig
from wireless_cfl_app.data import task, test_data
from wireless_cfl_app.model import accuracy_and_loss, create_model


class Rounds:
    """Commits the rounds of a run; ``commit`` is Flower's ``evaluate_fn``."""

    def __init__(
        self, config: WirelessConfig, directory: RunDirectory, strategy: HierarchicalFedAvg
    ) -> None:
        self.config = config
        self.directory = directory
        self.strategy = strategy
        self.total = strategy.rounds(config.iterations) + strategy.completed
        self.model = create_model(task(config), config.run_seed)
        # A deployment that names its classes has no data set, and so no test images.
        self.test = test_data(config) if config.classes is None else None
        self.last = time.monotonic()
        self._seconds: list[float] = []

    def commit(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Write the round to disk and tell the progress."""
        if server_round == 0:  # nothing has happened yet
            self.last = time.monotonic()
            return None
        strategy = self.strategy
        measured = self._measure(arrays)
        now = time.monotonic()
        line: dict[str, Any] = {
            "method": self.config.method,
            "round": strategy.round,
            "phase": strategy.phase,
            "iteration": strategy.iteration,
            **measured,
            "uplink_j": strategy.account.uplink_j,
            "relay_j": strategy.account.relay_j,
            "downlink_j": strategy.account.downlink_j,
            "delay_s": strategy.account.delay_s,
            **strategy.traffic.line(),
            "heads": [] if strategy.clustering is None else strategy.clustering.heads.tolist(),
            "failed": strategy.failed,
            "skipped": strategy.skipped,
            "seconds": round(now - self.last, 3),
        }
        self.directory.commit_round(self.config.method, strategy.state(), line)
        self._seconds = [*self._seconds[-9:], line["seconds"]]
        # The median: the first round also starts the workers.
        eta = statistics.median(self._seconds) * (self.total - strategy.round)
        say("%s", progress(line, self.config.iterations, eta))
        self.last = now
        return None

    def _measure(self, arrays: ArrayRecord) -> dict[str, float | None]:
        """Test accuracy and loss after every ``evaluate-every``-th global aggregation."""
        strategy, last = self.strategy, self.config.iterations
        period = self.config.evaluate_every * strategy.global_period
        due = strategy.iteration % period == 0 or strategy.iteration == last
        if strategy.phase != "train" or not due or self.test is None:
            return {"accuracy_mean": None, "loss": None}
        self.model.load_state_dict(arrays.to_torch_state_dict())
        accuracy, loss = accuracy_and_loss(self.model, self.test.images, self.test.labels)
        return {"accuracy_mean": accuracy, "loss": loss}


def progress(line: dict[str, Any], iterations: int, eta_s: float) -> str:
    """One live line a round."""
    parts = [f"{line['method']:>10} {line['iteration']:>4}/{iterations} {line['phase']:<8}"]
    if line["accuracy_mean"] is not None:
        parts.append(f"accuracy {line['accuracy_mean']:.3f}")
    joules = line["uplink_j"] + line["relay_j"] + line["downlink_j"]
    parts.append(f"{joules:.3g} J")
    if line["failed"]:
        parts.append(f"{len(line['failed'])} devices failed")
    return "  ".join([*parts, f"{clock(eta_s)} left"])
