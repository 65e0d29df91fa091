"""What a node computes for its clients in one round; the phases are those of
``strategies.clustering.initialisation``, "sketch" and "train".

In a private run a client whose data or update cannot be used contributes zeros and its reply
looks like any other.
"""

from collections.abc import Sequence
from logging import ERROR

import numpy as np
from flwr.app import RecordDict
from flwr.common import log
from numpy.typing import NDArray

from pina_app.classifier import Classifier
from pina_app.config import PinaConfig
from pina_app.sketches import sketches
from pina_app.task import ClientData
from pina_app.training import LocalTraining, train_clients
from strategies import wire
from strategies.assignment import lowest_loss, squared_distances
from strategies.clustering import discriminant
from strategies.clustering.frame import Frame
from strategies.clustering.initialisation import LABELLED_PHASES, client_answers
from strategies.fednova import accumulated_steps
from strategies.local_noise import local_noise
from strategies.randomness import stream
from strategies.rr_cluster import moved

Prototypes = NDArray[np.float64]


def answer(
    config: PinaConfig,
    classifier: Classifier,
    request: wire.RoundRequest,
    clients: dict[int, ClientData],
    models: Sequence[wire.Model],
    prototypes: Prototypes | None,
    mu: float = 0.0,
    frame: Frame | None = None,
) -> RecordDict:
    """The node's reply: the protected sum over its clients (or their noised sketches).

    ``mu`` is the weight of FedProx's proximal term. One client that cannot be computed must not
    take its neighbours on the node with it: then every client is computed by itself.
    """
    usable = {client: data for client, data in clients.items() if data.usable}
    unusable = sorted(clients.keys() - usable.keys())
    updates = np.zeros((len(usable), _update_size(request, models)))
    chosen = np.zeros(len(usable), dtype=np.intp)
    row_of = {client: row for row, client in enumerate(usable)}
    batches = [list(usable)] if usable else []
    while batches:
        batch = batches.pop()
        rows = [row_of[client] for client in batch]
        data = {client: usable[client] for client in batch}
        try:
            updates[rows], chosen[rows] = _compute(
                config, classifier, request, data, models, prototypes, mu, frame
            )
        except Exception as error:
            if len(batch) > 1:
                batches += [[client] for client in batch]
                continue
            # The text of an error is data: it stays in this node's log.
            log(ERROR, "client %d cannot take part: %s: %s", batch[0], type(error).__name__, error)
            updates[rows] = np.nan
    finite: NDArray[np.bool_]
    if request.phase == "sketch":
        finite = np.asarray(np.isfinite(updates).all(axis=1))
        content = wire.sketch_reply(
            sketches(config, request, list(clients), usable, updates, models)
        )
    else:
        total, finite = request.layout.encode(updates, chosen)
        content = wire.contribution(total + local_noise(request, list(clients), _seed(config)))
    unusable = sorted([*unusable, *(k for k, good in zip(usable, finite, strict=True) if not good)])
    return content if request.private else wire.naming(content, unusable)


def nothing(config: PinaConfig, request: wire.RoundRequest, clients: Sequence[int]) -> RecordDict:
    """The reply of a node that could not compute: zeros of the right size, and any local noise."""
    if request.phase == "sketch":
        return wire.sketch_reply(np.zeros((len(clients), request.width)))
    return wire.contribution(local_noise(request, clients, _seed(config)))


def _seed(config: PinaConfig) -> int | None:
    return config.seed if config.simulation else None


def _update_size(request: wire.RoundRequest, models: Sequence[wire.Model]) -> int:
    """Numbers that a client computes: those of a model, or of an embedding."""
    return wire.flatten(models[:1]).size if request.phase == "sketch" else request.width


def _compute(
    config: PinaConfig,
    classifier: Classifier,
    request: wire.RoundRequest,
    clients: dict[int, ClientData],
    models: Sequence[wire.Model],
    prototypes: Prototypes | None,
    mu: float,
    frame: Frame | None,
) -> tuple[NDArray[np.float64], NDArray[np.integer]]:
    """Updates (or functions of embeddings) of several clients, and the slot that each chooses."""
    nowhere = np.zeros(len(clients), dtype=np.intp)
    if request.phase == "sketch":
        return _train(config, classifier, request, clients, models, nowhere, mu), nowhere
    if request.phase == "train":
        chosen = assign(config, classifier, request.assignment, clients, models, prototypes, frame)
        chosen = moved(request, list(clients), chosen, _seed(config))
        return _train(config, classifier, request, clients, models, chosen, mu), chosen
    if request.phase in LABELLED_PHASES:
        features = classifier.whitened([data.samples for data in clients.values()])
        answers = [
            discriminant.client_answer(
                request.phase, rows, data.labels.numpy(), frame, request.width
            )
            for rows, data in zip(features, clients.values(), strict=True)
        ]
        return np.stack(answers), nowhere
    return client_answers(request.phase, embeddings(classifier, clients, frame), prototypes)


def embeddings(
    classifier: Classifier, clients: dict[int, ClientData], frame: Frame | None
) -> NDArray[np.float64]:
    """Embeddings of several clients: as usual, or in a frame, which takes their labels too."""
    samples = [data.samples for data in clients.values()]
    if frame is None:
        return classifier.embeddings(samples)
    labels = [data.labels for data in clients.values()]
    return classifier.framed_embeddings(samples, labels, frame)


def assign(
    config: PinaConfig,
    classifier: Classifier,
    policy: str,
    clients: dict[int, ClientData],
    models: Sequence[wire.Model],
    prototypes: Prototypes | None,
    frame: Frame | None = None,
) -> NDArray[np.integer]:
    """Cluster of every client under a policy of ``strategies.clustered.ASSIGNMENTS``."""
    data = list(clients.values())
    if policy == "single" or not models:
        return np.zeros(len(data), dtype=int)
    if policy == "oracle":
        return np.array([client.group for client in data])
    samples = [client.samples for client in data]
    distances = None
    if prototypes is not None:
        distances = squared_distances(embeddings(classifier, clients, frame), prototypes)
    losses = classifier.client_losses(models, samples, [client.labels for client in data])
    return lowest_loss(losses, distances, config.prototype_weight)


def _train(
    config: PinaConfig,
    classifier: Classifier,
    request: wire.RoundRequest,
    clients: dict[int, ClientData],
    models: Sequence[wire.Model],
    chosen: NDArray[np.integer],
    mu: float,
) -> NDArray[np.float64]:
    settings = LocalTraining(
        config.epochs,
        config.batch_size,
        config.learning_rate,
        mu,
        train_lora=config.trainable == "lora+head",
        train_head=request.phase == "train",
    )
    seed = _seed(config)
    name = f"batches-{request.phase}"
    updates = train_clients(
        classifier,
        settings,
        [models[cluster] for cluster in chosen],
        [data.samples for data in clients.values()],
        [data.labels for data in clients.values()],
        [stream(seed, name, request.round, client) for client in clients],
    )
    if not request.normalise:
        return updates
    steps = [config.local_steps(len(data.labels)) for data in clients.values()]
    worth = np.array([accumulated_steps(count, request.local_momentum) for count in steps])
    normalised: NDArray[np.float64] = updates / worth[:, None]
    return normalised
