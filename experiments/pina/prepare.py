"""Split the real data into what tunes and what is reported, once for all experiments of PINA.

    python experiments/pina/prepare.py --data DIR --work WORK

reads ``cifar10_jpegbytes.npz``, ``fashion_mnist.npz``, ``mnist_writers.npz`` in DIR and writes to
WORK, for each data set, ``NAME.npz`` (training images of the clients, the full test set) and
``NAME_tuning.npz`` (training images, or writers, that no reported run sees; a part of them takes
the place of the test set) and ``NAME_public.npz`` (2,000 of these, without labels). The split has
its own fixed seed.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app_kit import sources
from app_kit.source import Source

SET_ASIDE, VALIDATION = 10_000, 2_000
"""Training images that tune, and how many of them validate."""
WRITERS_SET_ASIDE = 100
PUBLIC_IMAGES = 2_000
"""Of those that tune, which also serve as public data of the same domain."""
SPLIT_SEED = 20261130


def split_images(source: Source, rng: np.random.Generator) -> dict[str, dict[str, NDArray[Any]]]:
    """Images that report and images that tune."""
    order = rng.permutation(len(source.train_labels))
    tuning, validation, clients = np.split(order, [SET_ASIDE - VALIDATION, SET_ASIDE])
    return {
        "": {
            **_part(source, "train", np.sort(clients)),
            "x_test": source.test_images(np.arange(len(source.test_labels))),
            "y_test": source.test_labels,
        },
        "_tuning": {
            **_part(source, "train", np.sort(tuning)),
            **_part(source, "test", np.sort(validation)),
        },
    }


def split_writers(source: Source, rng: np.random.Generator) -> dict[str, dict[str, NDArray[Any]]]:
    """Writers that report and writers that tune; each client tests on images of its own."""
    assert source.writers is not None
    writers = rng.permutation(np.unique(source.writers))
    split = {}
    for name, chosen in (
        ("", writers[WRITERS_SET_ASIDE:]),
        ("_tuning", writers[:WRITERS_SET_ASIDE]),
    ):
        index = np.flatnonzero(np.isin(source.writers, chosen))
        split[name] = {
            **_part(source, "train", index),
            "writer_train": source.writers[index],
            # The app wants a test part; the runs use held-out images of each client instead.
            **_part(source, "test", index[:10]),
        }
    return split


def _part(source: Source, name: str, index: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
    return {f"x_{name}": source.train_images(index), f"y_{name}": source.train_labels[index]}


def main() -> None:
    """Write the files that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for name, file, split in (
        ("cifar10", "cifar10_jpegbytes.npz", split_images),
        ("fashion_mnist", "fashion_mnist.npz", split_images),
        ("writers", "mnist_writers.npz", split_writers),
    ):
        source = sources.open_source(str(options.data / file), 0)
        parts = split(source, np.random.default_rng(SPLIT_SEED))
        parts["_public"] = {"x_train": parts["_tuning"]["x_train"][:PUBLIC_IMAGES]}
        for suffix, arrays in parts.items():
            path = options.work / f"{name}{suffix}.npz"
            np.savez(path, **arrays)
            counts = ", ".join(f"{len(part)} {name}" for name, part in arrays.items())
            print(f"{path}: {counts}")


if __name__ == "__main__":
    main()
