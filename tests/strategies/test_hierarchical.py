"""HierarchicalFedAvg against plain loops, Flower's FedAvg, and devices that fail."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app_kit.in_process_grid import InProcessGrid
from strategies import HierarchicalFedAvg
from strategies import hierarchical_wire as wire
from strategies.clients import clients_of_partition
from strategies.wire import hosted_content
from strategies.wireless import Channel, Clustering, EnergyAccount, Topology, devices_in_disc
from strategies.wireless.links import round_account, run_account

DEVICES, RATE = 12, 0.3
LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 0])
PLAN = Clustering(LABELS, np.array([0, 4, 2]))
State = dict[str, NDArray[np.float32]]


def place(capacity: int = 12) -> Topology:
    return devices_in_disc(np.random.default_rng(3), devices=DEVICES, capacity=capacity)


def start() -> State:
    rng = np.random.default_rng(1)
    return {
        "w": rng.standard_normal((2, 3)).astype(np.float32),
        "b": rng.standard_normal(2).astype(np.float32),
    }


def record(state: State) -> ArrayRecord:
    return ArrayRecord({name: Array(values) for name, values in state.items()})


def samples(device: int) -> int:
    return 3 + 5 * (device % 4)


def target(device: int, iteration: int) -> np.ndarray:
    """What a device pulls its model towards in one local iteration (a mini-batch)."""
    return np.random.default_rng([device, iteration]).standard_normal(8).astype(np.float32)


def step(state: State, device: int, iteration: int) -> State:
    goal = target(device, iteration)
    goals = {"b": goal[:2], "w": goal[2:].reshape(2, 3)}
    return {n: (v - np.float32(RATE) * (v - goals[n])).astype(np.float32) for n, v in state.items()}


def mean(states: list[State], weights: list[float]) -> State:
    total = sum(weights)
    return {
        name: sum(s[name].astype(float) * (w / total) for s, w in zip(states, weights, strict=True))
        for name in states[0]
    }  # type: ignore[return-value]


def virtual_client(per_node: int) -> Callable[[Message, Context], Message]:
    """A node that hosts ``per_node`` devices, written with the wire module."""

    def answer(message: Message, context: Context) -> Message:
        if message.metadata.message_type.startswith("query"):
            node = int(context.node_config["partition-id"])
            hosted = clients_of_partition(node, per_node, DEVICES)
            nodes = int(context.node_config["num-partitions"])
            return Message(hosted_content(hosted, nodes), reply_to=message)
        request, arrays = wire.read_request(message.content)
        state: State = {name: array.numpy() for name, array in arrays.items()}
        if request.phase == wire.GRADIENT:
            (device,) = request.devices
            vector = np.concatenate([values.ravel() for values in _gradient(state, device)])
            content = wire.reply_content(wire.gradient_arrays(vector), samples(device), [device])
            return Message(content, reply_to=message)
        states = []
        for device in request.devices:
            own = state
            for iteration in range(request.iteration, request.iteration + request.local_steps):
                own = step(own, device, iteration)
            states.append(own)
        weights = [float(samples(device)) for device in request.devices]
        averaged = {n: v.astype(np.float32) for n, v in mean(states, weights).items()}
        content = wire.reply_content(record(averaged), int(sum(weights)), list(request.devices))
        return Message(content, reply_to=message)

    return answer


def _gradient(state: State, device: int) -> list[np.ndarray]:
    after = step(state, device, 0)
    return [(state[name] - after[name]) / np.float32(RATE) for name in state]


def plain_client(steps: int) -> Callable[[Message, Context], Message]:
    """A client of Flower's FedAvg that knows nothing of this project; one device a node."""

    def answer(message: Message, context: Context) -> Message:
        device = int(context.node_config["partition-id"])
        if message.metadata.message_type.startswith("query"):
            nodes = int(context.node_config["num-partitions"])
            return Message(hosted_content([device], nodes), reply_to=message)
        state: State = {n: a.numpy() for n, a in message.content.array_records["arrays"].items()}
        first = (int(message.content.config_records["config"]["server-round"]) - 1) * steps  # type: ignore[arg-type]
        for iteration in range(first, first + steps):
            state = step(state, device, iteration)
        metrics = MetricRecord({"num-examples": samples(device)})
        return Message(RecordDict({"arrays": record(state), "metrics": metrics}), reply_to=message)

    return answer


