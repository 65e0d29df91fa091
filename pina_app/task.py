"""What a process needs to compute: the reduced frozen model, and the data of its clients."""

import dataclasses
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app_kit.check_data import read_own_data
from app_kit.source import Images
from app_kit.sources import load_public_images, open_source
from pina_app.config import PinaConfig
from pina_app.datasets import Federation, load_federation
from pina_app.features import Cache, Samples, reduce_images
from pina_app.model import create_backbone, weights_key
from pina_app.tails import Tail, create_tail
from strategies.clustering.public_statistics import (
    PublicStatistics,
    measure,
    pseudo_clients,
    without_public_data,
)


@dataclasses.dataclass(frozen=True)
class FrozenModel:
    """The reduced model and the key under which its samples are cached."""

    tail: Tail
    key: str
    cache: Cache | None
    dtype: str

    def reduce(self, images: Images, what: str) -> Samples:
        """Reduced samples of images, cached."""
        return reduce_images(self.tail, images, self.key, self.cache, what, self.dtype)


@dataclasses.dataclass(frozen=True)
class ClientData:
    """Reduced samples, labels and true group of one client; the group is known in simulation."""

    samples: Tensor
    labels: Tensor
    group: int

    @property
    def usable(self) -> bool:
        """Whether there is anything to train on."""
        return len(self.labels) > 0 and bool(torch.isfinite(self.samples).all())

    def within(self, classes: int | None) -> "ClientData":
        """These data, or nothing if a label is outside the classes (None: not checked)."""
        if classes is None or not len(self.labels):
            return self
        good = int(self.labels.min()) >= 0 and int(self.labels.max()) < classes
        return self if good else ClientData.nothing()

    @staticmethod
    def nothing() -> "ClientData":
        """Data of a client that cannot take part."""
        return ClientData(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64), -1)


@lru_cache(maxsize=1)
def frozen_model(config: PinaConfig) -> FrozenModel:
    """Create the model once a process."""
    device = _device(config.device)
    backbone = create_backbone(config)
    adapted = config.trainable == "lora+head"
    tail = create_tail(backbone, config.lora_targets, adapted=adapted)
    key = weights_key(config, backbone)  # with the LoRA's A, which the samples depend on
    cache = None
    if config.cache_dir is not None:
        cache = Cache(Path(config.cache_dir).expanduser(), int(config.cache_gb * 1e9))
    return FrozenModel(tail.to(device), key, cache, config.feature_dtype)


@lru_cache(maxsize=1)
def simulated_federation(config: PinaConfig) -> tuple[Federation, Samples]:
    """The federation and the reduced samples of all its clients, once a process."""
    federation = load_federation(config)
    return federation, frozen_model(config).reduce(federation.images, "the clients' images")


def simulated_client(config: PinaConfig, client: int, *, held_out: bool = False) -> ClientData:
    """What one simulated client trains on, or the images that are held out to test it."""
    federation, samples = simulated_federation(config)
    first, end = federation.offsets[client : client + 2]
    own = np.arange(first, end)
    own = own[federation.held_out[own] == held_out]
    return ClientData(
        torch.from_numpy(samples[own]),
        torch.from_numpy(federation.labels[own]),
        int(federation.groups[client]),
    )


@lru_cache(maxsize=1)
def device_client(config: PinaConfig, path: str) -> ClientData:
    """Data of the one client that a device hosts, from its own file.

    Raises
    ------
    ValueError
        If the file is unusable.
    """
    images, labels = read_own_data(path)
    samples = frozen_model(config).reduce(images, "this device's images")
    return ClientData(torch.from_numpy(samples[:]), torch.from_numpy(labels), -1)


def number_of_classes(config: PinaConfig) -> int:
    """As configured (a deployment), or those of the data set."""
    if config.classes is not None:
        return config.classes
    return open_source(config.dataset, config.partition_seed).classes


def public_statistics(config: PinaConfig) -> PublicStatistics:
    """Whiteners from the public images that the configuration names."""
    features = public_features(config)
    if features is None:
        return without_public_data(frozen_model(config).tail.width, config.dimensions)
    return measure(features, config.public_data, config.dimensions, config.whitening_damping)


def public_features(config: PinaConfig) -> NDArray[np.float32] | None:
    """Features of the public images; None without public data."""
    from pina_app.classifier import Classifier

    images = load_public_images(config.public_data)
    if images is None:
        return None
    model = frozen_model(config)
    samples = torch.from_numpy(model.reduce(images, "the public images")[:])
    nothing = without_public_data(model.tail.width, config.dimensions)
    return Classifier(model.tail, nothing).frozen_features(samples)


def server_points(config: PinaConfig, statistics: PublicStatistics) -> NDArray[np.float64]:
    """Embeddings of public pseudo-clients, as large as a typical client."""
    features = public_features(config)
    if features is None:
        raise ValueError(f"public-data = {config.public_data!r}: has no images for server-points")
    images = config.images_per_client
    if not images:
        source = open_source(config.dataset, config.partition_seed)
        images = max(1, len(source.train_labels) // config.clients)
    return pseudo_clients(features, statistics, images)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device = 'cuda': no CUDA device is available; use 'auto' or 'cpu'")
    return name
