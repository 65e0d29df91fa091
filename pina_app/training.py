"""Local training of many clients at once: SGD on reduced samples, batched over the clients.

Every client starts from its own cluster model and takes its own batches; ``torch.func`` carries
the client axis, so the result is that of a plain loop over the clients. A FedProx term
``mu / 2 |w - w_start|^2`` (Li et al., MLSys 2020) can be added; mu = 0 is plain SGD.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from pina_app.classifier import Classifier, Parameters
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
    frozen = set() if settings.train_lora else {LORA_B}
    if not settings.train_head:
        frozen |= set(names) - {LORA_B}

    def loss(parameters: Parameters, start: Parameters, x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        each = cross_entropy(classifier.logits(parameters, x), y, reduction="none")
        mean = (each * m).sum() / m.sum().clamp(min=1)
        if settings.mu > 0:
            drift = sum(((parameters[n] - start[n]) ** 2).sum() for n in names if n not in frozen)
            # A client that is done with its batches (m = 0) must not move.
            mean = mean + settings.mu / 2 * drift * (m.sum() > 0)
        return mean

    gradient = vmap(grad(loss))
    x_all = torch.nn.utils.rnn.pad_sequence(list(samples), batch_first=True).to(device)
    y_all = torch.nn.utils.rnn.pad_sequence(list(labels), batch_first=True).to(device)
    sizes = [len(part) for part in samples]
    rows = torch.arange(len(sizes), device=device)[:, None]
    current = dict(begin)
    for _ in range(settings.epochs):
        for index, mask in _batches(sizes, settings.batch_size, rngs):
            chosen = index.to(device)
            gradients = gradient(
                current, begin, x_all[rows, chosen], y_all[rows, chosen], mask.to(device)
            )
            current = {
                name: value if name in frozen else value - settings.learning_rate * gradients[name]
                for name, value in current.items()
            }
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
