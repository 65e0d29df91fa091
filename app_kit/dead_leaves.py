"""Synthetic images that take the place of public ones: dead leaves, from a public seed.

Shapes of random colour that occlude each other, their sizes after a power law, under a 1/f texture:
this has about the second-order statistics of photographs (Lee, Mumford & Huang, Int. J. of Computer
Vision 41, 2001) and enough in common with them that networks can be pretrained on it (Baradad et
al., NeurIPS 2021). Here it tells how a pretrained model's features spread, without any data.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from strategies.clustering.public_statistics import PUBLIC_SEED

IMAGES, SIZE, LEAVES = 2_000, 32, 60
SMALLEST, LARGEST = 0.03, 0.6
"""Half the size of a leaf, in sizes of the image."""


@lru_cache(maxsize=1)
def load() -> NDArray[np.uint8]:
    """All images (2000, 32, 32, 3); takes some seconds. Not to be written to."""
    rng = np.random.default_rng(PUBLIC_SEED)
    images = np.stack([dead_leaves(SIZE, LEAVES, rng) for _ in range(IMAGES)])
    images.flags.writeable = False
    return images


def dead_leaves(size: int, leaves: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """One image (size, size, 3): ellipses, rectangles and triangles, and a texture."""
    y, x = np.mgrid[:size, :size]
    image = np.ones((size, size, 3)) * rng.uniform(0, 255, 3)
    # The inverse distribution function of a density ~ 1 / r^2.
    radii = size / (rng.uniform(size=leaves) * (1 / LARGEST - 1 / SMALLEST) + 1 / SMALLEST)
    for radius in radii:
        centre, angle = rng.uniform(0, size, 2), rng.uniform(0, np.pi)
        right, down = x - centre[0], y - centre[1]
        across = right * np.cos(angle) + down * np.sin(angle)
        along = (down * np.cos(angle) - right * np.sin(angle)) / rng.uniform(0.4, 1.0)
        inside = (
            across**2 + along**2 < radius**2,
            (abs(across) < radius) & (abs(along) < radius),
            (along > -radius) & (abs(across) < (radius - along) / 2),
        )[rng.integers(3)]
        image[inside] = rng.uniform(0, 255, 3)
    return np.clip(image + texture(size, rng), 0, 255).astype(np.uint8)


def texture(size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Noise (size, size, 3) with the amplitude spectrum f^-a, a in [.8, 1.6]."""
    frequency = np.fft.fftfreq(size)
    distance = np.hypot(frequency[:, None], frequency)
    distance[0, 0] = 1.0
    white = np.fft.fft2(rng.standard_normal((size, size, 3)), axes=(0, 1))
    coloured = white / distance[:, :, None] ** rng.uniform(0.8, 1.6)
    noise = np.fft.ifft2(coloured, axes=(0, 1)).real
    return np.asarray(noise * rng.uniform(5, 50) / noise.std(), dtype=np.float64)
