"""Names and shapes of everything that travels between server and clients.

Server to node: ``models`` (all cluster models, keys ``cluster-0/NAME``) or ``prototypes``,
``round`` (what to do, and for which of the node's clients) and ``config`` (the user's own
``train_config``). Node to server: ``contribution`` with the protected vector, alone. Only in a run
without privacy, ``unusable`` may name clients. A node that was restarted and has lost the public
arrays says so instead, which tells nothing of its data.

Arrays keep their dtype and order. Integer arrays (a BatchNorm's counter of batches) are no part of
an update: they stay as they were.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from strategies.release import CONTRAST, Coded, Layout, Slots

Model = dict[str, NDArray[Any]]
"""Arrays of one cluster model by name."""

QUERY_CLIENTS = "clients"
"""Query action: which clients does this node host?"""

PROXIMAL_MU = "proximal-mu"
"""FedProx's mu in the user's configuration, under the name that Flower's own FedProx gives it."""

_MODELS, _PUBLIC, _ROUND, _CONTRIBUTION = "models", "public", "round", "contribution"
_SUM, _SKETCHES, _PROTOTYPES, _UNUSABLE, _CLIENTS, _LOST = (
    "sum",
    "sketches",
    "prototypes",
    "unusable",
    "clients",
    "lost",
)
_CONFIG, _NEEDS, _FRAME = "config", "needs", "frame"


@dataclasses.dataclass(frozen=True)
class RoundRequest:
    """What a node is asked to do in one round.

    Attributes
    ----------
    method : str
        Name of the strategy.
    phase : str
        One of ``strategies.clustering.initialisation``, "sketch" or "train".
    round : int
        Number within the phase's stage, from 1; random streams of clients use it.
    assignment : str
        How clients choose their cluster in training: "single", "loss" (``strategies.assignment``,
        with prototypes if there are any) or "oracle".
    clusters : int
        Slots of the layout (prototypes in the initialisation).
    width, threshold, kappa : int, float, float
        Layout of the release, see ``strategies.release``.
    noise_multiplier : float
        Noise that a client adds itself, in sensitivities: to its sketch, or to its update if the
        strategy has ``local_noise``.
    private : bool
        Whether the reply may carry anything but the protected vector.
    normalise, local_momentum : bool, float
        Whether a client divides its update by its local steps, see ``strategies.fednova``.
    leave, join : lists of C float, or None
        Probabilities of moving to another cluster, see ``strategies.rr_cluster``.
    release : {"slots", "coded"}
        Which layout of ``strategies.release``; "coded" has no kappa.
    contrast : float
        a of "coded".
    """

    method: str
    phase: str
    round: int
    assignment: str
    clusters: int
    width: int
    threshold: float
    kappa: float
    noise_multiplier: float
    private: bool
    normalise: bool = False
    local_momentum: float = 0.0
    leave: list[float] | None = None
    join: list[float] | None = None
    release: str = "slots"
    contrast: float = CONTRAST

    @property
    def layout(self) -> Layout:
        """Layout of the round's release."""
        if self.release == "coded":
            return Coded(self.clusters, self.width, self.threshold, self.contrast)
        return Slots(self.clusters, self.width, self.threshold, self.kappa)


def models_as_state(
    models: Sequence[Mapping[str, NDArray[Any]]],
) -> dict[str, NDArray[Any]]:
    """All cluster models in one mapping with keys ``cluster-0/NAME``."""
    return {
        f"cluster-{index}/{name}": np.asarray(values)
        for index, model in enumerate(models)
        for name, values in model.items()
    }


def models_in(state: Mapping[str, NDArray[Any]]) -> list[Model]:
    """Inverse of ``models_as_state``; other keys are passed over."""
    models: dict[int, Model] = {}
    for key, values in state.items():
        prefix, _, name = key.partition("/")
        if prefix.startswith("cluster-") and name:
            models.setdefault(int(prefix.removeprefix("cluster-")), {})[name] = values
    return [models[index] for index in sorted(models)]


def pack_models(models: Sequence[Mapping[str, NDArray[Any]]]) -> ArrayRecord:
    """All cluster models as one ArrayRecord."""
    return ArrayRecord({key: Array(values) for key, values in models_as_state(models).items()})


