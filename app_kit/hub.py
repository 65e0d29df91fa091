"""Data sets from the Hugging Face hub."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app_kit.source import Images, Source


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


def load_images(name: str, limit: int = 2000) -> Images:
    """The first images of a data set, as public data."""
    dataset = _load_hub(name, "public-data")["train"]
    column = _column(dataset, "Image", name)
    return _hub_images(dataset, column)(np.arange(min(limit, len(dataset))))


def _column(dataset: Any, kind: str, name: str) -> str:
    for column, feature in dataset.features.items():
        if type(feature).__name__ == kind:
            return str(column)
    raise ValueError(f"dataset = {name!r}: has no column of type {kind}")


def _hub_images(dataset: Any, column: str) -> Callable[[NDArray[np.intp]], Images]:
    return lambda index: np.stack(
        [np.asarray(image.convert("RGB")) for image in dataset.select(index)[column]]
    )


def open_source(name: str) -> Source:
    """A labelled data set; without a test part, a tenth is held back."""
    splits = _load_hub(name, "dataset")
    train = splits["train"]
    if "test" not in splits:  # such as FEMNIST: hold back a tenth
        splits = train.train_test_split(test_size=0.1, seed=0)
    train, test = splits["train"], splits["test"]
    image = _column(train, "Image", name)
    label = _column(train, "ClassLabel", name)
    classes = train.features[label].num_classes
    for part in (train, test):
        labels = np.array(part[label])
        if labels.min() < 0 or labels.max() >= classes:
            raise ValueError(
                f"dataset = {name!r}: has labels outside its {classes} classes (0 to "
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