def strategy(clustering: Any, **changes: Any) -> HierarchicalFedAvg:
    return HierarchicalFedAvg(topology=place(), clustering=clustering, **changes)


def trained(
    hierarchy: HierarchicalFedAvg,
    iterations: int,
    per_node: int = 3,
    fail: Callable[[Message], bool] = lambda message: False,
    client: Callable[[Message, Context], Message] | None = None,
) -> State:
    nodes = -(-DEVICES // per_node)
    grid = InProcessGrid(client or virtual_client(per_node), nodes, fail=fail)
    hierarchy.start(grid, record(start()), num_rounds=hierarchy.rounds(iterations))
    assert hierarchy.arrays is not None
    return {name: array.numpy() for name, array in hierarchy.arrays.items()}


def loop(labels: np.ndarray, tau1: int, tau2: int, iterations: int) -> State:
    """Eq. 2 to 4 written out."""
    models = [start() for _ in range(DEVICES)]
    clusters = np.unique(labels)
    sizes = {c: float(sum(samples(u) for u in np.flatnonzero(labels == c))) for c in clusters}
    for t in range(1, iterations + 1):
        models = [step(model, u, t - 1) for u, model in enumerate(models)]
        if t % tau1 == 0:
            inside = {
                c: mean(
                    [models[u] for u in np.flatnonzero(labels == c)],
                    [float(samples(u)) for u in np.flatnonzero(labels == c)],
                )
                for c in clusters
            }
            models = [inside[label] for label in labels]
        if t % tau2 == 0:
            everywhere = mean([inside[c] for c in clusters], [sizes[c] for c in clusters])
            models = [everywhere] * DEVICES
    return models[0]


def flower(steps: int, rounds: int) -> State:
    """Flower's own FedAvg on the same devices."""
    grid = InProcessGrid(plain_client(steps), DEVICES)
    result = FedAvg(fraction_evaluate=0.0).start(grid, record(start()), num_rounds=rounds)
    return {name: array.numpy() for name, array in result.arrays.items()}


def assert_close(found: State, expected: State) -> None:
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6)


@settings(max_examples=25)
@given(
    labels=st.lists(st.integers(0, 3), min_size=DEVICES, max_size=DEVICES),
    tau1=st.integers(1, 3),
    factor=st.integers(1, 3),
    per_node=st.sampled_from([1, 2, 6, 12]),
)
def test_aggregation_is_equations_2_to_4_for_any_nodes(
    labels: list[int], tau1: int, factor: int, per_node: int
) -> None:
    """1, 2, 6 and 12 nodes; drawn clusters, unequal samples."""
    groups = np.unique(np.array(labels), return_inverse=True)[1]
    heads = np.array([np.flatnonzero(groups == c)[0] for c in range(groups.max() + 1)])
    hierarchy = strategy(Clustering(groups, heads), tau1=tau1, tau2=tau1 * factor)
    found = trained(hierarchy, 2 * tau1 * factor, per_node)
    assert_close(found, loop(groups, tau1, tau1 * factor, 2 * tau1 * factor))


@pytest.mark.parametrize("per_node", [1, 6, 12])
def test_equal_periods_are_fedavg(per_node: int) -> None:
    found = trained(strategy(PLAN, tau1=2, tau2=2), 8, per_node)
    assert_close(found, flower(steps=2, rounds=4))


def test_one_cluster_is_fedavg_with_tau1() -> None:
    one = Clustering(np.zeros(DEVICES, dtype=np.int64), np.array([5]))
    assert_close(trained(strategy(one, tau1=2, tau2=6), 12), flower(steps=2, rounds=6))


