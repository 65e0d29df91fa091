"""What a node computes for its clients in one round; see ``strategies.pina`` for the phases.

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
from pina_app.model import LORA_B
from pina_app.task import ClientData
from pina_app.training import LocalTraining, train_clients
from strategies import wire
from strategies.assignment import lowest_loss, nearest_prototype
from strategies.clustering.initialisation import client_answers
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
    """The node's reply: the protected sum over its clients (or their noised sketches).

    One client that cannot be computed must not take its neighbours on the node with it: then every
    client is computed by itself.
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
                config, classifier, request, data, models, prototypes
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
            _sketches(config, request, list(clients), usable, updates, models)
        )
    else:
        total, finite = request.layout.encode(updates, chosen)
        content = wire.contribution(total)
    unusable = sorted([*unusable, *(k for k, good in zip(usable, finite, strict=True) if not good)])
    return content if request.private else wire.naming(content, unusable)


def nothing(request: wire.RoundRequest, clients: Sequence[int]) -> RecordDict:
    """The reply of a node that could not compute: zeros of the right size."""
    if request.phase == "sketch":
        return wire.sketch_reply(np.zeros((len(clients), request.width)))
    return wire.contribution(np.zeros(request.layout.size, dtype=np.int64))


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
) -> tuple[NDArray[np.float64], NDArray[np.integer]]:
    """Updates (or functions of embeddings) of several clients, and the slot that each chooses."""
    nowhere = np.zeros(len(clients), dtype=np.intp)
    if request.phase == "sketch":
        return _train(config, classifier, request, clients, models, nowhere), nowhere
    if request.phase == "train":
        chosen = assign(config, classifier, request.assignment, clients, models, prototypes)
        return _train(config, classifier, request, clients, models, chosen), chosen
    embeddings = classifier.embeddings([data.samples for data in clients.values()])
    return client_answers(request.phase, embeddings, prototypes)


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
    ids: Sequence[int],
    usable: dict[int, ClientData],
    updates: NDArray[np.float64],
    models: Sequence[wire.Model],
) -> NDArray[np.float64]:
    """A noised sketch (h,) of B's update for each client asked; of zeros for an unusable one."""
    zero = np.zeros(request.width)
    computed = wire.unflatten(np.nan_to_num(updates), models[0])
    rows = dict(zip(usable, (update[LORA_B].ravel() for update in computed), strict=True))
    seed = config.seed if config.simulation else None
    return np.stack(
        [
            sketch(
                rows.get(client, zero),
                request.threshold,
                request.noise_multiplier,
                stream(seed, "sketch-noise", request.round, client),
            )
            for client in ids
        ]
    )
