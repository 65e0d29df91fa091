"""Data of a run: embedded digits, a local ``.npz`` file, or a Hugging Face id.

In a simulation the training images are split into clients by Flower's partitioners, and client k
rotates all its images by ``rotations[k mod G]`` degrees (after IFCA): group g is a true cluster.
"""

import dataclasses
import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pina_app import digits
from pina_app.config import PinaConfig
from strategies.randomness import stream

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Source:
    """A labelled data set whose images are decoded on demand.

    ``train_images`` and ``test_images`` take indices and return (n, H, W) or (n, H, W, 3) uint8;
    ``writers`` names the natural client of every training image, if known.
    """

    train_images: Callable[[NDArray[np.intp]], Images]
    train_labels: Labels
    test_images: Callable[[NDArray[np.intp]], Images]
    test_labels: Labels
    writers: NDArray[Any] | None
    classes: int


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
    classes : int
    """

    images: Images
    labels: Labels
    offsets: NDArray[np.int64]
    groups: NDArray[np.int64]
    test_images: Images
    test_labels: Labels
    classes: int


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
        classes=source.classes,
    )


def load_public_images(config: PinaConfig) -> Images | None:
    """The public images that ``public-data`` names, or None."""
    if config.public_data == "none":
        return None
    if config.public_data == "digits":
        return digits.load()[0][: digits.PUBLIC_IMAGES]
    if _is_hub_id(config.public_data):
        dataset = _load_hub(config.public_data, "public-data")["train"]
        column = _column(dataset, "Image", config.public_data)
        return _hub_images(dataset, column)(np.arange(min(2000, len(dataset))))
    fields = _read_npz(config.public_data, "public-data")
    images, count = _npz_images(fields, "train", config.public_data, "public-data")
    return images(np.arange(count))


def load_device_data(path: str) -> tuple[Images, Labels]:
    """Images ``x`` and labels ``y`` of one device's own ``.npz`` file.

    Raises
    ------
    ValueError
        If the file is missing or not of that form.
    """
    fields = _read_npz(path, "data")
    if not {"x", "y"} <= fields.keys():
        raise ValueError(f"data = {path!r}: needs arrays x (images, uint8) and y (labels)")
    images, labels = fields["x"], fields["y"]
    _check_images(images, path, "data")
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise ValueError(f"data = {path!r}: y must hold one integer label for each image")
    return images, labels.astype(np.int64)


def open_source(config: PinaConfig) -> Source:
    """The labelled data set that ``dataset`` names."""
    if config.dataset == "digits":
        images, labels = digits.load()
        images, labels = images[digits.PUBLIC_IMAGES :], labels[digits.PUBLIC_IMAGES :]
        order = stream(config.partition_seed, "digits-test").permutation(len(labels))
        test, train = order[: digits.TEST_IMAGES], order[digits.TEST_IMAGES :]
        return Source(
            train_images=lambda index: images[train[index]],
            train_labels=labels[train],
            test_images=lambda index: images[test[index]],
            test_labels=labels[test],
            writers=None,
            classes=10,
        )
    if _is_hub_id(config.dataset):
        return _hub_source(config)
    return _npz_source(config.dataset)


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


# --- local files -----------------------------------------------------------------------------


def _read_npz(path: str, key: str) -> dict[str, NDArray[Any]]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"{key} = {path!r}: no such file")
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise ValueError(
            f"{key} = {path!r}: not a readable .npz file, perhaps truncated ({error})"
        ) from error


def _npz_source(path: str) -> Source:
    fields = _read_npz(path, "dataset")
    train_images, train_count = _npz_images(fields, "train", path, "dataset")
    test_images, test_count = _npz_images(fields, "test", path, "dataset")
    labels = {}
    for part, count in (("train", train_count), ("test", test_count)):
        values = fields.get(f"y_{part}")
        if values is None or values.shape != (count,) or values.dtype.kind not in "iu":
            raise ValueError(f"dataset = {path!r}: y_{part} must hold {count} integer labels")
        labels[part] = values.astype(np.int64)
    classes = len(np.unique(labels["train"]))
    for part, values in labels.items():
        if values.min() < 0 or values.max() >= classes:
            outside = values[(values < 0) | (values >= classes)][0]
            raise ValueError(
                f"dataset = {path!r}: y_{part} has the label {outside}; with {classes} classes "
                f"labels must be 0 to {classes - 1}, each present in y_train"
            )
    return Source(
        train_images,
        labels["train"],
        test_images,
        labels["test"],
        fields.get("writer_train"),
        classes,
    )


def _npz_images(
    fields: dict[str, NDArray[Any]], part: str, path: str, key: str
) -> tuple[Callable[[NDArray[np.intp]], Images], int]:
    """Access by index, and the number of images, of ``x_PART`` or ``jpeg_PART``."""
    if f"x_{part}" in fields:
        images = fields[f"x_{part}"]
        _check_images(images, path, key)
        return lambda index: images[index], len(images)
    if {f"jpeg_{part}", f"offsets_{part}"} <= fields.keys():
        encoded, offsets = fields[f"jpeg_{part}"], fields[f"offsets_{part}"]
        if encoded.dtype != np.uint8 or offsets.ndim != 1 or offsets[-1] > len(encoded):
            raise ValueError(
                f"{key} = {path!r}: jpeg_{part} must be bytes (uint8) that offsets_{part} cuts"
            )
        return lambda index: _decode(encoded, offsets, index, path, key), len(offsets) - 1
    raise ValueError(
        f"{key} = {path!r}: needs x_{part} (uint8 images) or jpeg_{part} with offsets_{part}"
    )


def _check_images(images: NDArray[Any], path: str, key: str) -> None:
    colour = images.ndim == 4 and images.shape[3] == 3
    if images.dtype != np.uint8 or not (images.ndim == 3 or colour) or len(images) == 0:
        raise ValueError(
            f"{key} = {path!r}: images of shape {images.shape} and dtype {images.dtype}; "
            "must be (n, H, W) or (n, H, W, 3), uint8, n >= 1"
        )


def _decode(
    encoded: Images, offsets: NDArray[np.int64], index: NDArray[np.intp], path: str, key: str
) -> Images:
    try:
        return np.stack(
            [
                np.asarray(
                    Image.open(io.BytesIO(encoded[offsets[i] : offsets[i + 1]].tobytes())).convert(
                        "RGB"
                    )
                )
                for i in index
            ]
        )
    except OSError as error:
        raise ValueError(f"{key} = {path!r}: an image cannot be decoded ({error})") from error


# --- Hugging Face ----------------------------------------------------------------------------


def _is_hub_id(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 2 and all(parts) and not name.endswith(".npz") and not Path(name).exists()


def _load_hub(name: str, key: str) -> Any:
    import datasets

    try:
        return datasets.load_dataset(name)
    except Exception as error:
        raise ValueError(
            f"{key} = {name!r}: could not be had from the Hugging Face hub "
            f"({type(error).__name__}). On a machine with access run "
            f"`huggingface-cli download --repo-type dataset {name}` and copy ~/.cache/huggingface "
            f"here, or set {key} to a local .npz file"
        ) from error


def _column(dataset: Any, kind: str, name: str) -> str:
    for column, feature in dataset.features.items():
        if type(feature).__name__ == kind:
            return str(column)
    raise ValueError(f"dataset = {name!r}: has no column of type {kind}")


def _hub_images(dataset: Any, column: str) -> Callable[[NDArray[np.intp]], Images]:
    return lambda index: np.stack(
        [np.asarray(image.convert("RGB")) for image in dataset.select(index)[column]]
    )


def _hub_source(config: PinaConfig) -> Source:
    splits = _load_hub(config.dataset, "dataset")
    train = splits["train"]
    test = splits["test"] if "test" in splits else None
    if test is None:  # such as FEMNIST: hold back a tenth
        parts = train.train_test_split(test_size=0.1, seed=0)
        train, test = parts["train"], parts["test"]
    image = _column(train, "Image", config.dataset)
    label = _column(train, "ClassLabel", config.dataset)
    writers: Sequence[str] | None = train["writer_id"] if "writer_id" in train.features else None
    return Source(
        train_images=_hub_images(train, image),
        train_labels=np.array(train[label], dtype=np.int64),
        test_images=_hub_images(test, image),
        test_labels=np.array(test[label], dtype=np.int64),
        writers=None if writers is None else np.array(writers),
        classes=train.features[label].num_classes,
    )
