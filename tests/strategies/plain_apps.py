"""Clients written for Flower's FedAvg: they know nothing of this project."""

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr import clientapp
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from strategies import wire
from tests.contract.conftest import STEPS, Problem


def client_of(context: Context) -> int:
    """The client that lives on a node of ``InProcessGrid``."""
    return int(context.node_config["partition-id"])


def record(model: wire.Model) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in model.items()})


def plain_app(
    problem: Problem,
    app: clientapp.ClientApp,
    *,
    spoil: Callable[[int, RecordDict], Any] = lambda client, content: None,
    seen: list[tuple[str, int, RecordDict]] | None = None,
) -> clientapp.ClientApp:
    """Train and evaluate functions for the contract's tiny problem.

    ``spoil`` may change (or replace, or raise instead of) a training reply; ``seen`` collects what
    the functions are called with.
    """
    calls = seen if seen is not None else []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = client_of(context)
        calls.append(("train", client, message.content))
        arrays = message.content["arrays"]
        model = {name: array.numpy() for name, array in arrays.items()}
        (step,) = wire.unflatten(problem.update(client, model)[None], model)
        metrics = {
            "num-examples": 5 + client,
            "num-steps": STEPS,
            "train_loss": float(problem.secrets[client]),
        }
        trained = record({name: model[name] + step[name] for name in model})
        content = RecordDict({"arrays": trained, "metrics": MetricRecord(metrics)})
        return Message(content=spoil(client, content) or content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = client_of(context)
        calls.append(("evaluate", client, message.content))
        model = {name: array.numpy() for name, array in message.content["arrays"].items()}
        distance = float(np.linalg.norm(wire.flatten([model])[0] - problem.targets[client]))
        metrics = MetricRecord({"eval_loss": distance, "eval_acc": 0.5, "num-examples": 9})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

    return app
