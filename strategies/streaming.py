"""A Grid that hands replies on as they arrive, and says of every node why it did not answer.

Flower's own ``send_and_receive`` collects every reply before the strategy sees the first; with
10,000 clients and a megabyte each that is 10 GB. A secure sum needs them one at a time. It also
passes over silent nodes without a word, and the SuperLink's own error replies do not say which
node they are about.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

POLL_S = 0.1

_TIMEOUT = 1000  # no code of Flower's
_UNREACHED = 1001
_REASONS = {
    _TIMEOUT: "it did not answer in time",
    _UNREACHED: "the request could not be sent",
    ErrorCode.MESSAGE_UNAVAILABLE: "it did not answer in time",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "it did not answer in time",
    ErrorCode.NODE_UNAVAILABLE: "it is offline",
    ErrorCode.INVALID_FAB: "it does not trust the app's bundle",
}


def reason_of(reply: Message) -> str:
    """Why a node did not answer, without the text of the error: that may quote data."""
    return _REASONS.get(reply.error.code, "it failed")


class StreamingGrid(Grid):
    """Wraps a grid; ``send_and_receive`` returns an iterator over the replies.

    Parameters
    ----------
    grid : Grid
        Whatever Flower passes to the ServerApp.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send now; yield one reply for each message, at the latest when the timeout has passed.

        A node that has not answered by then, or never got the message, yields an error. A reply
        that comes later is not asked for again: it is never counted. Nor is a message delivered
        later: a node that comes back does not work on a round that is over.
        """
        sent = list(messages)
        if timeout is not None:
            for message in sent:
                message.metadata.ttl = min(message.metadata.ttl, timeout)
        # Flower answers with an empty list where it could send nothing at all.
        ids: list[str | None] = [*self._grid.push_messages(sent)] or [None] * len(sent)
        waiting = {i: message for i, message in zip(ids, sent, strict=True) if i is not None}
        unsent = [message for i, message in zip(ids, sent, strict=True) if i is None]
        return self._replies(waiting, unsent, timeout)

    def _replies(
        self, waiting: dict[str, Message], unsent: list[Message], timeout: float | None
    ) -> Iterator[Message]:
        deadline = None if timeout is None else time.monotonic() + timeout
        for message in unsent:
            yield _failure(message, _UNREACHED)
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                answered = reply.metadata.reply_to_message_id
                if answered not in waiting:  # a second copy
                    continue
                message = waiting.pop(answered)
                if reply.has_error():  # made by the SuperLink, it comes from node 1
                    reply = _failure(message, reply.error.code, reply.error.reason)
                yield reply
            if waiting:
                if deadline is not None and time.monotonic() > deadline:
                    for message in waiting.values():
                        yield _failure(message, _TIMEOUT)
                    return
                time.sleep(POLL_S)

    def set_run(self, run: Any) -> None:
        """Pass on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Pass on."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Pass on; deprecated in Flower."""
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Pass on."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass on."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pass on."""
        return self._grid.pull_messages(message_ids)


def _failure(message: Message, code: int, text: str | None = None) -> Message:
    """An error reply that comes from the node that was asked."""
    reply = Message(Error(code=code, reason=text or _REASONS.get(code)), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return reply