def unpack_models(record: ArrayRecord) -> list[Model]:
    """Inverse of ``pack_models``.

    Raises
    ------
    ValueError
        If a key has no ``cluster-N/`` prefix or the clusters' arrays differ in name or shape.
    """
    models = models_in({key: array.numpy() for key, array in record.items()})
    if sum(len(model) for model in models) != len(record):
        raise ValueError(f"arrays {list(record)}: names must be cluster-N/NAME; use pack_models()")
    shapes = [{name: values.shape for name, values in sorted(model.items())} for model in models]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError("the cluster models differ in the names or shapes of their arrays")
    return models


def is_plain(record: ArrayRecord) -> bool:
    """Whether arrays have names of their own, none of them ``cluster-N/NAME``."""
    return not models_in({key: np.empty(0) for key in record})


def trainable(model: Mapping[str, NDArray[Any]]) -> list[str]:
    """Sorted names of the arrays of real numbers; only they are trained and sent back."""
    return sorted(name for name, a in model.items() if np.issubdtype(a.dtype, np.floating))


def width(model: Mapping[str, NDArray[Any]]) -> int:
    """D, how many trainable numbers a model has."""
    return sum(model[name].size for name in trainable(model))


def flatten(models: Sequence[Mapping[str, NDArray[Any]]]) -> NDArray[np.float64]:
    """Models as rows (C, D), trainable arrays in the order of their names."""
    return np.stack(
        [
            np.concatenate([np.asarray(m[name], np.float64).ravel() for name in trainable(m)])
            for m in models
        ]
    )


def unflatten(rows: NDArray[np.floating], like: Mapping[str, NDArray[Any]]) -> list[Model]:
    """Inverse of ``flatten`` with the names, shapes, dtypes and order of ``like``."""
    names = trainable(like)
    cuts = np.cumsum([like[name].size for name in names])[:-1]
    models = []
    for row in rows:
        parts = dict(zip(names, np.split(row, cuts), strict=True))
        models.append(
            {
                name: parts[name].reshape(a.shape).astype(a.dtype) if name in parts else a.copy()
                for name, a in like.items()
            }
        )
    return models


def round_content(
    request: RoundRequest,
    clients: Sequence[int],
    models: ArrayRecord | None = None,
    prototypes: NDArray[np.float64] | None = None,
    config: ConfigRecord | None = None,
    frame: Mapping[str, NDArray[Any]] | None = None,
) -> RecordDict:
    """Content of the server's message to one node; ``config`` is the user's own."""
    told = {key: v for key, v in dataclasses.asdict(request).items() if v is not None}
    content = RecordDict({_ROUND: ConfigRecord({**told, _CLIENTS: list(clients)})})
    if config is not None:
        content[_CONFIG] = config
    if models is not None:
        content[_MODELS] = models
    if prototypes is not None:
        content[_PROTOTYPES] = ArrayRecord({_PROTOTYPES: Array(prototypes)})
    if frame is not None:
        content[_FRAME] = ArrayRecord({name: Array(values) for name, values in frame.items()})
    return content


def read_frame(content: RecordDict) -> dict[str, NDArray[Any]] | None:
    """Arrays of ``strategies.clustering.frame.Frame`` in a message, if there are any."""
    record = content.array_records.get(_FRAME)
    return None if record is None else {name: array.numpy() for name, array in record.items()}


def read_round(
    content: RecordDict,
) -> tuple[RoundRequest, list[int], list[Model], NDArray[np.float64] | None]:
    """Request, the clients asked, the cluster models, and the prototypes of a message."""
    config = dict(content.config_records[_ROUND])
    clients = [int(client) for client in config.pop(_CLIENTS)]  # type: ignore[union-attr]
    record = content.array_records.get(_MODELS)
    prototypes = content.array_records.get(_PROTOTYPES)
    return (
        RoundRequest(**config),  # type: ignore[arg-type]
        clients,
        [] if record is None else unpack_models(record),
        None if prototypes is None else prototypes[_PROTOTYPES].numpy(),
    )


def is_round(content: RecordDict) -> bool:
    """Whether a message is a round of these strategies, not one of Flower's own."""
    return _ROUND in content.config_records


def read_config(content: RecordDict) -> ConfigRecord:
    """The user's own configuration in a message."""
    return content.config_records.get(_CONFIG, ConfigRecord())


def contribution(total: NDArray[np.int64]) -> RecordDict:
    """A node's reply: the protected vector, alone."""
    return RecordDict({_CONTRIBUTION: ArrayRecord({_SUM: Array(total)})})


