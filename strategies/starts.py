"""From one model to C cluster models and back: how Flower's calls fit a clustered strategy.

``start(initial_arrays=...)`` takes the arrays of one model. Where clients choose by loss from the
first round, C equal models would tie for ever, so each starts from its own random perturbation.
"""

from collections.abc import Callable
from logging import INFO
from typing import Any, NoReturn

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from strategies import wire
from strategies.randomness import stream
from strategies.streaming import StreamingGrid

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
ZERO_SCALE = 0.1
"""Taken for the size of an array that holds zeros only, such as a bias."""


def perturbed(
    model: wire.Model, clusters: int, perturbation: float, rng: np.random.Generator
) -> list[wire.Model]:
    """C copies of a model with Gaussian noise of their own.

    Parameters
    ----------
    model : Model
        Arrays by name; integer arrays are not changed.
    clusters : int
        C >= 1; with one cluster, or no perturbation, the copies are exact.
    perturbation : float
        Standard deviation of the noise relative to the root mean square of an array.
    """
    if clusters == 1 or perturbation == 0:
        return [{name: values.copy() for name, values in model.items()} for _ in range(clusters)]
    return [
        {
            name: _perturbed(values, perturbation, rng)
            if np.issubdtype(values.dtype, np.floating)
            else values.copy()
            for name, values in model.items()
        }
        for _ in range(clusters)
    ]


def _perturbed(values: NDArray[Any], perturbation: float, rng: np.random.Generator) -> NDArray[Any]:
    size = float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0
    noise = perturbation * (size or ZERO_SCALE) * rng.standard_normal(values.shape)
    return np.asarray(values + noise, dtype=values.dtype)


def cluster_arrays(arrays: ArrayRecord) -> list[ArrayRecord]:
    """The models in the arrays of a clustered strategy, each under its own plain names.

    Use it on ``result.arrays``. Arrays with plain names are one model.
    """
    if wire.is_plain(arrays):
        return [arrays]
    return [
        ArrayRecord({name: Array(values) for name, values in model.items()})
        for model in wire.unpack_models(arrays)
    ]


def evaluate_each(evaluate: EvaluateFn) -> EvaluateFn:
    """An ``evaluate_fn`` for one model, called with every cluster model in turn.

    The metrics of several clusters are named ``cluster-0/NAME``; those of one keep their names.
    """

    def evaluate_clusters(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        models = cluster_arrays(arrays)
        found = [evaluate(server_round, model) for model in models]
        if len(found) == 1:
            return found[0]
        merged = MetricRecord()
        for index, metrics in enumerate(found):
            for name, value in (metrics or {}).items():
                merged[f"cluster-{index}/{name}"] = value
        return merged if merged else None

    return evaluate_clusters


class OneModelStart(Strategy):
    """``start`` of a clustered strategy, called exactly as for FedAvg."""

    name: str
    clusters: int
    perturbation: float
    seed: int | None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Flower's own loop, called as for FedAvg; replies stream into the secure sum.

        Parameters
        ----------
        initial_arrays : ArrayRecord
            All cluster models (``wire.pack_models``); or one model with its own names, of which
            every cluster gets a copy, perturbed if clients choose by loss from the start.
        num_rounds, timeout, train_config
            As for FedAvg; ``evaluate_config`` is not used: clients are never asked to evaluate.
        evaluate_fn : callable, optional
            Called with all cluster models after each round; if ``start`` got one model, with one
            after another under that model's names, and metrics become ``cluster-0/NAME``.

        Returns
        -------
        Result
            ``arrays`` holds all cluster models (``strategies.cluster_arrays`` takes them apart);
            with one cluster, if ``start`` got plain names, the model under these names.
        """
        plain = wire.is_plain(initial_arrays)
        if plain:
            initial_arrays = wire.pack_models(self._from_one(initial_arrays))
            evaluate_fn = None if evaluate_fn is None else evaluate_each(evaluate_fn)
        result = super().start(
            StreamingGrid(grid),
            initial_arrays,
            num_rounds,
            timeout,
            train_config,
            evaluate_config,
            evaluate_fn,
        )
        if plain and self.clusters == 1 and len(result.arrays):
            result.arrays = cluster_arrays(result.arrays)[0]
        return result

    def _from_one(self, arrays: ArrayRecord) -> list[wire.Model]:
        """The cluster models that start from one."""
        model = {name: array.numpy() for name, array in arrays.items()}
        fixed = sorted(set(model) - set(wire.trainable(model)))
        if fixed:
            log(INFO, "%s: integer arrays are not trained and stay as they are: %s",
                self.name, ", ".join(fixed))  # fmt: skip
        if self.perturbation > 0 and self.clusters > 1:
            log(INFO, "%s: the cluster models start from random perturbations (%g) of one model",
                self.name, self.perturbation)  # fmt: skip
        return perturbed(model, self.clusters, self.perturbation, stream(self.seed, "starts"))

    def initialize_parameters(self, client_manager: object) -> NoReturn:
        """What Flower's old server calls first: say what to change."""
        raise TypeError(
            f"{type(self).__name__} needs Flower's Message API: replace "
            "ServerApp(server_fn=...) by `app = ServerApp()` and a function under `@app.main()` "
            "that calls strategy.start(grid=grid, initial_arrays=ArrayRecord(ndarrays), "
            "num_rounds=...); a NumPyClient may stay (strategies.clientapp)"
        )