def test_every_device_its_own_head_is_fedavg_with_tau2() -> None:
    own = Clustering(np.arange(DEVICES), np.arange(DEVICES))
    assert_close(trained(strategy(own, tau1=2, tau2=6), 12), flower(steps=6, rounds=2))


def test_without_clusters_it_is_fedavg() -> None:
    found = trained(strategy(None, tau1=2, tau2=4), 8)
    assert_close(found, flower(steps=2, rounds=4))


def test_a_plain_flower_client_works_unchanged() -> None:
    found = trained(strategy(PLAN, tau1=1, tau2=2), 6, 1, client=plain_client(1))
    assert_close(found, loop(LABELS, 1, 2, 6))


def test_the_model_in_between_is_the_mean_of_the_clusters() -> None:
    """What ``evaluate_fn`` sees after a round inside the clusters."""
    hierarchy = strategy(PLAN, tau1=1, tau2=2)
    seen = []
    grid = InProcessGrid(virtual_client(3), 4)
    hierarchy.start(
        grid,
        record(start()),
        num_rounds=1,
        evaluate_fn=lambda number, arrays: seen.append(arrays),  # type: ignore[func-returns-value,arg-type]
    )
    states = [step(start(), device, 0) for device in range(DEVICES)]
    expected = mean(states, [float(samples(device)) for device in range(DEVICES)])
    assert_close({name: array.numpy() for name, array in seen[-1].items()}, expected)


# --- planning --------------------------------------------------------------------------------


class Planner:
    """Keeps what it was given."""

    def __init__(self) -> None:
        self.rows: np.ndarray | None = None

    def __call__(self, gradients: NDArray[np.float32]) -> Clustering:
        self.rows = gradients
        return PLAN


@pytest.mark.parametrize("plain", [False, True])
def test_clusters_are_planned_from_the_gradients_of_a_first_round(plain: bool) -> None:
    """Also from a plain client's model difference; training is that of a given clustering."""
    planner = Planner()
    hierarchy = strategy(planner, tau1=1, tau2=2)
    assert hierarchy.rounds(4) == 5
    if plain:
        trained(hierarchy, 4, 1, client=plain_client(1))
    else:
        assert_close(trained(hierarchy, 4), loop(LABELS, 1, 2, 4))
    expected = np.stack(
        [np.concatenate([g.ravel() for g in _gradient(start(), u)]) for u in range(DEVICES)]
    )
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert planner.rows is not None
    np.testing.assert_allclose(planner.rows, expected, atol=2e-6)


def test_a_device_without_a_gradient_is_similar_to_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    planner = Planner()
    hierarchy = strategy(planner, tau1=1, tau2=2)
    client = virtual_client(1)

    def silent(message: Message, context: Context) -> Message:
        config = message.content.config_records.get("config")
        if config is not None and config["phase"] == wire.GRADIENT and 7 in config["devices"]:  # type: ignore[operator]
            raise OSError("no battery")
        return client(message, context)

    class Failing(InProcessGrid):
        """Turns exceptions into error replies, as Flower's engine does."""

        def _answer(self, message: Message) -> Message:
            try:
                return super()._answer(message)
            except OSError:
                self.fail = lambda message: True
                reply = super()._answer(message)
                self.fail = lambda message: False
                return reply

    grid = Failing(silent, DEVICES)
    logging.getLogger("flwr").propagate = True
    hierarchy.start(grid, record(start()), num_rounds=1)
    assert caplog.text.count("devices [7] have no gradient: their similarity is taken as 0") == 1
    assert hierarchy.failed == [7]
    assert planner.rows is not None
    assert not planner.rows[7].any()
    assert np.linalg.norm(planner.rows, axis=1).sum() == pytest.approx(DEVICES - 1)


