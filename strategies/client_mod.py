"""The client's side of every strategy, around a train function written for plain FedAvg.

The mod answers which client lives here, turns a round into the message that Flower's FedAvg would
send, calls the app's own functions with it, and replies with the clipped and encoded update alone.
The choice of the cluster is made here too. In a private run everything else stays on the client:
a client that fails, has no data or ends in NaN contributes zeros, and its reply looks like any
other; every request but protected rounds is refused. What is not hidden: how long a client takes,
and that its process died.
"""

import dataclasses
from collections.abc import Callable
from logging import ERROR

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import log
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from strategies import plain_client, wire
from strategies.assignment import lowest_loss, squared_distances
from strategies.clustering.initialisation import client_answers, embedding_size
from strategies.fednova import accumulated_steps
from strategies.local_noise import local_noise
from strategies.rr_cluster import moved

Embedding = Callable[[Context], NDArray[np.floating]]
"""From a client's context to its embedding (m,); longer vectors are cut to the unit ball."""
Loss = Callable[[ArrayRecord, Context], float]
"""Mean loss of a model (arrays with their own names) on the data of a client."""

QUERY = f"{MessageType.QUERY}.{wire.QUERY_CLIENTS}"
_STATE = "fedclusters"


@dataclasses.dataclass
class ClientMod:
    """A mod in front of a whole ClientApp; ``strategies.clientapp.ClientApp`` puts it there.

    Attributes
    ----------
    embedding : callable, optional
        Public function of a client's data by which PINA finds clusters before training.
    loss : callable, optional
        By default the app's evaluate function is called; its metric with "loss" in the name counts.
    prototype_weight : float
        Nats of mean loss that a squared distance of 1 between embedding and prototype is worth in
        the choice of a cluster (``strategies.assignment``).
    private : bool
        True refuses everything but protected rounds, whatever the server says. False does so from
        the first private round of a run on.
    evaluates : callable
        Whether the app has an evaluate function.
    legacy : bool
        Whether the app is a ``client_fn`` (NumPyClient).
    """

    embedding: Embedding | None = None
    loss: Loss | None = None
    prototype_weight: float = 1.0
    private: bool = False
    evaluates: Callable[[], bool] = lambda: True
    legacy: bool = False

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Flower's form of a mod; ``call_next`` must route by message type."""
        if message.metadata.message_type == QUERY:
            return self._who_lives_here(message, context)
        is_round = message.has_content() and wire.is_round(message.content)
        if is_round and message.metadata.message_type == MessageType.TRAIN:
            request, clients, models, prototypes = wire.read_round(message.content)
            if request.private:
                context.state[_STATE] = ConfigRecord({"private": True})
            if request.private or not self._sealed(context):
                call = plain_client.Caller(message, context, call_next, legacy=self.legacy)
                return self._take_part(call, request, clients, models, prototypes)
        if self._sealed(context):
            reason = f"{message.metadata.message_type}: refused, only protected sums leave a client"
            return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=message)
        return call_next(message, context)

    def _sealed(self, context: Context) -> bool:
        return self.private or _STATE in context.state

    def _who_lives_here(self, message: Message, context: Context) -> Message:
        """The partition of a simulation, or the client-id of a device; touches no data."""
        node = context.node_config
        if "client-id" in node:
            clients, nodes = [int(node["client-id"])], 0
        elif "partition-id" in node:
            clients, nodes = [int(node["partition-id"])], int(node["num-partitions"])
        else:
            raise ValueError(
                "this node does not know its client: start the SuperNode with "
                '--node-config "client-id=NUMBER" (0..K-1, each client its own)'
            )
        needs = wire.read_needs(message.content)
        problem = ""
        if needs.get("images"):
            problem = (
                "the strategy wants features and labels of single images (init = 'discriminant', "
                "'private-whitening'), which a plain client does not give; use init = "
                "'secure-kmeans' or 'spectral'"
            )
        elif needs.get("embedding") and self.embedding is None:
            problem = (
                "the strategy finds clusters by an embedding of the clients' data. Give one "
                "(ClientApp(embedding=...)), or start at random (embedding_size = 0)"
            )
        elif needs.get("loss") and self.loss is None and not self.evaluates():
            problem = (
                "clients choose their cluster by loss. Register an @app.evaluate() function that "
                "returns a loss, or give one: ClientApp(loss=...)"
            )
        return Message(wire.hosted_content(clients, nodes, problem), reply_to=message)

    def _take_part(
        self,
        call: plain_client.Caller,
        request: wire.RoundRequest,
        clients: list[int],
        models: list[wire.Model],
        prototypes: NDArray[np.float64] | None,
    ) -> Message:
        """The reply to a round: a protected vector, of zeros if this client cannot take part."""
        if request.phase == "sketch" or request.assignment == "oracle":
            raise ValueError(f"{request.phase}, {request.assignment}: not offered by ClientMod")
        cluster, update = 0, np.full(request.width, np.nan)
        try:
            if request.phase == "train":
                cluster = self._choose(call, request, models, prototypes)
                cluster = int(moved(request, clients, np.array([cluster]), None)[0])
                update = self._update(call, request, models[cluster])
            else:
                size = embedding_size(request.phase, request.width, prototypes)
                embedding = self._embed(call.context, size)
                (update,), (cluster,) = client_answers(request.phase, embedding[None], prototypes)
        except (Exception, SystemExit) as error:
            if not request.private:
                raise
            # The text of an error is data: it stays in this client's log.
            log(ERROR, "this client contributes zeros: %s: %s", type(error).__name__, error)
        else:
            if not np.isfinite(update).all():
                log(ERROR, "this client contributes zeros: its update is not finite")
        total, usable = request.layout.encode(update[None], np.array([cluster]))
        content = wire.contribution(total + local_noise(request, clients, None))
        if not request.private:
            content = wire.naming(content, [] if usable.all() else clients)
        return Message(content, reply_to=call.message)

    def _choose(
        self,
        call: plain_client.Caller,
        request: wire.RoundRequest,
        models: list[wire.Model],
        prototypes: NDArray[np.float64] | None,
    ) -> int:
        if len(models) == 1:
            return 0
        distances = None
        if prototypes is not None:
            embedding = self._embed(call.context, prototypes.shape[1])
            distances = squared_distances(embedding[None], prototypes)
        losses = np.array([[self._loss(call, model) for model in models]])
        return int(lowest_loss(losses, distances, self.prototype_weight)[0])

    def _loss(self, call: plain_client.Caller, model: wire.Model) -> float:
        if self.loss is None:
            return call.loss(model)
        record = ArrayRecord({name: Array(values) for name, values in model.items()})
        return float(self.loss(record, call.context))

    def _update(
        self, call: plain_client.Caller, request: wire.RoundRequest, model: wire.Model
    ) -> NDArray[np.float64]:
        trained, steps = call.train(model)
        update: NDArray[np.float64] = wire.flatten([trained])[0] - wire.flatten([model])[0]
        if not request.normalise:
            return update
        if steps is None:
            raise ValueError("FedNova needs the metric num-steps of the train function")
        return update / accumulated_steps(steps, request.local_momentum)

    def _embed(self, context: Context, size: int) -> NDArray[np.float64]:
        if self.embedding is None:
            raise ValueError("no embedding was given")
        vector = np.asarray(self.embedding(context), dtype=np.float64)
        if vector.shape != (size,):
            raise ValueError(f"embedding of shape {vector.shape}: must be ({size},)")
        if not np.isfinite(vector).all():
            raise ValueError("the embedding is not finite")
        return vector / max(1.0, float(np.linalg.norm(vector)))
