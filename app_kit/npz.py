"""Data sets in ``.npz`` files.

``x_train, y_train, x_test, y_test`` (uint8 images), or JPEG files one after another in
``jpeg_train`` cut at ``offsets_train`` (and the same for test); ``writer_train`` optionally names
the natural client of every training image.
"""

import io
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from app_kit.source import Images, Labels, Source


def read_images(path: str) -> tuple[Images, Labels | None]:
    """Images ``x`` and, if there are any, labels ``y`` of one ``.npz`` file.

    Raises
    ------
    ValueError
        If the file is missing or not of that form.
    """
    fields = read_npz(path, "data")
    if "x" not in fields:
        raise ValueError(f"data = {path!r}: needs an array x (images, uint8)")
    images, labels = fields["x"], fields.get("y")
    _check_images(images, path, "data")
    if labels is None:
        return images, None
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise ValueError(f"data = {path!r}: y must hold one integer label for each image")
    return images, labels.astype(np.int64)


def read_npz(path: str, key: str) -> dict[str, NDArray[Any]]:
    """All arrays of a file; ``key`` is the setting that names it."""
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


def open_source(path: str) -> Source:
    """A labelled data set in a file.

    Raises
    ------
    ValueError
        If the file is missing, damaged or not of that form.
    """
    fields = read_npz(path, "dataset")
    train_images, train_count = npz_images(fields, "train", path, "dataset")
    test_images, test_count = npz_images(fields, "test", path, "dataset")
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


def npz_images(
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
