"""What a device computes: its gradient (Step 1), and local SGD steps (Eq. 2)."""

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


def train(
    model: nn.Module,
    optimiser: torch.optim.SGD,
    start: State,
    data: DeviceData,
    *,
    steps: int,
    iteration: int,
    batch_size: int,
    seed: int | None,
    device: int,
) -> State:
    """The state after ``steps`` SGD steps (Eq. 2) from ``start``.

    ``optimiser`` is plain SGD on the parameters of ``model``; it keeps no state between devices.
    The mini-batch of a step depends on the seed, the device and the number of the local iteration
    alone: how steps are grouped into rounds does not change it.
    """
    model.load_state_dict(start)
    count = len(data.labels)
    for step in range(iteration, iteration + steps):
        rng = stream(seed, "batch", step, device)
        chosen = torch.from_numpy(rng.choice(count, min(batch_size, count), replace=False))
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data.images[chosen]), data.labels[chosen]).backward()
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