def test_a_gradient_of_another_size_than_asked_for_is_not_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A plain Flower client sends its model, whatever projection was asked for."""
    logging.getLogger("flwr").propagate = True
    planner = Planner()
    hierarchy = strategy(planner, tau1=1, tau2=2, sketch_dimension=3)
    trained(hierarchy, 2, 1, client=plain_client(1))
    assert planner.rows is not None
    assert planner.rows.shape == (DEVICES, 3)
    assert not planner.rows.any()
    assert f"devices {list(range(DEVICES))} have no gradient" in caplog.text


def test_nobody_sends_a_gradient() -> None:
    with pytest.raises(RuntimeError, match="no device sent a gradient"):
        trained(strategy(Planner()), 2, fail=lambda m: "config" in m.content)


# --- failures --------------------------------------------------------------------------------


def failing(hierarchy: HierarchicalFedAvg, when: dict[int, set[int]]) -> Callable[[Message], bool]:
    """In round r the devices ``when[r]`` answer with an error (one device a node)."""

    def fail(message: Message) -> bool:
        config = message.content.config_records.get("config")
        if config is None:
            return False
        return bool(set(config["devices"]) & when.get(hierarchy.round, set()))  # type: ignore[arg-type]

    return fail


def test_a_failed_head_is_replaced_inside_its_cluster_for_good() -> None:
    """By the medoid of those alive; its samples are missing while it is away."""
    hierarchy = strategy(PLAN, tau1=1, tau2=2)
    trained(hierarchy, 4, 1, failing(hierarchy, {2: {4}}))
    assert hierarchy.clustering is not None
    heads = hierarchy.clustering.heads
    assert heads[0] == 0
    assert heads[2] == 2
    alive = np.array([1, 7])
    at, server = place().positions_m, place().server_m
    cost = [
        np.linalg.norm(at[u] - at[alive], axis=1).sum() + np.linalg.norm(at[u] - server)
        for u in alive
    ]
    assert heads[1] == alive[int(np.argmin(cost))]


def test_a_cluster_without_members_is_skipped_and_said(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    hierarchy = strategy(PLAN, tau1=1, tau2=1)
    silent = set(np.flatnonzero(LABELS == 1).tolist())
    found = trained(hierarchy, 2, 1, failing(hierarchy, {1: silent}))
    assert "round 1: cluster 1 is skipped: no member answered" in caplog.text
    assert hierarchy.skipped == []  # back in round 2
    others = [u for u in range(DEVICES) if u not in silent]
    first = mean([step(start(), u, 0) for u in others], [float(samples(u)) for u in others])
    second = [step(first, u, 1) for u in range(DEVICES)]
    assert_close(found, mean(second, [float(samples(u)) for u in range(DEVICES)]))


def test_a_cluster_that_nobody_can_lead_is_skipped() -> None:
    """The only candidate of cluster 1 is away."""
    at = place()
    narrow = Topology(at.ids, at.positions_m, at.server_m, np.array([0, 4, 2]), np.full(3, 12))
    hierarchy = HierarchicalFedAvg(topology=narrow, clustering=PLAN, tau1=1, tau2=1)
    trained(hierarchy, 1, 1, failing(hierarchy, {1: {4}}))
    assert hierarchy.skipped == [1]
    assert hierarchy.account.relay_j == pytest.approx(
        round_account(
            Channel(), at.positions_m, at.server_m, PLAN, across=True, skipped=[1]
        ).relay_j
    )


def test_a_round_without_any_answer_changes_nothing() -> None:
    hierarchy = strategy(PLAN, tau1=1, tau2=1)
    found = trained(hierarchy, 1, 1, failing(hierarchy, {1: set(range(DEVICES))}))
    assert_close(found, start())
    assert hierarchy.account == EnergyAccount()


def broken(kind: str) -> Callable[[Message, Context], Message]:
    """Device 3's node sends something that must not be averaged."""
    healthy = virtual_client(1)

    def answer(message: Message, context: Context) -> Message:
        reply = healthy(message, context)
        if int(context.node_config["partition-id"]) != 3 or "arrays" not in reply.content:
            return reply
        arrays = reply.content.array_records["arrays"]
        if kind == "nan":
            arrays["b"] = Array(np.full(2, np.nan, dtype=np.float32))
        if kind == "shape":
            arrays["b"] = Array(np.zeros(3, dtype=np.float32))
        if kind == "names":
            arrays["c"] = Array(np.zeros(3, dtype=np.float32))
        if kind == "samples":
            reply.content["metrics"] = MetricRecord({"num-examples": 0})
        if kind == "no metrics":
            del reply.content["metrics"]
        if kind == "others":
            del reply.content["devices"]
            reply.content.update(wire.reply_content(arrays, 4, [5]))
        return reply

    return answer


