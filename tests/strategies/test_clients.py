"""Sampling follows its law and its cap; the roster finds every client, whatever the node ids."""

from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from app_kit.in_process_grid import InProcessGrid
from strategies import wire
from strategies.clients import (
    Roster,
    clients_of_partition,
    hosted_clients,
    sample_clients,
)
from tests.strategies import drawn


@drawn
@given(st.integers(1, 60), st.integers(1, 20))
def test_partitions_cover_the_clients_once(clients: int, per_node: int) -> None:
    """Enough nodes host each client exactly once, in order; further nodes host none."""
    nodes = -(-clients // per_node)
    hosted = [clients_of_partition(node, per_node, clients) for node in range(nodes + 2)]
    assert [client for node in hosted for client in node] == list(range(clients))
    assert all(len(node) <= per_node for node in hosted)
    assert hosted[nodes:] == [[], []]


@pytest.mark.parametrize(
    ("node_config", "simulation", "hosted"),
    [
        ({"partition-id": 1, "num-partitions": 3}, True, ([2, 3], 3)),
        ({"client-id": 1, "data": "/own.npz"}, True, ([2, 3], 3)),  # a device in a rehearsal
        ({"client-id": 1, "data": "/own.npz"}, False, ([1], 0)),
        ({"partition-id": 2, "num-partitions": 3, "client-id": 1}, True, ([4], 3)),
        ({"partition-id": 2, "num-partitions": 3, "client-id": 1}, False, ([1], 0)),
    ],
)
def test_a_node_knows_its_clients(
    node_config: dict[str, object], simulation: bool, hosted: tuple[list[int], int]
) -> None:
    """In a deployment never from a partition id."""
    found = hosted_clients(node_config, simulation=simulation, clients_per_node=2, clients=5)
    assert found == hosted


def test_a_device_without_client_id_is_told_what_to_do() -> None:
    given = {"partition-id": 1, "num-partitions": 3}
    with pytest.raises(ValueError, match=r"client-id = None: must be a number; start the SuperNod"):
        hosted_clients(given, simulation=False, clients_per_node=2, clients=5)


# --- sampling ---------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [0.05, 0.3, 0.9])
def test_cohort_sizes_are_binomial(sampling: float) -> None:
    """Chi-square of 3,000 sizes against Binomial(K, q), one fixed seed, level 1e-3."""
    clients, rounds = 60, 3000
    rng = np.random.default_rng(17)
    sizes = [len(sample_clients(clients, sampling, rng)) for _ in range(rounds)]
    law = stats.binom(clients, sampling)
    edges = np.unique(law.ppf(np.linspace(0.05, 0.95, 10)))  # cells of at least some 5 %
    cumulative = np.concatenate([[0.0], law.cdf(edges), [1.0]])
    expected = rounds * np.diff(cumulative)
    observed = np.bincount(np.searchsorted(edges, sizes), minlength=len(edges) + 1)
    assert expected.min() > 20
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_clients_take_part_independently_and_equally() -> None:
    """Every client's rounds are Binomial(T, q), every pair's Binomial(T, q^2); within 5 sigma."""
    rounds, sampling = 4000, 0.3
    rng = np.random.default_rng(5)
    member = np.zeros((rounds, 12))
    for row in member:
        row[sample_clients(12, sampling, rng)] = 1
    together = member.T @ member / rounds
    q = np.full((12, 12), sampling**2)
    np.fill_diagonal(q, sampling)
    assert np.all(np.abs(together - q) < 5 * np.sqrt(q * (1 - q) / rounds))


def test_q_one_takes_everybody() -> None:
    """And ids are sorted and unique."""
    np.testing.assert_array_equal(sample_clients(7, 1.0, np.random.default_rng(0)), range(7))
    found = sample_clients(500, 0.2, np.random.default_rng(0))
    assert np.all(np.diff(found) > 0)
    assert len(sample_clients(3, 1e-12, np.random.default_rng(0))) == 0


def test_cap_is_respected_and_costs_no_randomness() -> None:
    """Nobody beyond the cap; the others exactly as without it."""
    rng, free = np.random.default_rng(8), np.random.default_rng(8)
    participations = np.zeros(40, dtype=np.int64)
    for _ in range(60):
        before = participations.copy()
        cohort = sample_clients(40, 0.3, rng, participations, cap=4)
        np.testing.assert_array_equal(participations, before)  # counting is the caller's
        uncapped = sample_clients(40, 0.3, free)
        np.testing.assert_array_equal(cohort, uncapped[before[uncapped] < 4])
        participations[cohort] += 1
    np.testing.assert_array_equal(participations, 4)
    assert len(sample_clients(40, 1.0, rng, participations, cap=4)) == 0


def test_participations_without_a_cap_do_nothing() -> None:
    """No cap: a count alone excludes nobody."""
    found = sample_clients(9, 1.0, np.random.default_rng(0), np.full(9, 1000), None)
    assert len(found) == 9


# --- the roster -------------------------------------------------------------------------


class Nodes:
    """A ClientApp whose nodes host what a table says."""

    def __init__(self, hosted: Iterable[list[int]], simulated_nodes: int) -> None:
        self.hosted = list(hosted)
        self.simulated_nodes = simulated_nodes

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer the query for clients."""
        assert message.metadata.message_type == "query.clients"
        clients = self.hosted[int(context.node_config["partition-id"])]
        content = wire.hosted_content(clients, self.simulated_nodes)
        return Message(content=content, reply_to=message)


def grid_of(hosted: list[list[int]], simulated_nodes: int, seed: int = 0) -> InProcessGrid:
    """Nodes with random ids that reply in random order."""
    app = Nodes(hosted, simulated_nodes)
    return InProcessGrid(app, len(hosted), shuffle=np.random.default_rng(seed))


def roster_of(clients: int) -> Roster:
    """A roster that does not wait."""
    return Roster(clients, RecordDict(), wait_s=0.0)


@pytest.mark.parametrize("seed", range(4))
def test_every_client_is_found_whatever_the_node_ids(seed: int) -> None:
    """Nodes come in the order of their first client, clients ascending."""
    grid = grid_of([[2, 3], [4, 5], [0, 1]], 3, seed)
    roster = roster_of(6)
    roster.update(grid)
    assert list(roster.locate(range(6)).values()) == [[0, 1], [2, 3], [4, 5]]
    located = roster.locate(np.array([5, 3, 2]))
    assert list(located.values()) == [[2, 3], [5]]
    assert all(type(client) is int for clients in located.values() for client in clients)
    partition = {
        node: context.node_config["partition-id"] for node, context in grid.contexts.items()
    }
    assert [partition[node] for node in located] == [0, 1]
    assert roster.locate([]) == {}


def test_nodes_are_asked_once_and_late_ones_when_they_appear() -> None:
    """A device that joins later can be sampled from then on."""
    grid = grid_of([[0], [1], [2]], 0)
    late = next(node for node, c in grid.contexts.items() if c.node_config["partition-id"] == 2)
    context = grid.contexts.pop(late)
    roster = roster_of(3)
    roster.update(grid)
    assert list(roster.locate(range(3)).values()) == [[0], [1]]
    roster.update(grid)
    assert len(grid.asked) == 2
    grid.contexts[late] = context
    roster.update(grid)
    assert len(grid.asked) == 3
    assert list(roster.locate(range(3)).values()) == [[0], [1], [2]]


def test_a_node_that_fails_is_left_out_and_asked_again() -> None:
    """Its clients are offline until it answers."""
    grid = grid_of([[0], [1]], 0)
    failing = next(iter(grid.contexts))
    grid.fail = lambda message: message.metadata.dst_node_id == failing
    roster = roster_of(2)
    roster.update(grid)
    assert len(roster.locate([0, 1])) == 1
    grid.fail = lambda message: False
    roster.update(grid)
    assert len(roster.locate([0, 1])) == 2


def test_clients_outside_the_population_are_ignored() -> None:
    """The population is configured and public: 0 .. K - 1."""
    roster = roster_of(3)
    roster.update(grid_of([[-1, 0], [2, 3, 99]], 0))
    assert list(roster.locate(range(-1, 100)).values()) == [[0], [2]]


def test_simulated_nodes_that_cannot_host_everybody() -> None:
    """Said at the start; on devices absent clients are merely offline."""
    with pytest.raises(RuntimeError, match=r"clients = 5.*host only 4"):
        roster_of(5).update(grid_of([[0, 1], [2, 3]], 2))
    devices = roster_of(5)
    devices.update(grid_of([[0, 1], [2, 3]], 0))
    assert sum(map(len, devices.locate(range(5)).values())) == 4


def test_no_node_at_all() -> None:
    """Nothing to train on; the same if the nodes host no client of this run."""
    for hosted in ([], [[7]], [[], []]):
        with pytest.raises(RuntimeError, match="no node hosts a client"):
            roster_of(5).update(grid_of(hosted, 0))


def test_the_query_carries_the_public_arrays() -> None:
    """Each node gets them once, with the question."""
    grid = grid_of([[0]], 0)
    public = wire.public_content({"mean": np.arange(3, dtype=np.float32)})
    Roster(1, public, wait_s=0.0).update(grid)
    found = wire.read_public(grid.asked[0].content)
    np.testing.assert_array_equal(found["mean"], [0, 1, 2])


def test_a_node_that_comes_back_under_another_id_is_found_again() -> None:
    """Clients of a node that is gone are drop-outs until some node hosts them again."""
    problem_nodes = {1: [0, 1], 2: [2]}
    grid = InProcessGrid(
        lambda message, _: Message(
            content=wire.hosted_content(problem_nodes[message.metadata.dst_node_id], 0),
            reply_to=message,
        ),
        1,
    )
    context = next(iter(grid.contexts.values()))
    grid.contexts = {1: context, 2: context}
    roster = Roster(3, RecordDict(), wait_s=0.1)
    roster.update(grid)
    assert roster.locate(range(3)) == {1: [0, 1], 2: [2]}
    del grid.contexts[1]
    roster.update(grid)
    assert roster.locate(range(3)) == {2: [2]}
    problem_nodes[7] = [0, 1]
    grid.contexts[7] = context
    roster.update(grid)
    assert roster.locate(range(3)) == {7: [0, 1], 2: [2]}
    grid.contexts.clear()
    for _ in range(2):
        roster.update(grid)  # nobody is there now: rounds go on with drop-outs
    assert roster.locate(range(3)) == {}
