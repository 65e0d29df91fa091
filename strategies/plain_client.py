"""Calls functions that were written for Flower's FedAvg, in its Message API or as a NumPyClient.

Message API: records ``arrays`` and ``config``; replies with one ArrayRecord and one MetricRecord.
NumPyClient: Flower's compatibility layer reads ``fitins.*`` and ``evaluateins.*``, and answers with
``fitres.*`` and ``evaluateres.*``; it knows arrays by position, not by name.
"""

import copy
from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from strategies import wire

SAMPLES = ("num-examples", "num_examples")
STEPS = ("num-steps", "num_steps")
Metrics = dict[str, float]


class Caller:
    """The app's own functions for one client in one round.

    Parameters
    ----------
    message : Message
        The round as it came from the server.
    context : Context
        The client's.
    call_next : callable
        The app.
    legacy : bool
        Whether the app is a NumPyClient.
    """

    def __init__(
        self, message: Message, context: Context, call_next: ClientAppCallable, *, legacy: bool
    ) -> None:
        self.message = message
        self.context = context
        self._call_next = call_next
        self._legacy = legacy

    def train(self, model: wire.Model) -> tuple[wire.Model, float | None]:
        """Model after training, and the number of local steps if the function reports it.

        Raises
        ------
        ValueError
            If the reply does not hold the arrays that were sent, or there was nothing to train on.
        """
        content = self._call(MessageType.TRAIN, model)
        records = list(content.array_records.values())
        if len(records) != 1:
            raise ValueError(f"the train function returned {len(records)} ArrayRecords: must be 1")
        metrics = _metrics(content)
        samples = _first(metrics, SAMPLES)
        if samples is not None and not samples > 0:
            raise ValueError("the train function reports no samples")
        if self._legacy:
            found = dict(zip(_in_order(model), records[0].values(), strict=False))
        else:
            found = dict(records[0])
        trained = {name: array.numpy() for name, array in found.items()}
        if _shapes(trained) != _shapes(model) or len(records[0]) != len(model):
            raise ValueError("the train function returned other arrays than those it was sent")
        kept = {name: trained[name].astype(values.dtype) for name, values in model.items()}
        return kept, _first(metrics, STEPS)

    def loss(self, model: wire.Model) -> float:
        """Loss of a model by the app's evaluate function.

        Raises
        ------
        ValueError
            If it reports no loss, or several.
        """
        metrics = _metrics(self._call(MessageType.EVALUATE, model))
        losses = {name: value for name, value in metrics.items() if "loss" in name.lower()}
        if "loss" in losses:
            return losses["loss"]
        if len(losses) != 1:
            raise ValueError(
                f"the evaluate function reports {sorted(metrics)}: exactly one must be a loss; "
                "give ClientApp(loss=...)"
            )
        return next(iter(losses.values()))

    def _call(self, message_type: str, model: wire.Model) -> RecordDict:
        message = copy.copy(self.message)
        message.__dict__["_metadata"] = copy.copy(self.message.metadata)
        message.metadata.message_type = message_type
        arrays = ArrayRecord({name: Array(model[name]) for name in _in_order(model)})
        config = ConfigRecord(dict(wire.read_config(self.message.content)))
        records = ("arrays", "config")
        if self._legacy:
            prefix = "fitins" if message_type == MessageType.TRAIN else "evaluateins"
            records = (f"{prefix}.parameters", f"{prefix}.config")
        message.content = RecordDict(dict(zip(records, (arrays, config), strict=True)))
        reply = self._call_next(message, self.context)
        if reply.has_error():
            raise ValueError(f"the {message_type} function replied with: {reply.error.reason}")
        return reply.content


def _in_order(model: wire.Model) -> list[str]:
    """Names in the order in which arrays are sent; those numbered by Flower go by number.

    A checkpoint may have put "10" before "2", and a NumPyClient knows its arrays by position.
    """
    return sorted(model, key=int) if all(name.isdigit() for name in model) else list(model)


def _shapes(model: wire.Model) -> dict[str, tuple[int, ...]]:
    return {name: values.shape for name, values in model.items()}


def _metrics(content: RecordDict) -> Metrics:
    """All numbers that a function reports; those of a NumPyClient come in several records."""
    found: Metrics = {}
    records: list[Mapping[str, object]] = list(content.metric_records.values())
    records += list(content.config_records.values())
    for record in records:
        for name, value in record.items():
            if isinstance(value, int | float | np.number):
                found[name] = float(value)
    return found


def _first(metrics: Metrics, names: tuple[str, ...]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)
