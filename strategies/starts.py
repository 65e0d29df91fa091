"""From one model to C cluster models and back: how Flower's calls fit a clustered strategy.

``start(initial_arrays=...)`` takes the arrays of one model. Where clients choose by loss from the
first round, C equal models would tie for ever, so each starts from its own random perturbation.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from numpy.typing import NDArray

from strategies import wire

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
