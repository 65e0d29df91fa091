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

from pina_app.classifier import Classifier
from pina_app.config import PinaConfig
from pina_app.local import assign
from pina_app.task import frozen_model, simulated_client, simulated_federation
from strategies import wire

UNKNOWN: dict[str, Any] = {"accuracy_mean": None, "accuracy_per_cluster": None, "ari": None}


class Diagnostics:
    """Evaluates cluster models on a simulated federation.

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
        self.groups = federation.groups
        self._clients = {k: simulated_client(config, k) for k in range(config.clients)}
        self._clients = {k: data for k, data in self._clients.items() if data.usable}
        model = frozen_model(config)
        self._tests = [
            torch.from_numpy(model.reduce(images, "the test images")[:])
            for images in federation.test_images
        ]
        self._targets = torch.from_numpy(federation.test_labels)

    def evaluate(
        self,
        models: Sequence[wire.Model],
        policy: str,
        prototypes: NDArray[np.float64] | None,
        *,
        trained: bool,
    ) -> dict[str, Any]:
        """Accuracies and ARI of the cluster models.

        ``accuracy_per_cluster[g]`` is the test accuracy on the images of true cluster g under the
        models that its training clients are assigned, weighted by how many are assigned where;
        ``accuracy_mean`` weights the true clusters by their clients. None before training, and
        for a true cluster without clients. ARI is
        None where there are no true clusters to compare with.
        """
        chosen = assign(self.config, self.classifier, policy, self._clients, models, prototypes)
        truth = self.groups[list(self._clients)]
        groups = len(self._tests)
        ari = (
            float(adjusted_rand_score(truth, chosen)) if groups > 1 and policy != "single" else None
        )
        if not trained:
            return {**UNKNOWN, "ari": ari}
        shares = np.zeros((groups, len(models)))
        np.add.at(shares, (truth, chosen), 1.0)
        weights = shares.sum(axis=1) / shares.sum()
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1)
        accuracies = [
            [
                float((self.classifier.predict(m, test).argmax(1) == self._targets).float().mean())
                for m in models
            ]
            for test in self._tests
        ]
        per_group = (shares * np.array(accuracies)).sum(axis=1)
        return {
            "accuracy_mean": float(weights @ per_group),
            "accuracy_per_cluster": [
                float(value) if weight > 0 else None
                for value, weight in zip(per_group, weights, strict=True)
            ],
            "ari": ari,
        }
