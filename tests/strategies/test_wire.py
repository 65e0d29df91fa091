"""What travels: round trips through Flower's own serialisation, and refusals."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from strategies import wire
from strategies.release import Slots
from tests.strategies import drawn

REQUEST = wire.RoundRequest(
    method="pina",
    phase="train",
    round=3,
    assignment="loss",
    clusters=2,
    width=10,
    threshold=0.1 + 0.2,
    kappa=0.1,
    noise_multiplier=0.0,
    private=True,
)


def sent(content: RecordDict) -> RecordDict:
    """The content as it arrives: through bytes."""
    received = ProtoRecordDict.FromString(recorddict_to_proto(content).SerializeToString())
    return recorddict_from_proto(received)


def reply(content: RecordDict) -> Message:
    """A message with this content, as it arrives."""
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    return Message(content=sent(content), message_type=MessageType.TRAIN, dst_node_id=7)


@st.composite
def model_lists(draw: st.DrawFn) -> list[wire.Model]:
    """One to eleven cluster models (more than nine: "10" sorts before "2" as text)."""
    shapes = draw(
        st.dictionaries(
            st.sampled_from(["weight", "bias", "value_lora_B", "blocks/0/x"]),
            array_shapes(min_dims=0, max_dims=3, max_side=3),
            min_size=1,
        )
    )
    finite = st.floats(width=32, allow_nan=False)
    return [
        {name: draw(arrays(np.float32, shape, elements=finite)) for name, shape in shapes.items()}
        for _ in range(draw(st.sampled_from([1, 2, 11])))
    ]


@drawn
@given(model_lists())
def test_models_round_trip(models: list[wire.Model]) -> None:
    """Every bit, in the order of the clusters, through Flower and through a checkpoint's keys."""
    content = sent(wire.round_content(REQUEST, [1], wire.pack_models(models)))
    _, _, received, _ = wire.read_round(content)
    state: dict[str, NDArray[Any]] = {"round": np.array(4), **wire.models_as_state(models)}
    for found in (received, wire.models_in(state)):
        assert len(found) == len(models)
        for got, model in zip(found, models, strict=True):
            assert set(got) == set(model)
            for name, values in model.items():
                assert got[name].dtype == np.float32
                assert got[name].shape == values.shape
                np.testing.assert_array_equal(got[name], values)


@drawn
@given(model_lists())
def test_flatten_round_trip(models: list[wire.Model]) -> None:
    """Rows in the order of the names, whatever the order of insertion."""
    rows = wire.flatten(models)
    assert rows.dtype == np.float64
    expected = np.concatenate([models[0][name].ravel() for name in sorted(models[0])])
    np.testing.assert_array_equal(rows[0], expected)
    turned = [dict(reversed(model.items())) for model in models]
    np.testing.assert_array_equal(wire.flatten(turned), rows)
    for got, model in zip(wire.unflatten(rows, turned[0]), models, strict=True):
        for name, values in model.items():
            assert got[name].dtype == np.float32
            np.testing.assert_array_equal(got[name], values)


@pytest.mark.parametrize("clients", [[], [5], [0, 3, 2**40]])
def test_round_request_round_trip(clients: list[int]) -> None:
    """All fields with their types; prototypes in full precision; absent records are absent."""
    prototypes = np.random.default_rng(0).standard_normal((4, 3))
    content = sent(wire.round_content(REQUEST, clients, None, prototypes))
    request, asked, models, found = wire.read_round(content)
    assert request == REQUEST
    assert [type(value) for value in dataclasses.astuple(request)] == [
        type(value) for value in dataclasses.astuple(REQUEST)
    ]
    assert asked == clients
    assert models == []
    assert found is not None
    np.testing.assert_array_equal(found, prototypes)
    assert wire.read_round(sent(wire.round_content(REQUEST, clients)))[3] is None


def test_layout_of_a_request() -> None:
    """Client and server derive the layout from the same four numbers."""
    assert REQUEST.layout == Slots(2, 10, 0.1 + 0.2, 0.1)


def test_contribution_round_trip() -> None:
    """64-bit integers beyond what a float holds; only unusable clients that are given travel."""
    total = np.array([2**62 + 1, -(2**62) - 1, 0, 1], dtype=np.int64)
    message = reply(wire.contribution(total))
    found = wire.read_contribution(message)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, total)
    assert wire.read_unusable(message) == []
    assert wire.read_unusable(reply(wire.naming(wire.contribution(total), [4, 9]))) == [4, 9]


def test_a_private_reply_holds_one_array_and_nothing_else() -> None:
    """No metric, no count, no name: the server learns the protected vector alone."""
    content = wire.contribution(np.zeros(3, dtype=np.int64))
    assert not content.config_records
    assert not content.metric_records
    assert [list(record) for record in content.array_records.values()] == [["sum"]]


