"""A Grid whose nodes are function calls: tests and quick experiments without Ray.

Real apps run unchanged on it, one message after another; a message costs microseconds instead of
the 20 ms of Flower's engine.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Handler = Callable[[Message, Context], Message]


class InProcessGrid(Grid):
    """Runs a ClientApp on ``nodes`` simulated nodes with random ids.

    Parameters
    ----------
    client_app : callable
        A ClientApp, or any function from message and context to a reply.
    nodes : int
    run_config : mapping
        Run config of every context.
    shuffle : numpy Generator, optional
        Replies come in a random order.
    fail : callable, optional
        ``fail(message)`` true makes the node answer with an error.
    """

    def __init__(
        self,
        client_app: Handler,
        nodes: int,
        run_config: Mapping[str, bool | int | float | str] | None = None,
        shuffle: np.random.Generator | None = None,
        fail: Callable[[Message], bool] = lambda message: False,
    ) -> None:
        # A Message can only be created by a task of a run.
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.client_app = client_app
        self.shuffle = shuffle
        self.fail = fail
        self._pending: dict[str, Message] = {}
        self.replies: list[Message] = []
        self.asked: list[Message] = []
        ids = np.random.default_rng(shuffle).choice(10**9, nodes, replace=False) + 1
        self.contexts = {
            int(node): Context(
                run_id=1,
                node_id=int(node),
                node_config={"partition-id": index, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for index, node in enumerate(ids)
        }

    def set_run(self, run: Any) -> None:
        """Not needed."""

    @property
    def run(self) -> Any:
        """Not needed."""
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Deprecated in Flower."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """All nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep the messages; they are answered when they are pulled."""
        ids = []
        for message in messages:
            self.asked.append(message)
            message.metadata.__dict__["_message_id"] = str(len(self.asked))
            self._pending[str(len(self.asked))] = message
            ids.append(str(len(self.asked)))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Answer the messages, one after another."""
        pending = [self._pending.pop(i) for i in message_ids if i in self._pending]
        pending.sort(key=lambda message: int(message.metadata.message_id))
        if self.shuffle is not None:
            self.shuffle.shuffle(pending)
        for message in pending:
            reply = self._answer(message)
            self.replies.append(reply)
            yield reply

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Answer every message at once."""
        return list(self.pull_messages(self.push_messages(messages)))

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if self.fail(message):
            reply = Message(Error(code=0, reason="failed on purpose"), reply_to=message)
        else:
            reply = self.client_app(copy.deepcopy(message), self.contexts[node])
        reply.metadata.__dict__["_src_node_id"] = node
        return reply
