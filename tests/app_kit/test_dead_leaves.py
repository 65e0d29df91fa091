"""Synthetic images: the same for all, varied, with the spectrum of photographs."""

import numpy as np
import pytest

from app_kit import dead_leaves
from app_kit.sources import load_public_images
from strategies.clustering.public_statistics import PUBLIC_SEED


def test_the_setting_names_them() -> None:
    """uint8 images, loaded once, which nobody changes by accident."""
    images = load_public_images("synthetic")
    assert isinstance(images, np.ndarray)
    assert images.shape == (2000, 32, 32, 3)
    assert images.dtype == np.uint8
    assert load_public_images("synthetic") is images
    with pytest.raises(ValueError, match="read-only"):
        images[0] = 0


def test_the_same_seed_gives_the_same_image_and_others_differ() -> None:
    """Server and server's resumption measure the same statistics."""
    first, again = (dead_leaves.dead_leaves(32, 60, np.random.default_rng(1)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    rng = np.random.default_rng(PUBLIC_SEED)
    np.testing.assert_array_equal(dead_leaves.load()[0], dead_leaves.dead_leaves(32, 60, rng))
    images = dead_leaves.load().reshape(2000, -1)
    assert len(np.unique(images[:, :64], axis=0)) == 2000
    assert images.std(axis=1).min() > 5  # none is blank
    assert 90 < images.mean() < 165


@pytest.mark.parametrize("exponent", [0.8, 1.6])
def test_texture_has_the_slope_that_was_drawn(exponent: float) -> None:
    """Amplitude over frequency, by least squares over 40 draws of one exponent."""

    class Fixed(np.random.Generator):
        def uniform(self, low=0.0, high=1.0, size=None):  # type: ignore[no-untyped-def,override]
            return exponent if (low, high) == (0.8, 1.6) else super().uniform(low, high, size)

    rng = Fixed(np.random.PCG64(0))
    power = np.mean(
        [abs(np.fft.fft2(dead_leaves.texture(64, rng)[..., 0])) ** 2 for _ in range(40)], axis=0
    )
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(64), np.fft.fftfreq(64)))
    kept = (frequency > 0.03) & (frequency < 0.45)
    slope = np.polyfit(np.log(frequency[kept]), np.log(power[kept]) / 2, 1)[0]
    assert slope == pytest.approx(-exponent, abs=0.08)


def test_images_have_less_power_at_high_frequencies() -> None:
    """As photographs have: amplitude about 1 / f, slope between -.8 and -1.6 over all images."""
    grey = dead_leaves.load()[:400].mean(axis=3)
    power = np.mean(abs(np.fft.fft2(grey - grey.mean(axis=(1, 2), keepdims=True))) ** 2, axis=0)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(32), np.fft.fftfreq(32)))
    kept = (frequency > 0.04) & (frequency < 0.45)
    slope = np.polyfit(np.log(frequency[kept]), np.log(power[kept]) / 2, 1)[0]
    assert -1.6 < slope < -0.8
