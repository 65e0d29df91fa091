"""pfl-research's FederatedAveraging on the same job; run by round.py with the peer's interpreter.

Prints a JSON list: seconds of each central iteration after the first. Usage:
``pfl_round.py CLIENTS IMAGES EPOCHS MODEL IMAGE_SIZE ITERATIONS THREADS``.
"""

import json
import os
import sys
from time import perf_counter

os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from stock_flower.stock_app import create_model, trained
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Module(nn.Module):
    """The ViT with the two methods that pfl wants."""

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def loss(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy."""
        return cross_entropy(self.vit(pixels), labels.long())

    def metrics(self, pixels: Tensor, labels: Tensor) -> dict[str, float]:
        """None: no evaluation is timed."""
        return {}


class Times(TrainingProcessCallback):
    """When every central iteration ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Take the time."""
        self.ends.append(perf_counter())
        return False, Metrics()


def main() -> None:
    """Run the job."""
    clients, images, epochs = (int(value) for value in sys.argv[1:4])
    name, size, iterations, threads = sys.argv[4], *(int(value) for value in sys.argv[5:8])
    torch.set_num_threads(threads)
    vit = create_model(name, size)
    model = PyTorchModel(
        Module(vit),
        lambda parameters, lr: torch.optim.SGD([p for p in parameters if p.requires_grad], lr=lr),
        torch.optim.SGD(trained(vit).values(), lr=1.0),
    )
    rng = np.random.default_rng(0)
    users = [
        Dataset(
            (
                rng.standard_normal((images, 3, size, size), dtype=np.float32),
                rng.integers(10, size=images).astype(np.float32),
            )
        )
        for _ in range(clients)
    ]
    turns = iter(range(10**9))
    data = FederatedDataset(lambda user: users[user], lambda: next(turns) % clients)
    noise = GaussianMechanism(clipping_bound=0.3, relative_noise_stddev=1.0)
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[noise])
    times = Times()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=iterations,
            evaluation_frequency=10**6,
            train_cohort_size=clients,
            val_cohort_size=0,
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_learning_rate=0.01, local_num_epochs=epochs, local_batch_size=images
        ),
        NNEvalHyperParams(local_batch_size=images),
        callbacks=[times],
    )
    print(json.dumps(np.diff(times.ends).tolist()))


if __name__ == "__main__":
    main()
