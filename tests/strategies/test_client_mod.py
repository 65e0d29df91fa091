"""The mod around a plain client: the hand-written client's run, and nothing else ever leaves."""

import dataclasses
import logging
from typing import Any

import numpy as np
import pytest
from flwr import clientapp as flower
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.serde import recorddict_to_proto
from flwr.serverapp.strategy import FedAvg

from app_kit.in_process_grid import InProcessGrid
from strategies import FedNova, wire
from strategies.aggregation import Aggregation
from strategies.clientapp import ClientApp
from tests.contract.conftest import (
    CLIENTS,
    KINDS,
    SINGLE,
    WIDTH,
    Problem,
    make_plan,
    make_strategy,
    run,
    start_models,
)
from tests.strategies.plain_apps import client_of, plain_app, record

OFFERED = [
    kind
    for kind in KINDS
    if kind not in ("oracle", "oracle-coded", "pina-sketch", "pina-discriminant", "pina-whitening")
]


def our_app(problem: Problem, **options: Any) -> ClientApp:
    """Our ClientApp with a plain client's functions, and the problem's embedding."""
    app = ClientApp(embedding=lambda context: problem.embedding(client_of(context)))
    plain_app(problem, app, **options)
    return app


def grid_of(app: Any) -> InProcessGrid:
    return InProcessGrid(app, CLIENTS)


def aggregation(kind: str) -> Aggregation:
    return Aggregation(threshold=2.0, rescale="none" if kind in SINGLE else "count")


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    "kind", [kind for kind in OFFERED if kind not in ("rr-cluster", "ifca-ldp")]
)
def test_a_plain_client_does_what_a_hand_written_one_does(kind: str, private: bool) -> None:
    """Same plan, seed and noise: the same models, up to the rounding of float32 arrays.

    Not where clients draw something themselves, for a plain client is never seeded.
    """
    problem = Problem()
    plan = make_plan(kind, rounds=6, sampling=0.7, private=private)
    expected, _ = run(make_strategy(kind, plan), problem, InProcessGrid(problem.client_app, 4))
    found, _ = run(make_strategy(kind, plan), problem, grid_of(our_app(problem)))
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert np.abs(found - wire.flatten(start_models(len(found)))).max() > 0.1


def test_a_plain_client_refuses_what_needs_single_images() -> None:
    """Before anything is trained, with what to use instead."""
    problem = Problem()
    strategy = make_strategy("pina-discriminant", make_plan("pina-discriminant"))
    with pytest.raises(RuntimeError, match=r"features and labels of single images.*use init"):
        run(strategy, problem, grid_of(our_app(problem)))
    assert not strategy.ledger.releases


def test_the_train_function_is_called_once_with_the_chosen_model_and_the_users_config() -> None:
    """Plain names, plain records; every cluster model is evaluated, one is trained."""
    problem, seen = Problem(), []
    strategy = make_strategy("ifca", make_plan("ifca", rounds=1, private=False))
    models = start_models(2)
    strategy.start(
        grid_of(our_app(problem, seen=seen)),
        wire.pack_models(models),
        num_rounds=1,
        train_config=ConfigRecord({"lr": 0.25}),
    )
    for client in range(CLIENTS):
        mine = [(what, content) for what, who, content in seen if who == client]
        assert [what for what, _ in mine] == ["evaluate", "evaluate", "train"]
        for _, content in mine:
            assert set(content) == {"arrays", "config"}
            assert dict(content["config"]) == {"lr": 0.25, "server-round": 1}
        losses = np.linalg.norm(wire.flatten(models) - problem.targets[client], axis=1)
        chosen = models[int(np.argmin(losses))]
        for name, values in chosen.items():
            np.testing.assert_array_equal(mine[-1][1]["arrays"][name].numpy(), values)


# --- privacy -----------------------------------------------------------------------------


