"""The small network that the devices train: 28 kB of parameters on 28 x 28 grey images.

Two convolutions with stride 2, one hidden layer of 44; 7,038 float32 numbers (28.2 kB) on
Fashion-MNIST, the paper's "model size 28 kB" (the paper does not give the architecture).
"""

import secrets

import numpy as np
import torch
from torch import nn

from wireless_cfl_app.data import SMALLEST, Task

HIDDEN = 44


def create_model(task: Task, seed: int | None) -> nn.Module:
    """The network for a task, initialised from ``seed`` whatever torch's global state.

    With None the seed comes from the operating system.
    """
    height, width, channels = task.shape
    if min(height, width) < SMALLEST:
        needed = f"{SMALLEST} x {SMALLEST}"
        raise ValueError(f"images of {height} x {width} pixels: the network needs {needed} or more")
    kernel, padding = (5, 0) if min(height, width) >= 16 else (3, 1)

    def halved(size: int) -> int:
        return (size + 2 * padding - kernel) // 2 + 1

    hidden = 8 * halved(halved(height)) * halved(halved(width))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(secrets.randbits(63) if seed is None else seed)
        return nn.Sequential(
            nn.Conv2d(channels, 4, kernel, stride=2, padding=padding),
            nn.ReLU(),
            nn.Conv2d(4, 8, kernel, stride=2, padding=padding),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(hidden, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, task.classes),
        )


def parameters(model: nn.Module) -> int:
    """Trainable numbers of a model."""
    return sum(values.numel() for values in model.parameters())


@torch.no_grad()
def accuracy_and_loss(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, batch: int = 2000
) -> tuple[float, float]:
    """Share of correct images and mean cross-entropy."""
    correct, loss = 0, 0.0
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        logits = model(images[part])
        correct += int((logits.argmax(1) == labels[part]).sum())
        loss += float(nn.functional.cross_entropy(logits, labels[part], reduction="sum"))
    return correct / len(labels), float(np.float64(loss) / len(labels))
