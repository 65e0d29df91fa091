"""Which clients exist, on which node they live, and who takes part in a round.

A client is a person or device with data; a Flower node hosts one client (a device) or many
(a simulation). Node ids are random in every run and replies come in any order, so sampling goes
by client id over the configured, public population 0..K-1.
"""

import time
from collections.abc import Iterable, Mapping
from logging import INFO, WARNING

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from strategies import wire


def clients_of_partition(partition: int, clients_per_node: int, clients: int) -> list[int]:
    """Ids of the clients that simulated node number ``partition`` hosts."""
    first = partition * clients_per_node
    return list(range(min(first, clients), min(first + clients_per_node, clients)))


def hosted_clients(
    node_config: Mapping[str, object], *, simulation: bool, clients_per_node: int, clients: int
) -> tuple[list[int], int]:
    """The clients that this node hosts, and the number of nodes that a simulation has (else 0).

    A device hosts the client that ``client-id`` in its ``--node-config`` names. A device that takes
    part in a simulation (a rehearsal) plays the simulated node of that number.

    Raises
    ------
    ValueError
        If the node's configuration does not say which client it hosts.
    """
    number = node_config.get("partition-id") if simulation else None
    number = node_config.get("client-id") if number is None else number
    if not isinstance(number, int):
        raise ValueError(
            f"client-id = {number!r}: must be a number; start the SuperNode with "
            "--node-config 'client-id=K data=\"/path/of/its/data.npz\"'"
        )
    if not simulation:
        return [number], 0
    nodes = node_config.get("num-partitions", -(-clients // clients_per_node))
    return clients_of_partition(number, clients_per_node, clients), int(str(nodes))


def sample_clients(
    clients: int,
    sampling: float,
    rng: np.random.Generator,
    participations: NDArray[np.int64] | None = None,
    cap: int | None = None,
) -> NDArray[np.intp]:
    """Poisson sample: every client takes part independently with probability ``sampling``.

    Parameters
    ----------
    clients : int
        K.
    sampling : float
        q in (0, 1].
    rng : numpy Generator
        One uniform number is drawn for every client.
    participations, cap : (K,) array and int, optional
        Clients that took part ``cap`` times already are left out.

    Returns
    -------
    Sorted client ids; may be empty.
    """
    chosen = rng.random(clients) < sampling
    if participations is not None and cap is not None:
        chosen &= participations < cap
    return np.flatnonzero(chosen)


LATER_TIMEOUT_S = 30.0
"""A node that joins a running federation may not hold up its rounds for longer."""


class Roster:
    """Where every client lives; asks each node once, also those that join later.

    Parameters
    ----------
    clients : int
        K, the configured population.
    query : RecordDict
        Content of the query (public arrays for the node).
    wait_s : float
        How long to wait for missing simulated nodes.
    timeout_s : float
        How long to wait for a node's answer.
    """

    def __init__(
        self, clients: int, query: RecordDict, wait_s: float = 30.0, timeout_s: float = 600.0
    ) -> None:
        self.clients = clients
        self.query = query
        self.wait_s = wait_s
        self.timeout_s = timeout_s
        self._node_of: dict[int, int] = {}
        self._known: set[int] = set()
        self._simulated_nodes = 0
        self._started = False
        self._failed: set[int] = set()

    def update(self, grid: Grid) -> None:
        """Query new nodes and forget those that are gone; at first wait until all clients have one.

        A device that comes back as another node is found again; while it is away it is a drop-out.

        Raises
        ------
        RuntimeError
            On first use, if simulated nodes cannot host all clients, or no node appeared at all; or
            if the code of a node cannot take part in this run.
        """
        if self._started:
            present = set(grid.get_node_ids())
            gone = self._known - present
            self._known -= gone
            self._node_of = {k: node for k, node in self._node_of.items() if node not in gone}
            self._ask(grid, present - self._known, min(self.timeout_s, LATER_TIMEOUT_S))
            return
        deadline = time.monotonic() + self.wait_s
        self._ask(grid, set(grid.get_node_ids()), self.timeout_s)
        while not self._complete() and time.monotonic() < deadline:
            time.sleep(0.5)
            self._ask(grid, set(grid.get_node_ids()) - self._known, self.timeout_s)
        if not self._node_of and self._failed:
            raise RuntimeError(
                f"no node hosts a client: {len(self._failed)} nodes could not say which clients "
                "live there. Their app must be `from strategies.clientapp import ClientApp` "
                "instead of Flower's (it takes the same arguments, also a client_fn)"
            )
        if not self._node_of:
            raise RuntimeError("no node hosts a client: start SuperNodes with a client of this run")
        if self._simulated_nodes and len(self._node_of) < self.clients:
            raise RuntimeError(
                f"clients = {self.clients}, but the {len(self._known)} simulated nodes host only "
                f"{len(self._node_of)}: raise clients-per-node or the number of SuperNodes "
                '(--federation-config "num-supernodes=N")'
            )
        self._started = True
        log(INFO, "%d clients on %d nodes", len(self._node_of), len(self._known))

    def locate(self, clients: Iterable[int]) -> Mapping[int, list[int]]:
        """Node id -> its clients among ``clients``, in ascending order; offline ones are left out.

        The nodes are ordered by their first client, whatever their random ids.
        """
        located: dict[int, list[int]] = {}
        for client in sorted(clients):
            node = self._node_of.get(client)
            if node is not None:
                located.setdefault(node, []).append(int(client))
        return located

    def forget(self, node: int) -> None:
        """Query a node again before the next round: it has lost what it was told."""
        self._known.discard(node)
        self._node_of = {k: other for k, other in self._node_of.items() if other != node}

    def _complete(self) -> bool:
        if self._simulated_nodes:
            return len(self._known) >= self._simulated_nodes
        return bool(self._node_of)

    def _ask(self, grid: Grid, nodes: set[int], timeout_s: float) -> None:
        if not nodes:
            return
        query = f"{MessageType.QUERY}.{wire.QUERY_CLIENTS}"
        messages = [
            Message(content=self.query, message_type=query, dst_node_id=node) for node in nodes
        ]
        for reply in grid.send_and_receive(messages, timeout=timeout_s):
            node = reply.metadata.src_node_id
            if reply.has_error():
                log(WARNING, "node %d could not say which clients it hosts; left out", node)
                self._failed.add(node)
                continue
            if problem := wire.read_problem(reply):
                raise RuntimeError(f"node {node} cannot take part: {problem}")
            hosted, simulated_nodes = wire.read_hosted(reply)
            self._known.add(node)
            self._simulated_nodes = max(self._simulated_nodes, simulated_nodes)
            for client in hosted:
                if not 0 <= client < self.clients:
                    log(WARNING, "node %d: client %d is not in 0..K-1; left out", node, client)
                elif self._node_of.setdefault(client, node) != node:
                    log(WARNING, "node %d: client %d lives on another node", node, client)
