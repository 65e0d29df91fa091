"""Peak memory of a server that sums one round of 10,000 one-client nodes.

Eight clusters of rank-1 adapters on every linear layer of a ViT-Small and its head: 45,322 numbers
each, 2.9 MB a reply, 29 GB in all. Replies are made when they are pulled, as they arrive from a
network; the strategy streams them into the secure sum.

    python benchmarks/server_memory.py [--clients 10000]
"""

import argparse
import logging
import resource
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from strategies import ClusteredStrategy, wire
from strategies.aggregation import Aggregation
from strategies.privacy.ledger import Ledger
from strategies.privacy.plan import plan_privacy

CLUSTERS = 8
WIDTH = 12 * (4 * 384 + 1536 + 384) + 10 * 385


class ArrivingGrid(Grid):
    """One client a node; a reply exists only from when it is pulled."""

    def __init__(self, clients: int, reply: np.ndarray) -> None:
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.clients = clients
        self.reply = reply
        self.waiting: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Node k + 1 hosts client k."""
        return range(1, self.clients + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep them."""
        for message in messages:
            name = str(len(self.waiting))
            message.metadata.__dict__["_message_id"] = name
            self.waiting[name] = message
        return list(self.waiting)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Answer them one by one, each with an array of its own."""
        for name in message_ids:
            message = self.waiting.pop(name)
            node = message.metadata.dst_node_id
            if message.metadata.message_type.startswith("query"):
                content = wire.hosted_content([node - 1], 0)
            else:
                content = wire.contribution(self.reply.copy())
            reply = Message(content=content, reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = node
            yield reply

    def send_and_receive(self, messages: Iterable[Message], **_: Any) -> Iterable[Message]:
        """For the roster's query."""
        return self.pull_messages(self.push_messages(messages))

    def set_run(self, run: Any) -> None:
        """Not needed."""

    @property
    def run(self) -> Any:
        """Not needed."""
        return None

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Not needed."""
        raise NotImplementedError


def main() -> None:
    """One round; print seconds and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    clients = parser.parse_args().clients
    logging.getLogger("flwr").setLevel(logging.WARNING)
    plan = plan_privacy(clients=clients, sampling=1.0, rounds=1, epsilon=2.0)
    strategy = ClusteredStrategy(
        name="memory",
        clients=clients,
        clusters=CLUSTERS,
        plan=plan,
        aggregation=Aggregation(threshold=1.0),
        ledger=Ledger(None, "memory", plan.delta, plan.budget),
        assignment="loss",
    )
    models = [{"adapters": np.zeros(WIDTH, dtype=np.float32)} for _ in range(CLUSTERS)]
    size = strategy.aggregation.layout(CLUSTERS, WIDTH).size
    grid = ArrivingGrid(clients, np.ones(size, dtype=np.int64))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    strategy.start(grid, wire.pack_models(models), num_rounds=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{clients} replies of {8 * size / 1e6:.1f} MB: {time.monotonic() - started:.1f} s, peak "
        f"{peak / 2**20:.2f} GiB, {(peak - before) / 2**20:.2f} GiB more than before the round"
    )


if __name__ == "__main__":
    main()
