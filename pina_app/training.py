"""Local training of many clients at once: SGD on reduced samples, batched over the clients.

Every client starts from its own cluster model and takes its own batches. The trained arrays carry
a client axis, everything frozen sees the samples of all clients at once, and the gradient of the
sum of the losses holds every client's own: the result is that of a plain loop over the clients. A
FedProx term ``mu / 2 |w - w_start|^2`` (Li et al., MLSys 2020) can be added; mu = 0 is plain SGD.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from pina_app.classifier import Classifier
from pina_app.model import LORA_B
from strategies.wire import Model


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """E, beta and eta of the paper, and the proximal weight mu."""

    epochs: int
    batch_size: int
    learning_rate: float
    mu: float = 0.0
    train_lora: bool = True
    train_head: bool = True
    clients_at_once: int = 128


def train_clients(
    classifier: Classifier,
    settings: LocalTraining,
    starts: Sequence[Model],
    samples: Sequence[Tensor],
    labels: Sequence[Tensor],
    rngs: Sequence[np.random.Generator],
) -> NDArray[np.float64]:
    """Train every client from its start model; returns the updates (n, D).

    Parameters
    ----------
    classifier : Classifier
    settings : LocalTraining
    starts : n models
        Where each client starts.
    samples, labels : n tensors
        Each client's reduced samples (n_k, ...) and labels (n_k,); n_k >= 1.
    rngs : n generators
        Each client's order of images.

    Returns
    -------
    (n, D) float64 array
        Trained minus start, arrays flattened in the order of their names.
    """
    step = settings.clients_at_once
    blocks = [
        _train_block(
            classifier,
            settings,
            starts[i : i + step],
            samples[i : i + step],
            labels[i : i + step],
            rngs[i : i + step],
        )
        for i in range(0, len(starts), step)
    ]
    return np.concatenate(blocks)


def _train_block(
    classifier: Classifier,
    settings: LocalTraining,
    starts: Sequence[Model],
    samples: Sequence[Tensor],
    labels: Sequence[Tensor],
    rngs: Sequence[np.random.Generator],
) -> NDArray[np.float64]:
    device = classifier.device
    names = sorted(starts[0])
    begin = {
        name: torch.from_numpy(np.stack([model[name] for model in starts])).to(device)
        for name in names
    }
    trainable = [
        name for name in names if (settings.train_lora if name == LORA_B else settings.train_head)
    ]
    current = {
        name: value.clone().requires_grad_(name in trainable) for name, value in begin.items()
    }
    x_all = torch.nn.utils.rnn.pad_sequence(list(samples), batch_first=True).to(device)
    y_all = torch.nn.utils.rnn.pad_sequence(list(labels), batch_first=True).to(device)
    sizes = [len(part) for part in samples]
    rows = torch.arange(len(sizes), device=device)[:, None]
    for _ in range(settings.epochs):
        for index, mask in _batches(sizes, settings.batch_size, rngs):
            chosen, weight = index.to(device), mask.to(device)
            logits = classifier.logits(current, x_all[rows, chosen])
            each = cross_entropy(
                logits.flatten(0, 1), y_all[rows, chosen].flatten(), reduction="none"
            )
            present = weight.sum(dim=1)
            loss = ((each.view_as(weight) * weight).sum(dim=1) / present.clamp(min=1)).sum()
            if settings.mu > 0:
                drifts = [((current[n] - begin[n]) ** 2).flatten(1).sum(dim=1) for n in trainable]
                # A client that is done with its batches must not move.
                loss = loss + settings.mu / 2 * (sum(drifts) * (present > 0)).sum()
            # The clients share no parameter: the gradient of the sum holds every client's own.
            gradients = torch.autograd.grad(loss, [current[name] for name in trainable])
            with torch.no_grad():
                for name, gradient in zip(trainable, gradients, strict=True):
                    current[name] -= settings.learning_rate * gradient
    with torch.no_grad():
        moved = [(current[name] - begin[name]).flatten(start_dim=1) for name in names]
    updates: NDArray[np.float64] = torch.cat(moved, dim=1).cpu().double().numpy()
    return updates


def _batches(
    sizes: Sequence[int], batch_size: int, rngs: Sequence[np.random.Generator]
) -> list[tuple[Tensor, Tensor]]:
    """One epoch: (indices, mask) of shape (n, batch) a step; mask 0 where a client has no image.

    Every client goes through its own images in its own random order.
    """
    largest = max(sizes)
    order = np.zeros((len(sizes), largest), dtype=np.int64)
    mask = np.zeros((len(sizes), largest), dtype=np.float32)
    for row, (size, rng) in enumerate(zip(sizes, rngs, strict=True)):
        order[row, :size] = rng.permutation(size)
        mask[row, :size] = 1
    cuts = range(0, largest, batch_size)
    return [
        (
            torch.from_numpy(order[:, cut : cut + batch_size]),
            torch.from_numpy(mask[:, cut : cut + batch_size]),
        )
        for cut in cuts
    ]
