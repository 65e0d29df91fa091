"""The bytes that a round tells are those of the arrays that travelled; they show no cohort."""

from typing import Any

import pytest
from flwr.app import ArrayRecord, Message, RecordDict

from app_kit.in_process_grid import InProcessGrid
from strategies import traffic, wire
from strategies.clustered import ClusteredStrategy
from tests.contract.conftest import (
    CLIENTS,
    NODES,
    WIDTH,
    Problem,
    make_plan,
    make_strategy,
    start_models,
)

HEADER = 128
"""Of NumPy's file format, for every array."""
MODEL = 4 * WIDTH + 2 * HEADER + len("cluster-0/b") + len("cluster-0/head")
"""One cluster model: WIDTH float32 in two arrays."""


def slots(clusters: int, width: int) -> int:
    """A reply: int64, a slot of so many numbers and a counter for every cluster."""
    return 8 * clusters * (width + 1) + HEADER + len("sum")


def prototypes(count: int) -> int:
    """float64, WIDTH numbers each."""
    return 8 * count * WIDTH + HEADER + len("prototypes")


def rounds(
    strategy: ClusteredStrategy, grid: InProcessGrid
) -> list[tuple[str, dict[str, int], list[Message], list[Message]]]:
    """Phase, line of the record, requests and replies of every round."""
    found: list[tuple[str, dict[str, int], list[Message], list[Message]]] = []
    seen = [0, 0]

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        asked = [m for m in grid.asked[seen[0] :] if m.metadata.message_type == "train"]
        replies = [m for m in grid.replies[seen[1] :] if m.metadata.message_type == "train"]
        seen[:] = len(grid.asked), len(grid.replies)
        if server_round:
            phase = strategy.request(strategy.round).phase
            found.append((phase, strategy.traffic.line(), asked, replies))

    arrays = wire.pack_models(start_models(strategy.clusters))
    strategy.start(grid, arrays, strategy.remaining_rounds, evaluate_fn=evaluate)
    return found


def carried(content: RecordDict) -> int:
    """Bytes of all serialised arrays and of their names."""
    arrays = [item for record in content.array_records.values() for item in record.items()]
    return sum(len(name) + len(array.data) for name, array in arrays)


@pytest.mark.parametrize("private", [True, False])
def test_every_round_tells_the_bytes_of_its_messages(kind: str, private: bool) -> None:
    """One client a node, so that a sketch is a reply."""
    grid = InProcessGrid(Problem().client_app, CLIENTS)
    plan = make_plan(kind, private=private, sampling=0.6)
    for _, line, asked, replies in rounds(make_strategy(kind, plan), grid):
        assert {carried(message.content) for message in asked} == {line["bytes_down_per_node"]}
        assert {carried(reply.content) for reply in replies} == {line["bytes_up_per_node"]}
        assert ("bytes_down" in line, "bytes_up" in line) == (not private, not private)
        if not private:
            assert line["bytes_down"] == sum(carried(message.content) for message in asked)
            assert line["bytes_up"] == sum(carried(reply.content) for reply in replies)


def test_fedavg_takes_one_model_down_and_eight_bytes_a_number_up() -> None:
    grid = InProcessGrid(Problem().client_app, NODES)
    for _, line, _, _ in rounds(make_strategy("fedavg", make_plan("fedavg")), grid):
        assert line == {
            "bytes_down_per_node": MODEL,
            "bytes_up_per_node": 8 * WIDTH + HEADER + len("sum"),
        }


@pytest.mark.parametrize("clusters", [2, 4])
def test_pina_takes_a_slot_for_every_cluster(clusters: int) -> None:
    """Mean of embeddings, Lloyd steps over several prototypes a cluster, then all models."""
    grid = InProcessGrid(Problem().client_app, NODES)
    strategy = make_strategy("pina", make_plan("pina"), clusters=clusters)
    told = rounds(strategy, grid)
    assert [phase for phase, *_ in told] == ["mean", "lloyd", "lloyd"] + ["train"] * 4
    assert told[0][1] == {
        "bytes_down_per_node": 0,
        "bytes_up_per_node": 8 * WIDTH + HEADER + len("sum"),
    }
    for _, line, asked, _ in told[1:3]:
        _, _, _, sent = wire.read_round(asked[0].content)
        assert sent is not None
        assert line["bytes_down_per_node"] == prototypes(len(sent))
        assert line["bytes_up_per_node"] == slots(len(sent), WIDTH)
    for _, line, _, _ in told[3:]:
        assert line == {
            "bytes_down_per_node": clusters * MODEL + prototypes(clusters),
            "bytes_up_per_node": slots(clusters, WIDTH),
        }


def test_a_private_round_tells_the_same_whoever_is_asked(kind: str) -> None:
    """Nobody, some (of whom some fail), or all, on few nodes or many: no line shows it."""
    told: list[list[Any]] = []
    asked_in_all = []
    for sampling, nodes, fails in ((1e-12, 4, 0), (0.5, 24, 3), (1.0, 3, 0)):
        grid = InProcessGrid(
            Problem().client_app,
            nodes,
            fail=lambda m, fails=fails: (
                m.metadata.message_type == "train" and m.metadata.dst_node_id % 5 < fails
            ),
        )
        found = rounds(make_strategy(kind, make_plan(kind, sampling=sampling)), grid)
        told.append([(phase, line) for phase, line, _, _ in found])
        asked_in_all.append(sum(len(asked) for _, _, asked, _ in found))
    assert told[0] == told[1] == told[2]
    assert asked_in_all[0] < asked_in_all[2] < asked_in_all[1]


def test_failures_take_bytes_down_but_none_up() -> None:
    grid = InProcessGrid(
        Problem().client_app, NODES, fail=lambda m: m.metadata.message_type == "train"
    )
    for _, line, _, _ in rounds(make_strategy("fedavg", make_plan("fedavg", private=False)), grid):
        assert line["bytes_down"] == NODES * MODEL
        assert line["bytes_up"] == 0
        assert line["bytes_up_per_node"] == 8 * WIDTH + HEADER + len("sum")


def test_a_run_tells_its_training_rounds_and_the_sum_of_all() -> None:
    lines = [
        {"phase": "mean", **traffic.Traffic(1, 900, 10, 9000).line()},
        {"phase": "train", **traffic.Traffic(50, 0, 500, 0).line()},
        {"phase": "train", **traffic.Traffic(50, 70, 400, 280).line()},
    ]
    assert traffic.of_run(lines) == {
        "bytes_down_per_node": 50,
        "bytes_up_per_node": 70,
        "bytes_down": 910,
        "bytes_up": 9280,
    }
    unknown = dict.fromkeys((*traffic.PER_NODE, *traffic.TOTALS))
    assert traffic.of_run([{"phase": "train"}]) == traffic.of_run([]) == unknown
    # Begun by a version that did not count: a sum over some of the rounds would be no total.
    half = traffic.of_run([{"phase": "train"}, lines[2]])
    assert (half["bytes_down_per_node"], half["bytes_down"]) == (50, None)
