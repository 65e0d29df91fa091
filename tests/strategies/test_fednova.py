"""FedNova against loops of SGD, and where it ends with unequal local steps."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from app_kit.in_process_grid import InProcessGrid
from strategies import ClusteredStrategy, FedNova
from strategies.clientapp import ClientApp
from strategies.fednova import accumulated_steps
from tests.strategies.plain_apps import client_of

CLIENTS, RATE = 6, 0.02
TARGETS = np.linspace(-1.0, 2.0, CLIENTS)
STEPS = [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_accumulated_steps_are_those_of_a_loop(steps: int, momentum: float) -> None:
    """SGD with momentum on a constant gradient of one and a rate of one: the distance it moves."""
    position = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0
        position += velocity
    assert accumulated_steps(steps, momentum) == pytest.approx(position, rel=1e-12)


@pytest.mark.parametrize(("steps", "momentum"), [(0, 0.0), (np.inf, 0.0), (1, 1.0), (1, -0.1)])
def test_values_out_of_range_are_refused(steps: float, momentum: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        accumulated_steps(steps, momentum)


def app(steps: list[int], momentum: float = 0.0) -> ClientApp:
    """Client k: ``steps[k]`` steps of SGD on (x - target_k)^2 / 2."""
    client_app = ClientApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        k = client_of(context)
        x, velocity = message.content["arrays"]["x"].numpy(), np.zeros(1)
        for _ in range(steps[k]):
            velocity = momentum * velocity + (x - TARGETS[k])
            x = x - RATE * velocity
        content = RecordDict(
            {
                "arrays": ArrayRecord({"x": Array(x)}),
                "metrics": MetricRecord({"num-examples": 1, "num-steps": steps[k]}),
            }
        )
        return Message(content, reply_to=message)

    return client_app


def end(strategy: ClusteredStrategy, client_app: ClientApp, rounds: int) -> float:
    start = ArrayRecord({"x": Array(np.array([5.0]))})
    result = strategy.start(InProcessGrid(client_app, CLIENTS), start, num_rounds=rounds)
    return float(result.arrays["x"].numpy()[0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equal_steps_are_fedavg(momentum: float) -> None:
    steps = [4] * CLIENTS
    common = {"clients": CLIENTS, "rounds": 5, "epsilon": None, "seed": 0}
    fedavg = ClusteredStrategy.planned(**common)  # type: ignore[arg-type]
    fednova = FedNova.planned(effective_steps=4, local_momentum=momentum, **common)  # type: ignore[arg-type]
    expected = end(fedavg, app(steps, momentum), 5)
    assert end(fednova, app(steps, momentum), 5) == pytest.approx(expected, abs=1e-6)
    assert abs(expected - 5.0) > 0.1


def test_unequal_steps_end_at_the_true_optimum_where_fedavg_does_not() -> None:
    """The paper's point. The optimum of the mean objective is the mean target, .5; FedAvg's fixed
    point weighs target k by 1 - (1 - rate)^steps_k."""
    common = {"clients": CLIENTS, "rounds": 100, "epsilon": None, "seed": 0}
    pulls = 1 - (1 - RATE) ** np.array(STEPS)
    biased = float(np.average(TARGETS, weights=pulls))
    fedavg = ClusteredStrategy.planned(**common)  # type: ignore[arg-type]
    assert end(fedavg, app(STEPS), 100) == pytest.approx(biased, abs=1e-5)
    fednova = FedNova.planned(effective_steps=10, **common)  # type: ignore[arg-type]
    found = end(fednova, app(STEPS), 100)
    rates = pulls / np.array(STEPS)  # within a round the gradient shrinks: a bias of second order
    assert found == pytest.approx(float(np.average(TARGETS, weights=rates)), abs=1e-5)
    assert abs(found - 0.5) < abs(biased - 0.5) / 5


def test_the_normalised_direction_is_clipped_not_the_update() -> None:
    """A client with many steps may move far, as long as one step is no longer than S."""
    common = {"clients": CLIENTS, "rounds": 1, "epsilon": None, "seed": 0, "threshold": 0.1}
    fednova = FedNova.planned(effective_steps=3, **common)  # type: ignore[arg-type]
    found = end(fednova, app([1] * CLIENTS), 1)
    steps = RATE * (TARGETS - 5.0)
    assert np.abs(steps).min() < 0.1 < np.abs(steps).max()
    expected = 5.0 + 3 * np.clip(steps, -0.1, 0.1).mean()
    assert found == pytest.approx(float(expected), abs=1e-6)
