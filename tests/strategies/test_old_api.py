"""Projects written against Flower's NumPyClient and its old server."""

from typing import Any

import numpy as np
import pytest
from flwr import clientapp as flower
from flwr.app import ConfigRecord, Context, Error, Message
from flwr.client import NumPyClient
from flwr.server import Server, SimpleClientManager
from flwr.server.strategy import Strategy as OldStrategy

from app_kit.in_process_grid import InProcessGrid
from strategies import IFCA, ClusteredStrategy, wire
from strategies.client_mod import ClientMod
from strategies.clientapp import ClientApp
from tests.contract.conftest import make_plan, make_strategy
from tests.strategies.plain_apps import record

ARRAYS = 12  # more than ten: "10" sorts before "2" as text


class OldClient(NumPyClient):
    """Pulls array i, by position, towards the client's target times i + 1."""

    def __init__(self, client: int) -> None:
        self.goals = [np.full(i % 3 + 1, (client % 2 + 1) * (i + 1.0)) for i in range(ARRAYS)]
        self.client = client

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
        assert config["lr"] == 0.5
        assert config["server-round"] >= 1
        moved = [p + 0.5 * (g - p) for p, g in zip(parameters, self.goals, strict=True)]
        return moved, 5, {"secret": 1e6 + self.client}

    def evaluate(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
        losses = [np.square(p - g).sum() for p, g in zip(parameters, self.goals, strict=True)]
        return float(sum(losses)), 5, {"accuracy": 0.5, "val_loss": 3.0}


def client_fn(context: Context) -> Any:
    return OldClient(int(context.node_config["partition-id"])).to_client()


def start() -> dict[str, np.ndarray]:
    """Arrays as ``ArrayRecord([ndarray, ...])`` names them."""
    return {str(i): np.zeros(i % 3 + 1) for i in range(ARRAYS)}


def trained(strategy: ClusteredStrategy, app: Any, rounds: int = 8) -> tuple[Any, InProcessGrid]:
    grid = InProcessGrid(app, 4)
    lr = ConfigRecord({"lr": 0.5})
    result = strategy.start(grid, record(start()), num_rounds=rounds, train_config=lr)
    return result.arrays, grid


@pytest.mark.parametrize("as_mod", [False, True])
def test_a_numpyclient_works_unchanged(as_mod: bool) -> None:
    """Arrays arrive by position; the mean of the clients' goals is reached."""
    app: Any = ClientApp(client_fn)
    if as_mod:  # a client_fn app passes every message through its mods, queries too
        app = flower.ClientApp(client_fn, mods=[ClientMod(legacy=True)])
    strategy = ClusteredStrategy.planned(clients=4, rounds=30, epsilon=None, seed=0)
    arrays, _ = trained(strategy, app, 30)
    assert list(arrays) == [str(i) for i in range(ARRAYS)]
    for i, array in enumerate(arrays.values()):
        np.testing.assert_allclose(array.numpy(), 1.5 * (i + 1), atol=1e-5)


def test_a_numpyclient_chooses_its_cluster_by_its_evaluate_method() -> None:
    strategy = IFCA.planned(clients=4, clusters=2, rounds=30, epsilon=None, seed=1)
    between = record({name: values + 1.5 * (int(name) + 1) for name, values in start().items()})
    grid = InProcessGrid(ClientApp(client_fn), 4)
    strategy.start(grid, between, num_rounds=30, train_config=ConfigRecord({"lr": 0.5}))
    ends = sorted(float(model["11"][0]) for model in strategy.models)
    np.testing.assert_allclose(ends, [12.0, 24.0], atol=1e-4)


def test_a_resumed_run_keeps_the_positions() -> None:
    """A checkpoint sorts names as text."""
    strategy = ClusteredStrategy.planned(clients=4, rounds=30, epsilon=None, seed=0)
    shuffled = {name: start()[name] for name in sorted(start())}
    assert list(shuffled)[2] == "10"
    lr = ConfigRecord({"lr": 0.5})
    result = strategy.start(
        InProcessGrid(ClientApp(client_fn), 4), record(shuffled), num_rounds=30, train_config=lr
    )
    for name, array in result.arrays.items():
        np.testing.assert_allclose(array.numpy(), 1.5 * (int(name) + 1), atol=1e-5)


def test_private_replies_of_a_numpyclient_hold_the_protected_vector_alone() -> None:
    strategy = ClusteredStrategy.planned(clients=4, rounds=2, epsilon=8.0, seed=0)
    _, grid = trained(strategy, ClientApp(client_fn), 2)
    replies = [reply for reply in grid.replies if "clients" not in reply.content]
    assert len(replies) == 8
    for reply in replies:
        assert list(reply.content) == ["contribution"]
        assert wire.read_contribution(reply).any()


def test_flowers_own_clientapp_with_a_client_fn_is_told_what_to_change() -> None:
    app = flower.ClientApp(client_fn)

    def guarded(message: Message, context: Context) -> Message:
        try:
            return app(message, context)
        except ValueError as error:  # as Flower does
            return Message(Error(2, str(error)), reply_to=message)

    strategy = ClusteredStrategy.planned(clients=4, rounds=2, epsilon=None)
    strategy.roster.wait_s = 0.0
    with pytest.raises(RuntimeError, match=r"instead of Flower's \(.*also a client_fn\)"):
        trained(strategy, guarded)


def test_flowers_old_server_is_told_what_to_change() -> None:
    strategy: OldStrategy = make_strategy("pina", make_plan("pina"))  # type: ignore[assignment]
    server = Server(client_manager=SimpleClientManager(), strategy=strategy)
    with pytest.raises(TypeError, match=r"PINA needs Flower's Message API: .*@app\.main\(\)"):
        server.fit(num_rounds=1, timeout=None)