@pytest.mark.parametrize("kind", ["nan", "shape", "names", "samples", "no metrics", "others"])
def test_a_reply_that_cannot_be_averaged_is_left_out(kind: str) -> None:
    hierarchy = strategy(PLAN, tau1=1, tau2=1)
    found = trained(hierarchy, 1, 1, client=broken(kind))
    assert hierarchy.failed == [3]
    others = [u for u in range(DEVICES) if u != 3]
    expected = mean([step(start(), u, 0) for u in others], [float(samples(u)) for u in others])
    assert_close(found, expected)


# --- energy, resume, settings ----------------------------------------------------------------


@pytest.mark.parametrize("clustering", [PLAN, None])
@pytest.mark.parametrize("fading", [False, True])
def test_the_account_is_that_of_the_links(clustering: Clustering | None, fading: bool) -> None:
    channel = Channel(directions="both", band="shared", fading=fading)
    hierarchy = strategy(clustering, tau1=2, tau2=4, channel=channel)
    total = EnergyAccount()
    grid = InProcessGrid(virtual_client(3), 4)

    def add(number: int, arrays: ArrayRecord) -> None:
        nonlocal total
        total += hierarchy.account

    hierarchy.start(grid, record(start()), num_rounds=hierarchy.rounds(8), evaluate_fn=add)
    at = place()
    expected = run_account(
        Channel(directions="both", band="shared"),
        at.positions_m,
        at.server_m,
        clustering,
        iterations=8,
        tau1=2,
        tau2=4,
    )
    if fading:
        assert total.uplink_j != pytest.approx(expected.uplink_j, rel=1e-3)
    else:
        assert total.total_j == pytest.approx(expected.total_j)
        assert total.delay_s == pytest.approx(expected.delay_s)
    assert (total.relay_j > 0) == (clustering is not None)
    assert total.downlink_j > 0


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_resumed_after_any_round_is_bit_identical(stop: int) -> None:
    def build() -> HierarchicalFedAvg:
        return strategy(Planner(), tau1=1, tau2=2)

    whole = trained(build(), 4)
    first = build()
    grid = InProcessGrid(virtual_client(3), 4)
    first.start(grid, record(start()), num_rounds=stop)
    second = build()
    arrays = second.load_state(first.state())
    assert second.rounds(4) == 5 - stop
    second.start(grid, arrays, num_rounds=second.rounds(4))
    assert second.arrays is not None
    for name, values in whole.items():
        np.testing.assert_array_equal(second.arrays[name].numpy(), values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tau1": 2, "tau2": 3}, "tau2 = 3: must be a multiple of tau1 = 2"),
        ({"tau1": 0}, "tau1 = 0: must be >= 1"),
        ({"clustering": Clustering(np.zeros(3, int), np.zeros(1, int))}, "3 labels for 12 devices"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HierarchicalFedAvg(**{"topology": place(), "clustering": PLAN, **changes})


def test_a_run_that_would_not_end_with_a_global_model_is_refused() -> None:
    with pytest.raises(ValueError, match="iterations = 5: must be a multiple of 2"):
        strategy(PLAN, tau1=1, tau2=2).rounds(5)
    assert strategy(None, tau1=1, tau2=2).rounds(5) == 5
