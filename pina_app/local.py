"""What a node computes for its clients in one round; see ``strategies.pina`` for the phases.

In a private run a client whose data or update cannot be used contributes zeros and its reply
looks like any other.
"""

from collections.abc import Sequence

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from pina_app.classifier import Classifier
from pina_app.config import PinaConfig
from pina_app.model import LORA_B
from pina_app.task import ClientData
from pina_app.training import LocalTraining, train_clients
from strategies import wire
from strategies.assignment import lowest_loss, nearest_prototype
from strategies.clustering.sketch import sketch
from strategies.randomness import stream

Prototypes = NDArray[np.float64]


def answer(
    config: PinaConfig,
    classifier: Classifier,
    request: wire.RoundRequest,
    clients: dict[int, ClientData],
    models: Sequence[wire.Model],
    prototypes: Prototypes | None,
) -> RecordDict:
    """The node's reply: the protected sum over its clients (or their noised sketches)."""
    usable = {client: data for client, data in clients.items() if data.usable}
    unusable = sorted(clients.keys() - usable.keys())
    if request.phase == "sketch":
        updates = _train(config, classifier, request, usable, models, np.zeros(len(usable), int))
        return wire.sketch_reply(_sketches(config, request, usable, updates, models[0]))
    if not usable:
        total = np.zeros(request.layout.size, dtype=np.int64)
    else:
        chosen = assign(config, classifier, request.assignment, usable, models, prototypes)
        if request.phase == "train":
            updates = _train(config, classifier, request, usable, models, chosen)
        else:
            updates = classifier.embeddings([data.samples for data in usable.values()])
            if request.phase == "mean":
                chosen = np.zeros(len(usable), dtype=int)
            elif prototypes is not None:
                chosen = nearest_prototype(updates, prototypes)
        total, finite = request.layout.encode(updates, chosen)
        unusable = sorted([*unusable, *np.array(list(usable))[~finite].tolist()])
    return wire.contribution(total, () if request.private else unusable)


def nothing(request: wire.RoundRequest, clients: Sequence[int]) -> RecordDict:
    """The reply of a node that could not compute: zeros of the right size."""
    if request.phase == "sketch":
        return wire.sketch_reply(np.zeros((len(clients), request.width)))
    return wire.contribution(np.zeros(request.layout.size, dtype=np.int64))


def assign(
    config: PinaConfig,
    classifier: Classifier,
    policy: str,
    clients: dict[int, ClientData],
    models: Sequence[wire.Model],
    prototypes: Prototypes | None,
) -> NDArray[np.integer]:
    """Cluster of every client under a policy of ``strategies.clustered.ASSIGNMENTS``."""
    data = list(clients.values())
    if policy == "single" or not models:
        return np.zeros(len(data), dtype=int)
    if policy == "oracle":
        return np.array([client.group for client in data])
    samples = [client.samples for client in data]
    favoured = None
    if prototypes is not None:
        favoured = nearest_prototype(classifier.embeddings(samples), prototypes)
        if policy == "prototype":
            return favoured
    losses = classifier.client_losses(models, samples, [client.labels for client in data])
    return lowest_loss(losses, favoured, config.hysteresis)


def _train(
    config: PinaConfig,
    classifier: Classifier,
    request: wire.RoundRequest,
    clients: dict[int, ClientData],
    models: Sequence[wire.Model],
    chosen: NDArray[np.integer],
) -> NDArray[np.float64]:
    settings = LocalTraining(
        config.epochs,
        config.batch_size,
        config.learning_rate,
        train_lora=config.trainable == "lora+head",
        train_head=request.phase == "train",
    )
    seed = config.seed if config.simulation else None
    name = f"batches-{request.phase}"
    return train_clients(
        classifier,
        settings,
        [models[cluster] for cluster in chosen],
        [data.samples for data in clients.values()],
        [data.labels for data in clients.values()],
        [stream(seed, name, request.round, client) for client in clients],
    )


def _sketches(
    config: PinaConfig,
    request: wire.RoundRequest,
    clients: dict[int, ClientData],
    updates: NDArray[np.float64],
    like: wire.Model,
) -> NDArray[np.float64]:
    """One noised sketch of B's update for each client, (n, h)."""
    rows = [update[LORA_B].ravel() for update in wire.unflatten(updates, like)]
    seed = config.seed if config.simulation else None
    return np.stack(
        [
            sketch(
                np.nan_to_num(row),
                request.threshold,
                request.noise_multiplier,
                stream(seed, "sketch-noise", request.round, client),
            )
            for client, row in zip(clients, rows, strict=True)
        ]
    )
