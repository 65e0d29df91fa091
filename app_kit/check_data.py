"""``check-data``: whether a device's own file can take part, told on the device and nowhere else.

In a federation an unusable file is silent (a private run answers with zeros), so its owner has to
look before.
"""

import argparse
from collections.abc import Callable

import numpy as np

from app_kit.npz import read_images
from app_kit.source import Images, Labels


def read_own_data(path: str, classes: int | None = None) -> tuple[Images, Labels]:
    """The images and labels of a device's file.

    Raises
    ------
    ValueError
        If the file is missing or unusable, or a label is outside the classes.
    """
    images, labels = read_images(path)
    if labels is None:
        raise ValueError(f"data = {path!r}: needs labels y")
    wrong = labels[(labels < 0) | (labels >= (np.inf if classes is None else classes))]
    if len(wrong):
        allowed = ">= 0" if classes is None else f"in 0 to {classes - 1} (classes = {classes})"
        raise ValueError(f"data = {path!r}: y has the label {wrong[0]}; labels must be {allowed}")
    return images, labels


def describe_data(path: str, classes: int | None = None) -> str:
    """One line on a usable file; ValueError for another one."""
    images, labels = read_own_data(path, classes)
    height, width = images.shape[1:3]
    kind = "grey" if images.ndim == 3 else "colour"
    return (
        f"{path}: usable; {len(images)} {kind} images of {height} x {width} pixels, "
        f"{len(np.unique(labels))} different labels in {labels.min()} to {labels.max()}"
    )


def add_check_data(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    command: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Add the command; returns its parser for options of an app's own."""
    check = commands.add_parser("check-data", help="whether a device can use its data file")
    check.add_argument("data", help=".npz with x (uint8 images) and y (labels)")
    check.add_argument("--classes", type=int, help="number of classes of the run")
    check.set_defaults(command=command)
    return check
