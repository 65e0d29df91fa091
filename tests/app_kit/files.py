"""Small data files in the formats of ``app_kit.npz``."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Arrays = dict[str, NDArray[Any]]


def arrays(train: int = 40, test: int = 12, colour: bool = False, classes: int = 4) -> Arrays:
    """Random images and labels; every class is present; five writers."""
    rng = np.random.default_rng(0)
    shape = (8, 8, 3) if colour else (8, 8)
    return {
        "x_train": rng.integers(0, 256, (train, *shape), dtype=np.uint8),
        "y_train": np.arange(train) % classes,
        "x_test": rng.integers(0, 256, (test, *shape), dtype=np.uint8),
        "y_test": rng.integers(0, classes, test),
        "writer_train": rng.permutation(np.arange(train) % 5),
    }


def as_jpeg(fields: Arrays) -> Arrays:
    """The same data with its images as JPEG files one after another."""
    result = {name: values for name, values in fields.items() if not name.startswith("x_")}
    for part in ("train", "test"):
        files = []
        for image in fields[f"x_{part}"]:
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, "JPEG", quality=95)
            files.append(buffer.getvalue())
        result[f"jpeg_{part}"] = np.frombuffer(b"".join(files), dtype=np.uint8)
        result[f"offsets_{part}"] = np.cumsum([0, *map(len, files)])
    return result


def write(path: Path, fields: Arrays) -> str:
    """Write an ``.npz`` file; returns its path as text."""
    np.savez(path, **fields)  # type: ignore[arg-type]
    return str(path)
