"""Reduced samples of images, computed once and memory-mapped from a bounded cache on disk.

A file's name is a hash of the weights (with the LoRA's A), the image size, the precision and the
images, so a stale entry cannot be hit; writers hold a lock, and a file appears only when it is
complete.
"""

import dataclasses
import hashlib
import time
from logging import INFO
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from flwr.common import log
from numpy.typing import NDArray
from timm.data import resolve_model_data_config
from torch import Tensor
from torch.nn.functional import interpolate

from app_kit.source import Images
from pina_app.tails import Tail

_BATCH = 64
_FORMAT = "1"


def to_pixels(tail: Tail, images: Images) -> Tensor:
    """Images (n, H, W[, 3]) as the model's input (n, channels, S, S), resized and normalised."""
    backbone = tail.backbone
    pixels = torch.from_numpy(np.array(images)).float() / 255
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
    channels = backbone.patch_embed.proj.in_channels
    if channels == 3 and pixels.shape[1] == 1:
        pixels = pixels.expand(-1, 3, -1, -1)
    elif channels == 1 and pixels.shape[1] == 3:
        pixels = pixels.mean(dim=1, keepdim=True)
    size = tuple(backbone.patch_embed.img_size)
    if pixels.shape[2:] != size:
        pixels = interpolate(pixels, size, mode="bicubic", antialias=True, align_corners=False)
    data = resolve_model_data_config(backbone)
    mean, std = (
        torch.tensor(data[key] if channels == len(data[key]) else [0.5] * channels)[:, None, None]
        for key in ("mean", "std")
    )
    return (pixels - mean) / std


@dataclasses.dataclass(frozen=True)
class Cache:
    """Where reduced samples are kept.

    Attributes
    ----------
    directory : Path
    limit_bytes : int
        When the samples in it exceed this, those not used for the longest time are deleted.
    """

    directory: Path
    limit_bytes: int

    def evict(self, keep: Path) -> None:
        """Delete the least recently used samples beyond the limit, but never ``keep``."""
        files = sorted(self.directory.glob("samples-*.npy"), key=lambda file: -file.stat().st_mtime)
        used = 0
        for file in files:
            used += file.stat().st_size
            if used > self.limit_bytes and file != keep:
                # A process that has mapped it keeps its pages until it ends.
                file.unlink(missing_ok=True)


def reduce_images(
    tail: Tail,
    images: Images,
    weights_key: str,
    cache: Cache | None,
    what: str,
    dtype: str = "float32",
) -> NDArray[np.float32]:
    """Reduced samples (n, ...) of images, from the cache if they are there.

    Parameters
    ----------
    tail : Tail
    images : (n, H, W[, 3]) uint8
    weights_key : str
        Identifies weights and image size, see ``pina_app.model.weights_key``.
    cache : Cache or None
        None computes without a cache.
    what : str
        Name for the progress line.
    dtype : {"float32", "bfloat16"}
        Precision of the frozen pass; float32 is the reference.
    """
    if cache is None:
        first = _reduce(tail, images[:1], dtype)
        samples = np.empty((len(images), *first.shape[1:]), dtype=np.float32)
        _fill(samples, tail, images, what, dtype)
        return samples
    digest = hashlib.sha256(
        f"{_FORMAT} {weights_key} {type(tail).__name__} {dtype} {images.shape}".encode()
    )
    digest.update(np.ascontiguousarray(images).data)
    path = cache.directory / f"samples-{digest.hexdigest()[:24]}.npy"
    cache.directory.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            path.touch()  # used now
        else:
            partial = path.with_name(path.stem + ".partial")
            shape = (len(images), *_reduce(tail, images[:1], dtype).shape[1:])
            file = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
            _fill(file, tail, images, what, dtype)
            file.flush()
            partial.replace(path)
            cache.evict(keep=path)
        mapped: NDArray[np.float32] = np.load(path, mmap_mode="r")
    return mapped


def _reduce(tail: Tail, images: Images, dtype: str) -> NDArray[np.float32]:
    """Reduced samples of one batch."""
    device = next(tail.parameters()).device
    pixels = to_pixels(tail, images).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        samples: NDArray[np.float32] = tail.reduce(pixels).float().cpu().numpy()
    return samples


def _fill(samples: NDArray[np.float32], tail: Tail, images: Images, what: str, dtype: str) -> None:
    """Compute all samples, batch by batch, and tell the progress."""
    started = reported = time.monotonic()
    for first in range(0, len(images), _BATCH):
        batch = images[first : first + _BATCH]
        samples[first : first + len(batch)] = _reduce(tail, batch, dtype)
        now = time.monotonic()
        if now - reported > 10:
            done = first + len(batch)
            left = (now - started) / done * (len(images) - done)
            log(
                INFO,
                "[fedclusters] features of %s: %d of %d images, %.0f s left",
                what,
                done,
                len(images),
                left,
            )
            reported = now
