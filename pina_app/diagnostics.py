"""Simulation-only diagnostics: accuracy, assignments and ARI, from models and the known split.

They are computed by the server from the simulated data, after a release; no client sends them,
and on devices they do not exist.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from pina_app.classifier import Classifier
from pina_app.config import PinaConfig
from pina_app.local import assign
from pina_app.task import frozen_model, simulated_client, simulated_federation
from strategies import wire
from strategies.clustering.frame import Frame

UNKNOWN: dict[str, Any] = {"accuracy_mean": None, "accuracy_per_cluster": None, "ari": None}


class Diagnostics:
    """Evaluates cluster models on a simulated federation.

    The test images are the data set's in every rotation, or, with ``held-out``, each client's own.

    Parameters
    ----------
    config : PinaConfig
        Of a simulation.
    classifier : Classifier
    """

    def __init__(self, config: PinaConfig, classifier: Classifier) -> None:
        self.config = config
        self.classifier = classifier
        federation, _ = simulated_federation(config)
        clients = {k: simulated_client(config, k) for k in range(config.clients)}
        self._clients = {k: data for k, data in clients.items() if data.usable}
        self.groups = federation.groups[list(self._clients)]
        self._count = len(config.rotation_list)
        self._own = [
            simulated_client(config, k, held_out=True)
            for k in (self._clients if config.held_out else ())
        ]
        model = frozen_model(config)
        tests = () if config.held_out else federation.test_images
        self._tests = [torch.from_numpy(model.reduce(i, "the test images")[:]) for i in tests]
        self._targets = torch.from_numpy(federation.test_labels)

    def assignment(
        self,
        models: Sequence[wire.Model],
        policy: str,
        prototypes: NDArray[np.float64] | None,
        frame: Frame | None = None,
    ) -> NDArray[np.integer]:
        """Cluster of every usable client."""
        return assign(
            self.config, self.classifier, policy, self._clients, models, prototypes, frame
        )

    def scores(
        self, models: Sequence[wire.Model], chosen: NDArray[np.integer]
    ) -> list[NDArray[np.float64]]:
        """How well each test image is classified, one array (M,) for each true cluster.

        A score is the share of the true cluster's training clients under whose model the image is
        right; for a client's own held-out image it is 0 or 1. No scores for a true cluster
        without clients.
        """
        groups = range(self._count)
        if self._own:
            own = self._own_scores(models, chosen)
            return [np.concatenate([np.zeros(0), *(own[k] for k in self._of(g))]) for g in groups]
        found = []
        for g in groups:
            shares = np.bincount(chosen[self._of(g)], minlength=len(models)).astype(float)
            if not shares.sum():
                found.append(np.zeros(0))
                continue
            shares /= shares.sum()
            right = [self._right(model, self._tests[g], self._targets) for model in models]
            found.append(shares @ np.stack(right))
        return found

    def _own_scores(
        self, models: Sequence[wire.Model], chosen: NDArray[np.integer]
    ) -> list[NDArray[np.bool_]]:
        samples = torch.cat([data.samples for data in self._own])
        labels = torch.cat([data.labels for data in self._own])
        sizes = [len(data.labels) for data in self._own]
        right = np.stack([self._right(model, samples, labels) for model in models])
        of_image = np.repeat(chosen, sizes)
        return np.split(right[of_image, np.arange(len(labels))], np.cumsum(sizes)[:-1])

    def _of(self, group: int) -> NDArray[np.intp]:
        return np.flatnonzero(self.groups == group)

    def _right(self, model: wire.Model, samples: Tensor, labels: Tensor) -> NDArray[np.bool_]:
        predicted = self.classifier.predict(model, samples).argmax(1)
        return np.asarray((predicted == labels).numpy())

    def evaluate(
        self,
        models: Sequence[wire.Model],
        policy: str,
        prototypes: NDArray[np.float64] | None,
        frame: Frame | None = None,
        *,
        trained: bool,
    ) -> dict[str, Any]:
        """Accuracies and ARI of the cluster models.

        ``accuracy_per_cluster[g]`` is the mean score of the test images of true cluster g;
        ``accuracy_mean`` weights the true clusters by their clients, or, with ``held-out``, all
        images alike. None before training, and for a true cluster without clients. ARI is
        None where there are no true clusters to compare with.
        """
        chosen = self.assignment(models, policy, prototypes, frame)
        groups = self._count
        compared = groups > 1 and policy != "single"
        ari = float(adjusted_rand_score(self.groups, chosen)) if compared else None
        if not trained:
            return {**UNKNOWN, "ari": ari}
        scores = self.scores(models, chosen)
        sizes = np.array([len(group) for group in scores])
        clients = np.bincount(self.groups, minlength=groups)
        weights = (sizes if self._own else clients) * (sizes > 0)
        means = [float(group.mean()) if len(group) else None for group in scores]
        total = sum(w * m for w, m in zip(weights, means, strict=True) if m is not None)
        return {
            "accuracy_mean": float(total / weights.sum()) if weights.sum() else None,
            "accuracy_per_cluster": means,
            "ari": ari,
        }
