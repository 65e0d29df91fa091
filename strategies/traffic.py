"""How many bytes travel between the server and the nodes in a round.

Counted are the arrays of requests and replies as Flower serialises them, by its own
``ArrayRecord.count_bytes``: the values, NumPy's header (128 bytes as a rule) and the name of each.
Not counted are the settings in a request (the clients that it names among them, a secret of a
private run), the frame that gRPC and TLS put around a message, and the public arrays that a node
gets once.

A private run keeps the size of its cohort to itself, and a total over the round would tell it; so
would a size that is measured, by its absence when nobody was asked. There the sizes of one request
and of one reply are all that is told, and both follow from what the server asks.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict

from strategies import wire

PER_NODE = ("bytes_down_per_node", "bytes_up_per_node")
TOTALS = ("bytes_down", "bytes_up")


@dataclasses.dataclass
class Traffic:
    """Bytes of one round.

    Attributes
    ----------
    down_per_node, up_per_node : int
        One request to a node, and one reply from it.
    down, up : int or None
        All requests that were handed to Flower, and all replies that came back; None in a private
        run.
    """

    down_per_node: int = 0
    up_per_node: int = 0
    down: int | None = None
    up: int | None = None

    def counted(self, reply: Message) -> Message:
        """Add a reply to the total, if there is one, and pass it on."""
        if self.up is not None and reply.has_content():
            self.up += array_bytes(reply.content)
        return reply

    def line(self) -> dict[str, int]:
        """The fields of the round in the run record."""
        values = (self.down_per_node, self.up_per_node, self.down, self.up)
        fields = zip((*PER_NODE, *TOTALS), values, strict=True)
        return {key: value for key, value in fields if value is not None}


def measured(messages: Sequence[Message]) -> Traffic:
    """Traffic of a round without privacy that starts with these requests."""
    sizes = [array_bytes(message.content) for message in messages]
    return Traffic(down_per_node=max(sizes, default=0), down=sum(sizes), up=0)


def array_bytes(content: RecordDict) -> int:
    """Bytes of all arrays in a message."""
    return sum(record.count_bytes() for record in content.array_records.values())


def reply_bytes(request: wire.RoundRequest) -> int:
    """Bytes of a client's reply to a clustered strategy, which the request alone determines.

    A node with several clients adds up their vectors, which takes no more; of sketches, which are
    sent one by one, this is one.
    """
    if request.phase == "sketch":
        return array_bytes(wire.sketch_reply(np.zeros((1, request.width))))
    return _vector_bytes(request.layout.size)


@lru_cache(maxsize=4)
def _vector_bytes(size: int) -> int:
    """Serialised once for each of a run's layouts; a round goes without the copy."""
    return array_bytes(wire.contribution(np.zeros(size, dtype=np.int64)))


def of_run(lines: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """The fields of a method's summary, from its lines of the run record.

    Requests and replies of a training round, the largest if some rounds had none; totals over all
    rounds. None where the record does not say.
    """
    training = [line for line in lines if line.get("phase") == "train"]
    told = {key: [li[key] for li in training if li.get(key) is not None] for key in PER_NODE}
    fields = {key: max(values, default=None) for key, values in told.items()}
    for key in TOTALS:
        values = [line.get(key) for line in lines]
        known = [value for value in values if value is not None]
        fields[key] = sum(known) if known and len(known) == len(values) else None
    return fields