def spoiled(client: int, content: RecordDict) -> RecordDict | None:
    """Each of the first clients fails in a way of its own."""
    arrays = content["arrays"]
    if client == 0:
        raise RuntimeError("client data: 1234567.5")
    if client == 1:
        raise SystemExit("client data: 1234567.5")
    if client == 2:
        content["arrays"] = ArrayRecord({**arrays, "b": Array(np.full(WIDTH - 4, np.nan))})
    if client == 3:
        content["metrics"]["num-examples"] = 0
    if client == 4:
        content["arrays"] = ArrayRecord({"b": arrays["b"]})
    if client == 5:
        content["arrays"] = ArrayRecord({**arrays, "b": Array(np.zeros(3, np.float32))})
    if client == 6:
        content["more"] = ArrayRecord({"b": arrays["b"]})
    if client == 7:
        content["arrays"] = ArrayRecord({**arrays, "b": Array(np.full(WIDTH - 4, np.inf))})
    return None


BROKEN = range(8)


@pytest.mark.parametrize(
    "kind",
    ["fedavg", "pina", "pina-spectral", "pina-server-points", "pina-coded", "ifca", "fednova"],
)
def test_a_client_that_fails_contributes_zeros_and_looks_like_any_other(kind: str) -> None:
    problem = Problem()
    _, grid = run(
        make_strategy(kind, make_plan(kind)), problem, grid_of(our_app(problem, spoil=spoiled))
    )
    node_of = {c: n for n, c in ((n, client_of(x)) for n, x in grid.contexts.items())}
    training = [
        (wire.read_round(asked.content)[0].phase, reply)
        for asked, reply in zip(grid.asked, grid.replies, strict=True)
        if asked.metadata.message_type == "train"
    ]
    shapes: dict[tuple[str, int], set[Any]] = {}
    for phase, reply in training:
        assert not reply.has_error()
        assert [list(r) for r in reply.content.array_records.values()] == [["sum"]]
        assert list(reply.content) == ["contribution"]
        vector = wire.read_contribution(reply)
        size = len(recorddict_to_proto(reply.content).SerializeToString())
        shapes.setdefault((phase, len(vector)), set()).add((vector.dtype.str, size))
        client = {node: k for k, node in node_of.items()}[reply.metadata.src_node_id]
        assert vector.any() == (phase != "train" or client not in BROKEN)
    assert all(len(found) == 1 for found in shapes.values())  # all replies have the same bytes


def test_the_run_with_failing_clients_is_the_run_in_which_they_send_zeros() -> None:
    """No other client is affected; the oracle adds up the healthy clients' updates by hand."""
    problem = Problem()
    plan = make_plan("fedavg", rounds=1, private=False)
    strategy = make_strategy("fedavg", dataclasses.replace(plan, private=True, budget=None))
    found, _ = run(strategy, problem, grid_of(our_app(problem, spoil=spoiled)))
    start = start_models(1)
    healthy = [problem.update(k, start[0]) for k in range(CLIENTS) if k not in BROKEN]
    clipped = [u * min(1.0, 2.0 / np.linalg.norm(u)) for u in healthy]
    expected = wire.flatten(start)[0] + np.sum(clipped, axis=0) / CLIENTS
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


def test_a_reply_with_an_error_and_a_failing_loss_or_embedding_are_zeros_too() -> None:
    problem = Problem()
    for fault in ("error", "loss", "embedding", "shape", "nan"):

        def embed(context: Context, fault: str = fault) -> np.ndarray:
            if fault == "embedding":
                raise ValueError("client data")
            return np.full(WIDTH + (fault == "shape"), np.nan if fault == "nan" else 0.1)

        def loss(arrays: ArrayRecord, context: Context, fault: str = fault) -> float:
            if fault == "loss":
                raise ValueError("client data")
            return float(arrays["b"].numpy().sum())

        app = ClientApp(embedding=embed, loss=loss)
        if fault == "error":

            @app.train()
            def train(message: Message, context: Context) -> Message:
                return Message(Error(1, "client data"), reply_to=message)

        else:
            plain_app(problem, app)
        # Rounds 1-3 embed, the others take loss and embedding.
        strategy = make_strategy("pina", make_plan("pina", rounds=4))
        _, grid = run(strategy, problem, grid_of(app))
        replies = [r for r in grid.replies if "clients" not in r.content]
        assert [list(r.content) for r in replies] == [["contribution"]] * len(replies)
        usable = [bool(wire.read_contribution(reply).any()) for reply in replies]
        initial, later = 3 * CLIENTS, 4 * CLIENTS
        first = fault in ("error", "loss")
        wanted = [first] * initial + [False] * later
        assert usable == wanted, fault