def test_sketches_round_trip() -> None:
    """One row a client; also none."""
    for sketches in (np.random.default_rng(1).standard_normal((3, 5)), np.zeros((0, 5))):
        np.testing.assert_array_equal(
            wire.read_sketches(reply(wire.sketch_reply(sketches)), 5), sketches
        )


def test_replies_of_another_form_are_refused() -> None:
    """A ValueError, which a round treats as a drop-out; KeyError would end the run."""
    other = RecordDict({"contribution": ArrayRecord({"else": Array(np.zeros(2))})})
    for content in (RecordDict(), other, RecordDict({"sum": ConfigRecord({"a": 1})})):
        with pytest.raises(ValueError, match="no sum"):
            wire.read_contribution(reply(content))
        with pytest.raises(ValueError, match="no sketches"):
            wire.read_sketches(reply(content), 2)
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        wire.read_sketches(reply(wire.sketch_reply(np.zeros((2, 3)))), 5)
    rows = np.array([[1.0, 2.0], [np.nan, 0.0]])
    np.testing.assert_array_equal(wire.read_sketches(reply(wire.sketch_reply(rows)), 2), rows[:1])


@pytest.mark.parametrize("clients", [[], [0, 1, 2]])
def test_hosted_round_trip(clients: list[int]) -> None:
    """A node's clients and the number of nodes."""
    assert wire.read_hosted(reply(wire.hosted_content(clients, 4))) == (clients, 4)


def test_public_arrays_round_trip_and_outlive_their_message() -> None:
    """Kept in a node's state, from which they are read."""
    public = {"mean": np.arange(3, dtype=np.float32), "head": np.eye(3, dtype=np.float32)}
    state = RecordDict()
    wire.keep_public(state, sent(wire.public_content(public)))
    found = wire.read_public(sent(state))
    assert set(found) == set(public)
    for name, values in public.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize(
    "arrays_by_name",
    [
        {"weight": (2,)},
        {"cluster-0/weight": (2,), "weight": (2,)},
        {"cluster-0": (2,)},
        {"cluster-0/weight": (2,), "cluster-1/weight": (3,)},
        {"cluster-0/weight": (2,), "cluster-1/bias": (2,)},
        {"cluster-0/w": (2,), "cluster-0/b": (1,), "cluster-1/w": (2,)},
    ],
    ids=str,
)
def test_arrays_that_are_no_cluster_models(arrays_by_name: dict[str, tuple[int, ...]]) -> None:
    """Without the prefix, or with clusters that differ."""
    record = ArrayRecord({name: Array(np.zeros(shape)) for name, shape in arrays_by_name.items()})
    with pytest.raises(ValueError, match="cluster"):
        wire.unpack_models(record)


def test_query_and_answer_of_a_client_round_trip() -> None:
    """What is needed beside the public arrays; a problem of the code."""
    public = wire.public_content({"mean": np.ones(2, np.float32)})
    content = sent(wire.add_needs(public, wire.needs_content(loss=True)))
    assert wire.read_needs(content) == {"loss": True, "embedding": False, "images": False}
    assert wire.read_needs(sent(public)) == {}
    state = RecordDict()
    wire.keep_public(state, content)
    assert list(wire.read_public(state)) == ["mean"]
    assert wire.read_problem(reply(wire.hosted_content([3], 4))) == ""
    broken = reply(wire.hosted_content([3], 4, "no embedding"))
    assert (wire.read_hosted(broken), wire.read_problem(broken)) == (([3], 4), "no embedding")


def test_the_users_config_travels_with_a_round() -> None:
    config = ConfigRecord({"lr": 0.1, "server-round": 2})
    content = sent(wire.round_content(REQUEST, [1], config=config))
    assert wire.is_round(content)
    assert dict(wire.read_config(content)) == dict(config)
    assert not wire.read_config(sent(wire.round_content(REQUEST, [1])))
    assert not wire.is_round(RecordDict({"config": config}))


def test_integers_are_no_part_of_an_update_and_dtypes_and_order_stay() -> None:
    model = {
        "z": np.array([1.0, 2.0]),
        "batches": np.array(9),
        "a": np.array([[3.0]], np.float32),
    }
    assert wire.trainable(model) == ["a", "z"]
    assert wire.width(model) == 3
    np.testing.assert_array_equal(wire.flatten([model]), [[3.0, 1.0, 2.0]])
    (found,) = wire.unflatten(np.array([[6.0, 4.0, 5.0]]), model)
    assert list(found) == ["z", "batches", "a"]
    assert [values.dtype for values in found.values()] == [v.dtype for v in model.values()]
    np.testing.assert_array_equal(found["z"], [4.0, 5.0])
    assert found["batches"] == 9
    assert found["a"].shape == (1, 1)


def test_plain_arrays_are_told_from_cluster_models() -> None:
    one = {"w": np.zeros(2)}
    assert not wire.is_plain(wire.pack_models([one, one]))
    assert wire.is_plain(ArrayRecord({"w": Array(np.zeros(2)), "cluster-head": Array(np.ones(1))}))
