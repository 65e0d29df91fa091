"""A labelled data set, wherever it comes from."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
