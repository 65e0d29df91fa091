"""Reduced samples of images, computed once and memory-mapped from a cache on disk.

A file's name is a hash of the weights, the image size and the images, so a stale entry cannot be
hit; writers hold a lock, and a file appears only when it is complete.
"""

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

from pina_app.sources import Images
from pina_app.tails import Tail

_BATCH = 64
_FORMAT = "1"


def to_pixels(tail: Tail, images: Images) -> Tensor:
    """Images (n, H, W[, 3]) as the model's input (n, channels, S, S), resized and normalised."""
    backbone = tail.backbone
    pixels = torch.from_numpy(np.ascontiguousarray(images)).float() / 255
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


def reduce_images(
    tail: Tail, images: Images, weights_key: str, cache_dir: Path | None, what: str
) -> NDArray[np.float32]:
    """Reduced samples (n, ...) of images, from the cache if they are there.

    Parameters
    ----------
    tail : Tail
    images : (n, H, W[, 3]) uint8
    weights_key : str
        Identifies weights and image size, see ``pina_app.model.weights_key``.
    cache_dir : Path or None
        None computes without a cache.
    what : str
        Name for the progress line.
    """
    if cache_dir is None:
        return _compute(tail, images, what)
    digest = hashlib.sha256(
        f"{_FORMAT} {weights_key} {type(tail).__name__} {images.shape}".encode()
    )
    digest.update(np.ascontiguousarray(images).data)
    path = cache_dir / f"samples-{digest.hexdigest()[:24]}.npy"
    cache_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            partial = path.with_suffix(".partial.npy")
            np.save(partial, _compute(tail, images, what))
            partial.replace(path)
    samples: NDArray[np.float32] = np.load(path, mmap_mode="r")
    return samples


def _compute(tail: Tail, images: Images, what: str) -> NDArray[np.float32]:
    device = next(tail.parameters()).device
    parts = []
    started = reported = time.monotonic()
    for first in range(0, len(images), _BATCH):
        pixels = to_pixels(tail, images[first : first + _BATCH]).to(device)
        parts.append(tail.reduce(pixels).cpu().numpy())
        now = time.monotonic()
        if now - reported > 10:
            done = min(first + _BATCH, len(images))
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
    samples: NDArray[np.float32] = np.concatenate(parts).astype(np.float32)
    return samples
