"""Replies stream: none is held longer than it takes to use it, none is used twice."""

import gc
import weakref
from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from app_kit.in_process_grid import InProcessGrid
from strategies import wire
from strategies.privacy.secure_sum import TrustedSum
from strategies.streaming import StreamingGrid, reason_of


def echo(message: Message, context: object) -> Message:
    """A reply of 100,000 integers."""
    return Message(content=wire.contribution(np.ones(100_000, dtype=np.int64)), reply_to=message)


def requests(grid: InProcessGrid, count: int) -> list[Message]:
    """Messages to the nodes in turn."""
    nodes = list(grid.get_node_ids())
    return [
        Message(content=RecordDict(), dst_node_id=nodes[i % len(nodes)], message_type="train")
        for i in range(count)
    ]


def test_at_most_two_replies_are_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 replies of 0.8 MB pass through a secure sum; at no time are more than two held."""
    grid = InProcessGrid(echo, 5)
    monkeypatch.setattr(grid, "replies", _Forgetful())
    alive: list[weakref.ref[np.ndarray]] = []
    most = 0
    secure_sum = TrustedSum(100_000, None)
    for reply in StreamingGrid(grid).send_and_receive(requests(grid, 50), timeout=60):
        vector = wire.read_contribution(reply)
        secure_sum.add(vector)
        alive.append(weakref.ref(vector))
        del vector, reply
        gc.collect()
        most = max(most, sum(ref() is not None for ref in alive))
    assert len(alive) == 50
    assert most <= 2


class _Forgetful(list[Message]):
    """The test grid keeps its replies; this one does not."""

    def append(self, message: Message) -> None:
        """Forget it."""


def test_a_late_reply_is_neither_waited_for_nor_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the timeout the stream ends; what arrives then is never asked for again."""
    monkeypatch.setattr("strategies.streaming.POLL_S", 0.01)
    grid = InProcessGrid(echo, 3)
    pull = grid.pull_messages
    asked: list[set[str]] = []

    def two_answer(message_ids: Iterable[str]) -> Iterable[Message]:
        asked.append(set(message_ids))
        return pull([i for i in message_ids if i != "3"])

    monkeypatch.setattr(grid, "pull_messages", two_answer)
    stream = StreamingGrid(grid)
    sent = requests(grid, 3)
    replies = list(stream.send_and_receive(sent, timeout=0.1))
    assert [reply.has_error() for reply in replies] == [False, False, True]
    assert replies[2].metadata.src_node_id == sent[2].metadata.dst_node_id
    assert reason_of(replies[2]) == replies[2].error.reason == "it did not answer in time"
    assert all(message.metadata.ttl == 0.1 for message in sent)  # nor delivered later
    assert asked[-1] == {"3"}
    asked.clear()
    assert len(list(stream.send_and_receive(requests(grid, 2), timeout=5))) == 2
    assert "3" not in set().union(*asked)


def test_nothing_is_sent_for_an_empty_round() -> None:
    grid = InProcessGrid(echo, 2)
    assert list(StreamingGrid(grid).send_and_receive([], timeout=5)) == []
    assert grid.asked == []


def test_errors_name_the_node_and_a_reason_that_quotes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The SuperLink answers for an offline node in its own name; a failure may quote data."""
    grid = InProcessGrid(echo, 3)
    sent = requests(grid, 3)
    codes = dict(zip(grid.get_node_ids(), (ErrorCode.NODE_UNAVAILABLE, 2, 999), strict=True))
    pull = grid.pull_messages

    def failed(message_ids: Iterable[str]) -> Iterable[Message]:
        for reply in pull(message_ids):
            code = codes[reply.metadata.src_node_id]
            error = Message(Error(code, "label 7 of Ann"), reply_to=sent[len(seen)])
            seen.append(error)
            error.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
            error.metadata.__dict__["_src_node_id"] = 1
            yield error

    seen: list[Message] = []
    monkeypatch.setattr(grid, "pull_messages", failed)
    replies = list(StreamingGrid(grid).send_and_receive(sent, timeout=60))
    assert {r.metadata.src_node_id: reason_of(r) for r in replies} == dict(
        zip(codes, ("it is offline", "it failed", "it failed"), strict=True)
    )
    assert all("Ann" in reply.error.reason for reply in replies)  # for runs without privacy


def test_what_could_not_be_sent_is_a_failure_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower returns None for a message that was refused, and nothing if all are too large."""
    grid = InProcessGrid(echo, 2)
    push = grid.push_messages
    monkeypatch.setattr(grid, "push_messages", lambda sent: [None, *push(sent[1:])])
    replies = list(StreamingGrid(grid).send_and_receive(requests(grid, 2), timeout=60))
    assert [reply.has_error() for reply in replies] == [True, False]
    assert reason_of(replies[0]) == "the request could not be sent"
    monkeypatch.setattr(grid, "push_messages", lambda sent: [])
    replies = list(StreamingGrid(grid).send_and_receive(requests(grid, 2), timeout=60))
    assert [reply.has_error() for reply in replies] == [True, True]
