"""What a node does in a round: loads its clients and the frozen model, and computes."""

from logging import ERROR

import torch
from flwr.app import Context, RecordDict
from flwr.common import log

from pina_app import local
from pina_app.classifier import Classifier
from pina_app.config import PinaConfig, from_run_config
from pina_app.model import HEAD_BIAS
from pina_app.task import ClientData, device_client, frozen_model, simulated_client
from strategies import wire
from strategies.clustering.frame import Frame
from strategies.clustering.public_statistics import PublicStatistics

# One thread a process: several busy torch threads on few cores are ten times slower than one.
torch.set_num_threads(1)


def contribution(content: RecordDict, context: Context) -> RecordDict:
    """The reply to a round's request.

    In a private run an error leaves nothing but zeros, as of a client without data.
    """
    request, ids, models, prototypes = wire.read_round(content)
    config = from_run_config(context.run_config)
    mu = float(str(wire.read_config(content).get(wire.PROXIMAL_MU, 0.0)))
    arrays = wire.read_frame(content)
    frame = None if arrays is None else Frame.of(arrays)
    try:
        clients = _load_clients(config, context, ids, models)
        classifier = Classifier(frozen_model(config).tail, _statistics(context))
        return local.answer(config, classifier, request, clients, models, prototypes, mu, frame)
    except Exception as error:
        if not request.private:
            raise
        # The text of an error is data: it stays in this node's log.
        log(ERROR, "this node contributes zeros to the round: %s: %s", type(error).__name__, error)
        return local.nothing(config, request, ids)


def _load_clients(
    config: PinaConfig, context: Context, ids: list[int], models: list[wire.Model]
) -> dict[int, ClientData]:
    """Data of the clients; one that cannot be loaded is unusable, the others are not touched."""
    classes = len(models[0][HEAD_BIAS]) if models else None
    clients = {}
    for client in ids:
        try:
            if config.simulation:
                data = simulated_client(config, client)
            else:
                data = device_client(config, str(context.node_config["data"]))
            clients[client] = data.within(classes)
        except Exception as error:
            log(ERROR, "client %d has no usable data: %s: %s", client, type(error).__name__, error)
            clients[client] = ClientData.nothing()
    return clients


def _statistics(context: Context) -> PublicStatistics:
    public = wire.read_public(context.state)
    source = "received" if public["centred"].item() else "none"
    return PublicStatistics(source, public["mean"], public["embedding"], public["head"])