def naming(content: RecordDict, unusable: Sequence[int]) -> RecordDict:
    """A reply that names the clients without a usable update; never in a private run."""
    if unusable:
        content[_UNUSABLE] = ConfigRecord({_CLIENTS: list(unusable)})
    return content


def sketch_reply(sketches: NDArray[np.float64]) -> RecordDict:
    """A node's reply in the printed initialisation: one noised sketch a client, (n, h)."""
    return RecordDict({_CONTRIBUTION: ArrayRecord({_SKETCHES: Array(sketches)})})


def read_contribution(message: Message) -> NDArray[np.int64]:
    """The vector of a reply; raises ValueError if the reply has another form."""
    try:
        return message.content.array_records[_CONTRIBUTION][_SUM].numpy()
    except KeyError as error:
        raise ValueError(f"the reply of node {message.metadata.src_node_id} has no sum") from error


def read_sketches(message: Message, width: int) -> NDArray[np.float64]:
    """The finite sketches (n, width) of a reply; ValueError if the reply has another form."""
    node = message.metadata.src_node_id
    try:
        sketches = message.content.array_records[_CONTRIBUTION][_SKETCHES].numpy()
    except KeyError as error:
        raise ValueError(f"the reply of node {node} has no sketches") from error
    if sketches.ndim != 2 or sketches.shape[1] != width:
        raise ValueError(f"node {node} sent sketches of shape {sketches.shape}: need (n, {width})")
    return sketches[np.isfinite(sketches).all(axis=1)]


def read_unusable(message: Message) -> list[int]:
    """Clients that a node names as unusable (never in a private run)."""
    record = message.content.config_records.get(_UNUSABLE)
    return [] if record is None else list(record[_CLIENTS])  # type: ignore[arg-type]


def needs_content(
    *, loss: bool = False, embedding: bool = False, images: bool = False
) -> ConfigRecord:
    """What a client's code must be able to tell, for the query; see ``read_needs``."""
    return ConfigRecord({"loss": loss, "embedding": embedding, "images": images})


def add_needs(query: RecordDict, needs: ConfigRecord) -> RecordDict:
    """A query for clients that also says what their code must be able to tell."""
    return RecordDict({**query, _NEEDS: needs})


def read_needs(content: RecordDict) -> dict[str, bool]:
    """What a query asks of the client's code: "loss", "embedding", "images"."""
    return {key: bool(v) for key, v in content.config_records.get(_NEEDS, ConfigRecord()).items()}


def hosted_content(clients: Sequence[int], nodes: int, problem: str = "") -> RecordDict:
    """A node's answer to QUERY_CLIENTS.

    Parameters
    ----------
    clients : sequence of int
        The clients that live here.
    nodes : int
        How many nodes a simulation has; 0 on a device.
    problem : str
        Why this node's code (never its data) cannot take part in the run.
    """
    record = ConfigRecord({_CLIENTS: list(clients), "nodes": nodes})
    if problem:
        record["problem"] = problem
    return RecordDict({_CLIENTS: record})


def read_hosted(message: Message) -> tuple[list[int], int]:
    """Clients and number of nodes of ``hosted_content``."""
    record = message.content.config_records[_CLIENTS]
    return list(record[_CLIENTS]), int(record["nodes"])  # type: ignore[arg-type]


def read_problem(message: Message) -> str:
    """Why a node cannot take part; empty if it can."""
    return str(message.content.config_records[_CLIENTS].get("problem", ""))


def public_content(arrays: Mapping[str, NDArray[np.floating]]) -> RecordDict:
    """Public arrays that every node gets once, with the query for its clients."""
    return RecordDict(
        {_PUBLIC: ArrayRecord({name: Array(values) for name, values in arrays.items()})}
    )


def read_public(content: RecordDict) -> dict[str, NDArray[np.float32]]:
    """Inverse of ``public_content``."""
    return {name: array.numpy() for name, array in content.array_records[_PUBLIC].items()}


def has_public(content: RecordDict) -> bool:
    """Whether a node's state holds the public arrays."""
    return _PUBLIC in content


def lost_state() -> RecordDict:
    """The reply of a node that has lost the public arrays: nothing but that."""
    return RecordDict({_LOST: ConfigRecord()})


def has_lost_state(message: Message) -> bool:
    """Whether a reply says that its node has lost the public arrays."""
    return message.has_content() and _LOST in message.content


def keep_public(state: RecordDict, content: RecordDict) -> None:
    """Store the public arrays of a query in a node's state, which outlives the message."""
    state[_PUBLIC] = content.array_records[_PUBLIC]
