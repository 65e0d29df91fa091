"""A simulated federation: who has which images.

The training images are split into clients by Flower's partitioners, and client k
rotates all its images by ``rotations[k mod G]`` degrees (after IFCA): group g is a true cluster.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pina_app.config import PinaConfig
from pina_app.sources import Images, Labels, Source, open_source
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
    """

    images: Images
    labels: Labels
    offsets: NDArray[np.int64]
    groups: NDArray[np.int64]
    test_images: Images
    test_labels: Labels


def load_federation(config: PinaConfig) -> Federation:
    """Load the data set and split it into clients.

    Raises
    ------
    ValueError
        For missing, truncated or malformed data, or too few images for the clients.
    """
    source = open_source(config)
    parts = partition(config, source)
    rotations = config.rotation_list
    groups = np.arange(config.clients) % len(rotations)
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
    return Federation(
        images=np.concatenate(images),
        labels=np.concatenate(labels),
        offsets=np.concatenate([[0], np.cumsum([len(part) for part in labels])]),
        groups=groups,
        test_images=np.stack([rotate(upright, angle) for angle in rotations]),
        test_labels=source.test_labels[tested],
    )


def partition(config: PinaConfig, source: Source) -> list[NDArray[np.intp]]:
    """Indices of every client's images, by one of Flower's partitioners."""
    import datasets
    from flwr_datasets import partitioner as flower

    seed = config.partition_seed
    pool = stream(seed, "partition").permutation(len(source.train_labels))
    if config.partitioner == "iid" and config.images_per_client:
        needed = config.clients * config.images_per_client
        if needed > len(pool):
            raise ValueError(
                f"images-per-client = {config.images_per_client}: {config.clients} clients need "
                f"{needed} images, the data set has {len(pool)}"
            )
        pool = pool[:needed]
    if len(pool) < config.clients:
        raise ValueError(f"clients = {config.clients}: the data set has {len(pool)} images")
    columns = {"index": pool, "label": source.train_labels[pool]}
    if config.partitioner == "iid":
        split: Any = flower.IidPartitioner(config.clients)
    elif config.partitioner == "dirichlet":
        split = flower.DirichletPartitioner(
            config.clients, "label", config.dirichlet_alpha, min_partition_size=1, seed=seed
        )
    else:
        if source.writers is None:
            raise ValueError(
                f"partitioner = 'natural': {config.dataset} does not name the writers of its images"
            )
        columns["writer"] = source.writers[pool]
        split = flower.NaturalIdPartitioner("writer")
    split.dataset = datasets.Dataset.from_dict(columns)
    if split.num_partitions < config.clients:
        raise ValueError(
            f"clients = {config.clients}: {config.dataset} has {split.num_partitions} writers"
        )
    limit = config.images_per_client or None
    return [
        np.sort(np.array(split.load_partition(client)["index"], dtype=np.intp)[:limit])
        for client in range(config.clients)
    ]


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
