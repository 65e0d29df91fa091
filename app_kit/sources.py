"""Where labelled and public images come from: digits, a ``.npz`` file, a hub id, nowhere."""

from pathlib import Path

import numpy as np

from app_kit import dead_leaves, digits, hub, npz
from app_kit.source import Images, Source
from strategies.randomness import stream


def load_public_images(public_data: str) -> Images | None:
    """The public images that the setting ``public-data`` names, or None for "none"."""
    if public_data == "none":
        return None
    if public_data == "synthetic":
        return dead_leaves.load()
    if public_data == "digits":
        return digits.load()[0][: digits.PUBLIC_IMAGES]
    if is_hub_id(public_data):
        return hub.load_images(public_data)
    fields = npz.read_npz(public_data, "public-data")
    images, count = npz.npz_images(fields, "train", public_data, "public-data")
    return images(np.arange(count))


def open_source(dataset: str, seed: int) -> Source:
    """The labelled data set that the setting ``dataset`` names.

    ``seed`` decides which digits are for the test; the other data sets come with a test part.
    """
    if dataset == "digits":
        images, labels = digits.load()
        images, labels = images[digits.PUBLIC_IMAGES :], labels[digits.PUBLIC_IMAGES :]
        order = stream(seed, "digits-test").permutation(len(labels))
        test, train = order[: digits.TEST_IMAGES], order[digits.TEST_IMAGES :]
        return Source(
            train_images=lambda index: images[train[index]],
            train_labels=labels[train],
            test_images=lambda index: images[test[index]],
            test_labels=labels[test],
            writers=None,
            classes=10,
        )
    if is_hub_id(dataset):
        return hub.open_source(dataset)
    return npz.open_source(dataset)


def is_hub_id(name: str) -> bool:
    """Whether a name is that of a data set on the Hugging Face hub."""
    parts = name.split("/")
    return len(parts) == 2 and all(parts) and not name.endswith(".npz") and not Path(name).exists()
