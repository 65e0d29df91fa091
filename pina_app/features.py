"""Reduced samples of images, each computed once and memory-mapped from a bounded cache on disk.

The cache holds one pool for each frozen model, named by a hash of the weights (with the LoRA's A),
the image size and the precision: a file of rows and a file with the digest of the image of each
row. A sample is found by its image, so other seeds, splits and data sets that share images share
the work, and a pass that was interrupted goes on where it stopped: a row without a digest, or a
digest without its row, is written over. Who writes to a pool holds its lock; who maps one, or
deletes old ones, holds the directory's for that moment, and no pool is deleted that is written to.
An image's rounding (1e-8) may depend on the size of the batch in which it was first computed.
"""

import dataclasses
import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from logging import INFO
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout
from flwr.common import log
from numpy.typing import NDArray
from timm.data import resolve_model_data_config
from torch import Tensor
from torch.nn.functional import interpolate

from app_kit.source import Images
from pina_app.tails import Tail

_BATCH = 64
_FORMAT = "2"
_DIGEST = hashlib.sha256().digest_size


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
        When the pools in it exceed this, those not used for the longest time are deleted.
    """

    directory: Path
    limit_bytes: int

    def evict(self, keep: Path) -> None:
        """Delete the least recently used pools beyond the limit, but never ``keep``."""
        with self.directory_lock():
            pools = sorted(self.directory.glob("samples-*.rows"), key=lambda f: -f.stat().st_mtime)
            used = 0
            for rows in pools:
                used += rows.stat().st_size
                if used > self.limit_bytes and rows != keep:
                    _delete(rows)

    def directory_lock(self) -> FileLock:
        """Held while a pool is mapped, or old ones are deleted."""
        return FileLock(self.directory / "pools.lock")


def _pool_lock(pool: Path) -> FileLock:
    """Held while rows are added to a pool."""
    return FileLock(pool.with_suffix(".lock"))


def _delete(pool: Path) -> None:
    """Delete a pool, but one that is written to."""
    try:
        with _pool_lock(pool).acquire(timeout=0):
            pool.with_suffix(".digests").unlink(missing_ok=True)
            # A process that has mapped it keeps its pages until it ends.
            pool.unlink(missing_ok=True)
    except Timeout:
        pass


@dataclasses.dataclass(frozen=True)
class Samples:
    """Reduced samples of some images; a part of them is read when it is asked for.

    Attributes
    ----------
    rows : (N, ...) float32 array
        A pool, perhaps mapped from disk.
    index : (n,) integer array
        The row of each image.
    """

    rows: NDArray[np.float32]
    index: NDArray[np.intp]

    def __len__(self) -> int:
        """Return n."""
        return len(self.index)

    def __getitem__(self, part: slice | NDArray[np.intp]) -> NDArray[np.float32]:
        """Copy a part of the samples; ``[:]`` is all of them."""
        return np.asarray(self.rows[self.index[part]])


def reduce_images(
    tail: Tail,
    images: Images,
    weights_key: str,
    cache: Cache | None,
    what: str,
    dtype: str = "float32",
) -> Samples:
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
        parts = list(_in_batches(tail, images, what, dtype))
        return Samples(np.concatenate(parts), np.arange(len(images)))
    key = f"{_FORMAT} {weights_key} {type(tail).__name__} {dtype} {images.shape[1:]}"
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    cache.directory.mkdir(parents=True, exist_ok=True)
    pool = cache.directory / f"samples-{name}.rows"
    wanted = [hashlib.sha256(np.ascontiguousarray(image).data).digest() for image in images]
    shape = _reduce(tail, images[:1], dtype).shape[1:]
    samples = _mapped(cache, pool, wanted, shape)
    if samples is None:
        with _pool_lock(pool):
            _append(tail, images, wanted, pool, shape, what, dtype)
            samples = _mapped(cache, pool, wanted, shape)
            cache.evict(keep=pool)
    assert samples is not None
    return samples


def _mapped(
    cache: Cache, pool: Path, wanted: list[bytes], shape: tuple[int, ...]
) -> Samples | None:
    """Samples of images in a pool, or None if it lacks one."""
    with cache.directory_lock():
        known = _read_digests(pool, shape)
        if not known.keys() >= set(wanted):
            return None
        pool.touch()  # used now
        rows: NDArray[np.float32] = np.memmap(pool, np.float32, "r", shape=(len(known), *shape))
    return Samples(rows, np.array([known[digest] for digest in wanted], dtype=np.intp))


def _read_digests(pool: Path, shape: tuple[int, ...]) -> dict[bytes, int]:
    """Row of every image that the pool holds, which has both its digest and its row."""
    path = pool.with_suffix(".digests")
    if not (path.exists() and pool.exists()):
        return {}
    content = path.read_bytes()
    whole = min(len(content) // _DIGEST, pool.stat().st_size // _row_bytes(shape))
    return {content[i * _DIGEST : (i + 1) * _DIGEST]: i for i in range(whole)}


def _row_bytes(shape: tuple[int, ...]) -> int:
    return np.dtype(np.float32).itemsize * math.prod(shape)


def _append(
    tail: Tail,
    images: Images,
    digests: list[bytes],
    pool: Path,
    shape: tuple[int, ...],
    what: str,
    dtype: str,
) -> None:
    """Compute the images that the pool lacks, and add them batch by batch."""
    known = _read_digests(pool, shape)
    first = {digest: i for i, digest in reversed(list(enumerate(digests)))}
    missing = sorted(i for digest, i in first.items() if digest not in known)
    if not missing:  # another process was faster
        return
    with pool.open("ab") as rows, pool.with_suffix(".digests").open("ab") as names:
        names.truncate(len(known) * _DIGEST)
        rows.truncate(len(known) * _row_bytes(shape))
        done = 0
        for batch in _in_batches(tail, images, what, dtype, missing):
            rows.write(batch.tobytes())
            rows.flush()
            names.write(b"".join(digests[i] for i in missing[done : done + len(batch)]))
            names.flush()
            done += len(batch)


def _reduce(tail: Tail, images: Images, dtype: str) -> NDArray[np.float32]:
    """Reduced samples of one batch."""
    device = next(tail.parameters()).device
    pixels = to_pixels(tail, images).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        samples: NDArray[np.float32] = tail.reduce(pixels).float().cpu().numpy()
    return samples


def _in_batches(
    tail: Tail, images: Images, what: str, dtype: str, index: Sequence[int] | None = None
) -> Iterator[NDArray[np.float32]]:
    """Samples of the images with these indices (or all), batch by batch; tells the progress."""
    chosen = np.arange(len(images)) if index is None else np.array(index, dtype=np.intp)
    started = reported = time.monotonic()
    for first in range(0, len(chosen), _BATCH):
        batch = images[chosen[first : first + _BATCH]]
        yield _reduce(tail, batch, dtype)
        now = time.monotonic()
        if now - reported > 10:
            done = first + len(batch)
            left = (now - started) / done * (len(chosen) - done)
            log(
                INFO,
                "[fedclusters] features of %s: %d of %d images, %.0f s left",
                what,
                done,
                len(chosen),
                left,
            )
            reported = now
