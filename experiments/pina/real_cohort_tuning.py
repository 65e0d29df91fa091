"""Settings of ``real_cohort.py``, by private FedAvg alone, on the images set aside.

    python experiments/pina/real_cohort_tuning.py --data DIR --work WORK

A linear head, full batches, one local step, q = 1: a round is one matrix product, so that a grid of
whitening, learning rate and clipping threshold takes seconds. The noise is that of the real cohort
scaled to the 800 clients here. Prints the validation accuracy of every setting.
"""

import dataclasses
import itertools

import numpy as np
import torch
from real_cohort import SETTINGS, contestants
from runs import options
from torch import Tensor
from torch.nn.functional import one_hot

from pina_app import task
from pina_app.classifier import Classifier
from pina_app.methods import method_plan

SEEDS = (0, 1)
GRID = ((0.1, 0.3, 1.0), (0.6, 1.2, 2.4), (0.75, 1.5, 3.0))
"""Whitening damping, learning rate, clipping threshold."""


def train(
    x: Tensor, y: Tensor, rate: float, clip: float, rounds: int, noise: float, seed: int
) -> Tensor:
    """Weights (classes, m + 1) of private FedAvg on clients' features (K, n, m + 1)."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.zeros(10, x.shape[2])
    for _ in range(rounds):
        errors = torch.softmax(x @ weights.T, -1) - one_hot(y, 10)
        updates = -rate * torch.einsum("knc,knm->kcm", errors, x).flatten(1) / x.shape[1]
        updates *= (clip / updates.norm(dim=1, keepdim=True)).clamp(max=1)
        total = updates.sum(0) + noise * clip * torch.randn(updates.shape[1], generator=generator)
        weights = weights + total.view_as(weights) / len(x)
    return weights


def main() -> None:
    """Print a line for each setting and epsilon."""
    chosen = options(__doc__)
    torch.set_num_threads(1)
    run = dataclasses.replace(contestants("equal", 8.0, 100)["fedavg"], part="_tuning")
    config = run.config(chosen.data, chosen.work)
    federation, samples = task.simulated_federation(config)
    model = task.frozen_model(config)
    statistics = {
        damping: task.public_statistics(dataclasses.replace(config, whitening_damping=damping))
        for damping in GRID[0]
    }
    frozen = Classifier(model.tail, statistics[1.0]).frozen_features
    features = frozen(torch.from_numpy(samples[:]))
    tests = [
        frozen(torch.from_numpy(model.reduce(t, "validation")[:])) for t in federation.test_images
    ]
    labels = torch.from_numpy(federation.labels).view(config.clients, -1)
    targets = torch.from_numpy(federation.test_labels)
    for (clients, epsilon), settings in SETTINGS.items():
        case = "equal" if clients == 1000 else "5,000 clients"
        real = contestants(case, epsilon, 0)["fedavg"].config(chosen.data, chosen.work)
        noise = method_plan(real, "fedavg").train.noise_multiplier * config.clients / real.clients
        for damping, rate, clip in itertools.product(*GRID):
            own = statistics[damping]

            def white(rows: np.ndarray, own=own) -> Tensor:
                values = (rows - own.mean) @ own.head.T
                return torch.from_numpy(np.hstack([values, np.ones((len(rows), 1))])).float()

            x = white(features).view(config.clients, -1, features.shape[1] + 1)
            scores = []
            for seed in SEEDS:
                weights = train(x, labels, rate, clip, settings["rounds"], noise, seed)
                scores += [
                    ((white(t) @ weights.T).argmax(1) == targets).float().mean() for t in tests
                ]
            print(
                f"{clients} clients, epsilon {epsilon:g}, damping {damping:g}, rate {rate:g}, "
                f"S {clip:g}: {float(np.mean(scores)):.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
