"""The embedded data: scikit-learn's handwritten digits, 1,797 grey images of 8 x 8 pixels.

The first 450 of a fixed order are public; the rest is for clients and test.
"""

import numpy as np
from numpy.typing import NDArray

PUBLIC_IMAGES = 450
TEST_IMAGES = 347


def load() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All images (1797, 8, 8) and labels, public ones first, in a fixed shuffled order."""
    # Here, for a device with data of its own should not pay for the import.
    import sklearn.datasets

    bunch = sklearn.datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    return images[order], bunch.target[order].astype(np.int64)
