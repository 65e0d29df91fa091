"""What a device computes: its gradient (Step 1), and local SGD steps (Eq. 2)."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from strategies.randomness import stream
from wireless_cfl_app.data import DeviceData

State = dict[str, torch.Tensor]


def gradient(model: nn.Module, data: DeviceData, batch: int = 2000) -> NDArray[np.float32]:
    """(p,) gradient of the mean loss over all of a device's data, in the order of parameters."""
    model.zero_grad()
    count = len(data.labels)
    for start in range(0, count, batch):
        part = slice(start, start + batch)
        logits = model(data.images[part])
        loss = nn.functional.cross_entropy(logits, data.labels[part], reduction="sum") / count
        loss.backward()
    rows = [p.grad.ravel().numpy() for p in model.parameters() if p.grad is not None]
    return np.concatenate(rows)


@dataclasses.dataclass(frozen=True)
class LocalSteps:
    """What every device does in a round.

    Attributes
    ----------
    steps : int
        tau1 (Eq. 2).
    iteration : int
        Local iterations before this round.
    batch_size : int
    seed : int or None
        A mini-batch depends on the seed, the device and the number of the local iteration alone:
        how steps are grouped into rounds, or devices into nodes, does not change it.
    """

    steps: int
    iteration: int
    batch_size: int
    seed: int | None

    def batch(self, device: int, step: int, data: DeviceData) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels of a device's mini-batch in one of the steps, from 0."""
        rng = stream(self.seed, "batch", self.iteration + step, device)
        count = len(data.labels)
        chosen = torch.from_numpy(rng.choice(count, min(self.batch_size, count), replace=False))
        return data.images[chosen], data.labels[chosen]


def train(
    model: nn.Module,
    optimiser: torch.optim.SGD,
    start: State,
    devices: Mapping[int, DeviceData],
    local: LocalSteps,
) -> State:
    """Mean model of the devices after their local steps, weighted by samples (a part of Eq. 3).

    ``optimiser`` is plain SGD on the parameters of ``model``; it keeps no state between devices.
    One step from a common start is linear in the gradient, so all devices take it together.
    """
    samples = {device: len(data.labels) for device, data in devices.items()}
    if local.steps == 1:
        return _step_together(model, optimiser, start, devices, samples, local)
    states = {}
    for device, data in devices.items():
        model.load_state_dict(start)
        for step in range(local.steps):
            images, labels = local.batch(device, step, data)
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimiser.step()
        states[device] = {name: v.detach().clone() for name, v in model.state_dict().items()}
    return weighted_mean(states, samples)


def _step_together(
    model: nn.Module,
    optimiser: torch.optim.SGD,
    start: State,
    devices: Mapping[int, DeviceData],
    samples: Mapping[int, int],
    local: LocalSteps,
) -> State:
    """The mean of the devices' models after one step: a step along the mean of their gradients."""
    batches = [local.batch(device, 0, data) for device, data in devices.items()]
    total = sum(samples.values())
    weights = torch.cat(
        [
            torch.full((len(labels),), samples[device] / total / len(labels))
            for device, (_, labels) in zip(devices, batches, strict=True)
        ]
    )
    model.load_state_dict(start)
    optimiser.zero_grad()
    logits = model(torch.cat([images for images, _ in batches]))
    labels = torch.cat([labels for _, labels in batches])
    (nn.functional.cross_entropy(logits, labels, reduction="none") @ weights).backward()
    optimiser.step()
    return {name: values.detach().clone() for name, values in model.state_dict().items()}


def weighted_mean(states: Mapping[int, State], samples: Mapping[int, int]) -> State:
    """Mean of several devices' states, weighted by their samples (a part of Eq. 3)."""
    total = sum(samples.values())
    first = next(iter(states.values()))
    weights = torch.tensor([samples[device] / total for device in states], dtype=torch.float64)
    return {
        name: torch.tensordot(
            weights, torch.stack([s[name] for s in states.values()]).double(), 1
        ).to(values.dtype)
        for name, values in first.items()
    }
