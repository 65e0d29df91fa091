"""Which device has which images, and the test images."""

import dataclasses
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from app_kit.check_data import read_own_data
from app_kit.partition import partition
from app_kit.source import Images, Source
from app_kit.sources import open_source
from strategies.randomness import stream
from wireless_cfl_app.config import WirelessConfig

SMALLEST = 8
"""Pixels of a side that the network needs."""


@dataclasses.dataclass(frozen=True)
class DeviceData:
    """A device's images (n, channels, height, width), in [-1, 1], and labels (n,)."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Task:
    """The shape of an image (height, width, channels) and the number of classes."""

    shape: tuple[int, int, int]
    classes: int


def to_pixels(images: Images) -> torch.Tensor:
    """Images (n, H, W[, 3]) uint8 as (n, channels, H, W) float32 in [-1, 1]."""
    pixels = torch.from_numpy(np.ascontiguousarray(images)).float() / 127.5 - 1
    return pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()


@lru_cache(maxsize=1)
def _split(config: WirelessConfig) -> tuple[Source, list[NDArray[np.intp]]]:
    source = open_source(config.dataset, config.partition_seed)
    return source, partition(config, source)


def task(config: WirelessConfig) -> Task:
    """What a model must fit: as configured (a deployment), or the data set."""
    if config.classes is not None and config.shape is not None:
        return Task(config.shape, config.classes)
    source, _ = _split(config)
    shape = source.train_images(np.array([0])).shape[1:]
    return Task((shape[0], shape[1], shape[2] if len(shape) == 3 else 1), source.classes)


@lru_cache(maxsize=128)
def simulated_device(config: WirelessConfig, device: int) -> DeviceData:
    """Data of one simulated device."""
    source, parts = _split(config)
    own = parts[device]
    labels = torch.from_numpy(source.train_labels[own])
    return DeviceData(to_pixels(source.train_images(own)), labels)


def own_data(path: str) -> DeviceData:
    """Data of a real device, from its own file.

    Raises
    ------
    ValueError
        If the file is unusable or has no labels.
    """
    images, labels = read_own_data(path)
    return DeviceData(to_pixels(images), torch.from_numpy(labels))


def check_shape(path: str, expected: str | None) -> None:
    """Refuse a device's file whose images the network cannot take (``expected``: image-shape).

    Raises
    ------
    ValueError
        If they are too small, or have another shape than the run's.
    """
    channels, height, width = own_data(path).images.shape[1:]
    found = f"{height}x{width}x{channels}"
    if expected is not None and found != expected:
        raise ValueError(f"data = {path!r}: images of shape {found}; image-shape is {expected}")
    if min(height, width) < SMALLEST:
        raise ValueError(
            f"data = {path!r}: images of {height} x {width} pixels; the network needs "
            f"{SMALLEST} x {SMALLEST} or more"
        )


def test_data(config: WirelessConfig) -> DeviceData:
    """The test images, all of them or ``test-images`` drawn once."""
    source, _ = _split(config)
    available = len(source.test_labels)
    count = min(config.test_images or available, available)
    order = stream(config.partition_seed, "test-images").permutation(available)
    chosen = np.sort(order[:count])
    labels = torch.from_numpy(source.test_labels[chosen])
    return DeviceData(to_pixels(source.test_images(chosen)), labels)


def label_counts(config: WirelessConfig) -> NDArray[np.int64]:
    """(U, classes) images of every class on every simulated device."""
    source, parts = _split(config)
    rows = [np.bincount(source.train_labels[part], minlength=source.classes) for part in parts]
    return np.stack(rows)