def test_nothing_but_protected_rounds_is_answered_after_a_private_round() -> None:
    problem, seen = Problem(), []
    app = our_app(problem, seen=seen)

    @app.query("secrets")
    def secrets(message: Message, context: Context) -> Message:
        raise AssertionError("must not be called")

    strategy = make_strategy("fedavg", make_plan("fedavg", rounds=1))
    _, grid = run(strategy, problem, grid_of(app))
    context = next(iter(grid.contexts.values()))
    public = dataclasses.replace(strategy.request(1), private=False)
    arrays = record(start_models(1)[0])
    plain = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})
    unprotected = wire.round_content(public, [0], wire.pack_models(start_models(1)))
    seen.clear()
    for message_type, content in (
        (MessageType.EVALUATE, plain),
        (MessageType.TRAIN, plain),
        (MessageType.TRAIN, unprotected),
        ("query.secrets", plain),
    ):
        message = Message(content=content, message_type=message_type, dst_node_id=1)
        reply = app(message, context)
        assert reply.has_error()
        assert "refused" in reply.error.reason
    assert seen == []
    # A new run has a new state; a client can also be told to refuse from the start.
    fresh = dataclasses.replace(context, state=RecordDict())
    message = Message(content=plain, message_type=MessageType.EVALUATE, dst_node_id=1)
    assert not app(message, fresh).has_error()
    strict = ClientApp(private=True)
    plain_app(problem, strict)
    assert strict(message, fresh).has_error()


def test_error_text_stays_in_the_clients_log_in_private_and_is_told_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problem = Problem()

    def guarded(message: Message, context: Context) -> Message:
        try:
            return our_app(problem, spoil=fails)(message, context)
        except RuntimeError as error:  # as Flower does
            return Message(Error(2, str(error)), reply_to=message)

    def fails(client: int, content: RecordDict) -> None:
        if client == 3:
            raise RuntimeError("secret of client 3")

    for private in (True, False):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="flwr"):
            strategy = make_strategy("fedavg", make_plan("fedavg", rounds=1, private=private))
            _, grid = run(strategy, problem, grid_of(guarded))
        errors = [reply for reply in grid.replies if reply.has_error()]
        assert len(errors) == (0 if private else 1)
        levels = {r.levelname for r in caplog.records if "secret of client 3" in r.getMessage()}
        assert levels == ({"ERROR"} if private else {"WARNING"})  # the client's; the server's


# --- who lives here, and what the code must offer ------------------------------------------


def query(needs: ConfigRecord | None = None) -> Message:
    content = RecordDict() if needs is None else wire.add_needs(RecordDict(), needs)
    return Message(content=content, message_type="query.clients", dst_node_id=1)


def context(**node: int) -> Context:
    return Context(1, 1, {k.replace("_", "-"): v for k, v in node.items()}, RecordDict(), {})


def test_the_query_is_answered_by_partition_or_by_client_id() -> None:
    InProcessGrid(lambda message, context: message, 1)  # lets messages be made
    app = ClientApp()
    simulated = app(query(), context(partition_id=3, num_partitions=8))
    assert wire.read_hosted(simulated) == ([3], 8)
    assert wire.read_hosted(app(query(), context(client_id=5))) == ([5], 0)
    with pytest.raises(ValueError, match='--node-config "client-id=NUMBER"'):
        app(query(), context())


def test_code_that_cannot_take_part_stops_the_run_at_once_and_says_why() -> None:
    problem = Problem()
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise AssertionError("must not be called")

    with pytest.raises(RuntimeError, match=r"cannot take part: .*@app\.evaluate\(\)"):
        run(make_strategy("ifca", make_plan("ifca")), problem, grid_of(app))
    with pytest.raises(RuntimeError, match=r"cannot take part: .*ClientApp\(embedding=\.\.\.\)"):
        run(make_strategy("pina", make_plan("pina")), problem, grid_of(app))
    unneeded = ClientApp(loss=lambda arrays, context: 0.0)
    plain_app(problem, unneeded)
    run(make_strategy("ifca", make_plan("ifca")), problem, grid_of(unneeded))


