"""A simulated federation: who has which images.

The training images are split into clients by Flower's partitioners, and client k
rotates all its images by ``rotations[k mod G]`` degrees (after IFCA), or by a rotation that has a
configured share of the clients: group g is a true cluster.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from app_kit.partition import partition
from app_kit.source import Images, Labels
from app_kit.sources import open_source
from pina_app.config import PinaConfig
from strategies.randomness import stream


@dataclasses.dataclass(frozen=True)
class Federation:
    """A simulated federation.

    Attributes
    ----------
    images, labels : (N, H, W[, 3]) uint8 and (N,) int64
        Training images, rotated, client after client.
    offsets : (K + 1,)
        Client k owns images ``offsets[k]:offsets[k + 1]``.
    groups : (K,)
        True cluster of every client.
    test_images, test_labels : (G, M, H, W[, 3]) uint8 and (M,) int64
        The same test images in every rotation.
    held_out : (N,)
        Images that their client does not train on but is tested with.
    """

    images: Images
    labels: Labels
    offsets: NDArray[np.int64]
    groups: NDArray[np.int64]
    test_images: Images
    test_labels: Labels
    held_out: NDArray[np.bool_]


def load_federation(config: PinaConfig) -> Federation:
    """Load the data set and split it into clients.

    Raises
    ------
    ValueError
        For missing, truncated or malformed data, or too few images for the clients.
    """
    source = open_source(config.dataset, config.partition_seed)
    parts = partition(config, source)
    rotations = config.rotation_list
    groups = _groups(config)
    images = []
    for client, part in enumerate(parts):
        copies = augment(source.train_images(part), config.augmented_copies, client)
        images.append(rotate(copies, rotations[groups[client]]))
    repeat = max(1, config.augmented_copies)
    labels = [np.tile(source.train_labels[part], repeat) for part in parts]
    if len({image.shape[1:] for image in images}) > 1:
        raise ValueError(
            f"rotations = {config.rotations!r}: images of {images[0].shape[1:3]} pixels are not "
            "square; use 0 and 180 only"
        )
    rng = stream(config.partition_seed, "test-images")
    available = len(source.test_labels)
    count = min(config.test_images or available, available)
    tested = np.sort(rng.permutation(available)[:count])
    upright = source.test_images(tested)
    held = [_held_out(config, client, len(part)) for client, part in enumerate(parts)]
    return Federation(
        images=np.concatenate(images),
        labels=np.concatenate(labels),
        offsets=np.concatenate([[0], np.cumsum([len(part) for part in labels])]),
        groups=groups,
        test_images=np.stack([rotate(upright, angle) for angle in rotations]),
        test_labels=source.test_labels[tested],
        held_out=np.concatenate([np.tile(mask, repeat) for mask in held]),
    )


def _held_out(config: PinaConfig, client: int, images: int) -> NDArray[np.bool_]:
    """A random share of a client's images but the last; copies are on their image's side."""
    order = stream(config.partition_seed, "held-out", client).permutation(images)
    return np.asarray(order < min(round(config.held_out * images), images - 1))


def _groups(config: PinaConfig) -> NDArray[np.int64]:
    """The rotation of every client: in turn, or by the configured shares (at least one each)."""
    clients, rotations = np.arange(config.clients), len(config.rotation_list)
    if not config.share_list:
        return clients % rotations
    ends = np.cumsum(config.share_list) / np.sum(config.share_list) * config.clients
    groups = np.minimum(np.searchsorted(ends, clients + 0.5), rotations - 1)
    for empty in np.flatnonzero(np.bincount(groups, minlength=rotations) == 0):
        groups[np.flatnonzero(groups == np.bincount(groups).argmax())[0]] = empty
    return groups


def rotate(images: Images, degrees: int) -> Images:
    """Rotate images (n, H, W[, 3]) counter-clockwise by a multiple of 90 degrees."""
    return np.ascontiguousarray(np.rot90(images, degrees // 90, axes=(1, 2)))


def augment(images: Images, copies: int, client: int) -> Images:
    """``copies`` fixed versions of every image: itself, then random crops with flips.

    Crops shift by up to an eighth of the height, after padding with zeros, as is usual for
    CIFAR-10. The versions depend on the client's number only, so they can be computed once.
    """
    if copies <= 1:
        return images
    rng = stream(0, "augmentation", client)
    versions = [images]
    height, width = images.shape[1:3]
    pad = height // 8
    margins = [(0, 0), (pad, pad), (pad, pad), (0, 0)][: images.ndim]
    padded = np.pad(images, margins)
    for _ in range(copies - 1):
        version = np.empty_like(images)
        for row, (top, left) in enumerate(rng.integers(0, 2 * pad + 1, (len(images), 2))):
            crop = padded[row, top : top + height, left : left + width]
            version[row] = crop[:, ::-1] if rng.random() < 0.5 else crop
        versions.append(version)
    return np.concatenate(versions)
