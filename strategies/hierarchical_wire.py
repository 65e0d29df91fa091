"""What travels between server and nodes in hierarchical federated averaging.

The records are those of Flower's own FedAvg (``arrays``, ``config``; ``arrays``, ``metrics``), so
that a client written for it works unchanged. A node that hosts several devices gets one message
for each cluster, answers with the weighted mean of its devices' models and their number of samples,
and names the devices that took part.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from strategies.streaming import reason_of

ARRAYS, CONFIG, METRICS, SAMPLES = "arrays", "config", "metrics", "num-examples"
_DEVICES, _IDS, _GRADIENT = "devices", "ids", "gradient"
GRADIENT, TRAIN = "gradient", "train"


@dataclasses.dataclass(frozen=True)
class DeviceRequest:
    """What a node is asked to do with some of its devices.

    Attributes
    ----------
    phase : str
        "gradient" (the clustering phase: one full gradient at the model sent) or "train".
    devices : sequence of int
        The node's devices that are asked, all of one cluster.
    iteration : int
        Local iterations before this round; mini-batches depend on it, not on the round.
    local_steps : int
        tau1, the number of local steps.
    sketch_dimension, sketch_seed : int
        Size and public seed of the projection of a gradient; size 0 asks for all of it.
    """

    phase: str
    devices: Sequence[int]
    iteration: int = 0
    local_steps: int = 1
    sketch_dimension: int = 0
    sketch_seed: int = 0


def request_content(
    request: DeviceRequest,
    arrays: ArrayRecord,
    config: ConfigRecord,
    *,
    arrays_key: str = ARRAYS,
    config_key: str = CONFIG,
) -> RecordDict:
    """Content of a message; ``config`` is the user's own and is kept."""
    values = {key.replace("_", "-"): v for key, v in dataclasses.asdict(request).items()}
    values["devices"] = [int(device) for device in request.devices]
    return RecordDict({arrays_key: arrays, config_key: ConfigRecord({**config, **values})})


def read_request(content: RecordDict) -> tuple[DeviceRequest, ArrayRecord]:
    """Inverse of ``request_content``."""
    config = content.config_records[CONFIG]
    names = [field.name for field in dataclasses.fields(DeviceRequest)]
    values = {name: config[name.replace("_", "-")] for name in names}
    return DeviceRequest(**values), content.array_records[ARRAYS]  # type: ignore[arg-type]


def reply_content(arrays: ArrayRecord, samples: int, devices: Sequence[int]) -> RecordDict:
    """A node's reply: mean model (weighted by samples), samples, and the devices in it."""
    return RecordDict(
        {
            ARRAYS: arrays,
            METRICS: MetricRecord({SAMPLES: samples}),
            _DEVICES: ConfigRecord({_IDS: [int(device) for device in devices]}),
        }
    )


def gradient_arrays(gradient: NDArray[np.floating]) -> ArrayRecord:
    """The arrays of a reply that holds a gradient, whole or projected, instead of a model."""
    return ArrayRecord({_GRADIENT: Array(np.asarray(gradient, dtype=np.float32).ravel())})


def replied_devices(message: Message) -> list[int] | None:
    """The devices in a reply, or None if it does not say (a plain Flower client)."""
    record = message.content.config_records.get(_DEVICES)
    return None if record is None else [int(i) for i in record[_IDS]]  # type: ignore[union-attr]


def gradient_in(reply: ArrayRecord, sent: ArrayRecord) -> NDArray[np.float32]:
    """The gradient in a reply; of a plain Flower client, model sent - model back."""
    if _GRADIENT in reply:
        return np.asarray(reply[_GRADIENT].numpy(), dtype=np.float32)
    rows = [(sent[name].numpy() - reply[name].numpy()).ravel() for name in sent]
    return np.concatenate(rows).astype(np.float32)


def usable_replies(
    replies: Iterable[Message],
    asked: Mapping[int, Sequence[Sequence[int]]],
    like: ArrayRecord,
    samples_key: str,
) -> tuple[list[tuple[list[int], RecordDict]], list[str]]:
    """Devices and content of every reply that can be averaged, in the order of devices.

    ``asked``: the groups of devices that each node was asked for; ``like``: the model sent. The
    second value says which nodes are left out, and why.
    """
    usable: list[tuple[list[int], RecordDict]] = []
    faults = []
    for reply in replies:
        node = reply.metadata.src_node_id
        if reply.has_error():
            faults.append(f"node {node} is left out: {reason_of(reply)}")
            continue
        groups = asked.get(node, [])
        devices = replied_devices(reply)
        if devices is None and len(groups) == 1:
            devices = list(groups[0])  # a plain Flower client: all that it was asked for
        fault = _fault(reply.content, like, samples_key)
        if not devices or not any(set(devices) <= set(group) for group in groups):
            fault = fault or "it does not say which of the devices asked are in it"
        if fault:
            faults.append(f"node {node} is left out: {fault}")
        else:
            usable.append((list(devices or ()), reply.content))
    return sorted(usable, key=lambda item: item[0]), faults


def _fault(content: RecordDict, like: ArrayRecord, samples_key: str) -> str:
    """Why a reply cannot be averaged with the others, or "" if it can."""
    arrays, metrics = list(content.array_records.values()), list(content.metric_records.values())
    if len(arrays) != 1 or len(metrics) != 1:
        return "it does not hold one ArrayRecord and one MetricRecord"
    if set(arrays[0]) != set(like) and set(arrays[0]) != {_GRADIENT}:
        return "its arrays have other names than the model's"
    samples = metrics[0].get(samples_key)
    if not isinstance(samples, int | float) or not 0 < samples < float("inf"):
        return f"its {samples_key} = {samples!r} is not a positive number"
    if not all(np.isfinite(values.numpy()).all() for values in arrays[0].values()):
        return "its arrays hold NaN or infinity"
    if any(name in like and like[name].shape != v.shape for name, v in arrays[0].items()):
        return "its arrays have other shapes than the model's"
    return ""