def test_flowers_own_clientapp_is_refused_with_what_to_change() -> None:
    problem = Problem()
    app = plain_app(problem, flower.ClientApp())

    def guarded(message: Message, context: Context) -> Message:
        try:
            return app(message, context)
        except ValueError as error:
            return Message(Error(2, str(error)), reply_to=message)

    strategy = make_strategy("fedavg", make_plan("fedavg"))
    strategy.roster.wait_s = 0.0
    with pytest.raises(RuntimeError, match=r"`from strategies\.clientapp import ClientApp`"):
        run(strategy, problem, grid_of(guarded))


def test_fednova_without_a_number_of_steps() -> None:
    """A loud error without privacy; zeros and a line in the client's log with it."""
    problem = Problem()

    def forget(client: int, content: RecordDict) -> None:
        del content["metrics"]["num-steps"]

    app = our_app(problem, spoil=forget)
    with pytest.raises(ValueError, match="num-steps"):
        run(make_strategy("fednova", make_plan("fednova", private=False)), problem, grid_of(app))
    _, grid = run(make_strategy("fednova", make_plan("fednova")), problem, grid_of(app))
    assert not any(wire.read_contribution(reply).any() for reply in grid.replies[CLIENTS:])


def test_an_evaluate_function_with_two_losses_is_refused() -> None:
    problem = Problem()
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise AssertionError("must not be called")

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"my_loss": 0.0, "your_loss": 1.0})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

    with pytest.raises(ValueError, match=r"exactly one must be a loss"):
        run(make_strategy("ifca", make_plan("ifca", private=False)), problem, grid_of(app))


# --- the same app with Flower's strategies, and any arrays -----------------------------------


def test_flowers_fedavg_does_not_notice_our_clientapp() -> None:
    problem = Problem()
    results = []
    for app in (ClientApp(), flower.ClientApp()):
        strategy = FedAvg(min_available_nodes=2)
        result = strategy.start(
            InProcessGrid(plain_app(problem, app), CLIENTS), record(start_models(1)[0]), 3
        )
        results.append(result)
    for name, array in results[0].arrays.items():  # the order of a mean's terms is Flower's own
        np.testing.assert_allclose(array.numpy(), results[1].arrays[name].numpy(), atol=1e-6)
    for ours, theirs in zip(*(r.train_metrics_clientapp.values() for r in results), strict=True):
        assert dict(ours) == pytest.approx(dict(theirs))
        assert set(ours) == {"train_loss", "num-steps"}


def test_dtypes_and_order_are_kept_and_integers_are_not_trained() -> None:
    """A BatchNorm's counter would fill the clipping norm; a scikit-learn model is float64."""
    seen: list[ArrayRecord] = []
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        seen.append(message.content["arrays"])
        moved = {n: a.numpy() + np.ones((), a.numpy().dtype) for n, a in seen[-1].items()}
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": record(moved), "metrics": metrics}), reply_to=message)

    start = {
        "z": np.zeros((2, 2)),
        "count": np.array(7),
        "a": np.zeros(3, np.float32),
    }
    plan = make_plan("fedavg", private=False, rounds=3)
    strategy = make_strategy("fedavg", plan, Aggregation(threshold=100.0, rescale="none"))
    result = strategy.start(grid_of(app), record(start), num_rounds=3)
    for arrays in (*seen, result.arrays):
        assert list(arrays) == list(start)
        assert [array.dtype for array in arrays.values()] == ["float64", "int64", "float32"]
        assert arrays["count"].numpy() == 7
    np.testing.assert_allclose(result.arrays["z"].numpy(), 3.0, atol=1e-6)
    np.testing.assert_allclose(result.arrays["a"].numpy(), 3.0, atol=1e-6)


def test_fednova_reads_the_steps_of_each_client() -> None:
    """Clients with 1, 2, 3 steps of size one each: FedNova moves by effective_steps, not by 2."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        steps = 1 + client_of(context) % 3
        moved = {
            name: a.numpy() + np.float32(steps) for name, a in message.content["arrays"].items()
        }
        metrics = MetricRecord({"num-examples": 1, "num-steps": steps})
        return Message(RecordDict({"arrays": record(moved), "metrics": metrics}), reply_to=message)

    strategy = FedNova.planned(clients=CLIENTS, rounds=1, epsilon=None, effective_steps=1.5)
    result = strategy.start(grid_of(app), record({"w": np.zeros(4, np.float32)}), num_rounds=1)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1.5, atol=1e-6)
