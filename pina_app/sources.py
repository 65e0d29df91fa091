"""Where labelled and public images come from: embedded digits, a ``.npz`` file, a hub id.

The formats of a ``.npz`` file: ``x_train, y_train, x_test, y_test`` (uint8 images), or JPEG files
one after another in ``jpeg_train`` cut at ``offsets_train`` (and the same for test);
``writer_train`` optionally names the natural client of every training image.
"""

import dataclasses
import io
import zipfile
import zlib
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


def read_images(path: str) -> tuple[Images, Labels | None]:
    """Images ``x`` and, if there are any, labels ``y`` of one ``.npz`` file.

    Raises
    ------
    ValueError
        If the file is missing or not of that form.
    """
    fields = _read_npz(path, "data")
    if "x" not in fields:
        raise ValueError(f"data = {path!r}: needs an array x (images, uint8)")
    images, labels = fields["x"], fields.get("y")
    _check_images(images, path, "data")
    if labels is None:
        return images, None
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


# --- local files -----------------------------------------------------------------------------


def _read_npz(path: str, key: str) -> dict[str, NDArray[Any]]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"{key} = {path!r}: no such file")
    try:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array")
        with archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
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
    writers = fields.get("writer_train")
    if writers is not None and writers.shape != (train_count,):
        raise ValueError(f"dataset = {path!r}: writer_train must name {train_count} writers")
    return Source(train_images, labels["train"], test_images, labels["test"], writers, classes)


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
        cuts = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 1
        if (
            encoded.dtype != np.uint8
            or not cuts
            or not 0 <= offsets[0] <= offsets[-1] <= len(encoded)
            or (offsets[1:] < offsets[:-1]).any()
        ):
            raise ValueError(
                f"{key} = {path!r}: jpeg_{part} must be bytes (uint8) that offsets_{part} "
                "(integers, rising, n + 1 for n >= 1 images) cuts"
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
    if "test" not in splits:  # such as FEMNIST: hold back a tenth
        splits = train.train_test_split(test_size=0.1, seed=0)
    train, test = splits["train"], splits["test"]
    image = _column(train, "Image", config.dataset)
    label = _column(train, "ClassLabel", config.dataset)
    classes = train.features[label].num_classes
    for part in (train, test):
        labels = np.array(part[label])
        if labels.min() < 0 or labels.max() >= classes:
            raise ValueError(
                f"dataset = {config.dataset!r}: has labels outside its {classes} classes (0 to "
                f"{classes - 1}), {labels.min()} to {labels.max()}"
            )
    writers: Sequence[str] | None = train["writer_id"] if "writer_id" in train.features else None
    return Source(
        train_images=_hub_images(train, image),
        train_labels=np.array(train[label], dtype=np.int64),
        test_images=_hub_images(test, image),
        test_labels=np.array(test[label], dtype=np.int64),
        writers=None if writers is None else np.array(writers),
        classes=classes,
    )


def number_of_classes(config: PinaConfig) -> int:
    """Classes of the labelled data set, which the head must have."""
    return open_source(config).classes
