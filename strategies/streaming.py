"""A Grid that hands replies on as they arrive, so that no copy of all of them is ever held.

Flower's own ``send_and_receive`` collects every reply before the strategy sees the first; with
10,000 clients and a megabyte each that is 10 GB. A secure sum needs them one at a time.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

POLL_S = 0.1


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
        """Send now; yield each reply once, until all are there or the timeout has passed.

        A reply that comes after the timeout is not asked for again: it is never counted.
        """
        waiting = set(self._grid.push_messages(list(messages)))
        waiting.discard(None)  # a message that could not be sent
        return self._replies(waiting, timeout)

    def _replies(self, waiting: set[str], timeout: float | None) -> Iterator[Message]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                if reply.metadata.reply_to_message_id in waiting:  # a second copy is not
                    waiting.remove(reply.metadata.reply_to_message_id)
                    yield reply
            if waiting:
                if deadline is not None and time.monotonic() > deadline:
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
