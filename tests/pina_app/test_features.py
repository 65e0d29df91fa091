"""From images to cached reduced samples."""

import multiprocessing
import os
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from numpy.typing import NDArray

from pina_app import features
from pina_app.features import Cache, reduce_images, to_pixels
from pina_app.tails import create_tail
from tests.pina_app.vits import random_vit

LIMIT = 10**9


def some_images(
    count: int = 10, seed: int = 0, colour: bool = False, size: int = 8
) -> NDArray[np.uint8]:
    shape = (count, size, size, 3) if colour else (count, size, size)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


# --- pixels ----------------------------------------------------------------------------------


def test_pixels_are_scaled_and_normalised_as_timm_says() -> None:
    """Without resizing: (x / 255 - mean) / std for every channel of the model's own config."""
    vit = timm.create_model("test_vit", img_size=32, num_classes=0).eval()
    images = some_images(3, colour=True, size=32)
    pixels = to_pixels(create_tail(vit), images)
    assert pixels.shape == (3, 3, 32, 32)
    for channel in range(3):
        mean, std = vit.pretrained_cfg["mean"][channel], vit.pretrained_cfg["std"][channel]
        expected = (images[..., channel] / 255 - mean) / std
        np.testing.assert_allclose(pixels[:, channel], expected, atol=1e-5)


def test_grey_images_fill_three_channels_and_colour_becomes_grey() -> None:
    """A grey image equals the colour image with three equal channels."""
    grey = some_images(3)
    colour = np.repeat(grey[..., None], 3, axis=3)
    rgb, one = create_tail(random_vit()), create_tail(random_vit(in_chans=1))
    torch.testing.assert_close(to_pixels(rgb, grey), to_pixels(rgb, colour))
    torch.testing.assert_close(to_pixels(one, grey), to_pixels(one, colour))
    np.testing.assert_allclose(to_pixels(one, grey)[:, 0], grey / 127.5 - 1, atol=1e-6)


@pytest.mark.parametrize("size", [5, 8, 20, 64])
def test_images_are_resized_to_the_model(size: int) -> None:
    """A constant image stays constant, a left-right edge stays one, whatever the size."""
    tail = create_tail(random_vit(img_size=16))
    flat = np.full((1, size, size), 100, dtype=np.uint8)
    pixels = to_pixels(tail, flat)
    assert pixels.shape == (1, 3, 16, 16)
    mean, std = timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD
    for channel in range(3):
        expected = (100 / 255 - mean[channel]) / std[channel]
        np.testing.assert_allclose(pixels[0, channel], expected, atol=1e-4)
    edge = flat.copy()
    edge[:, :, size // 2 :] = 200
    columns = to_pixels(tail, edge)[0, 0].mean(dim=0)
    rows = to_pixels(tail, edge)[0, 0].mean(dim=1)
    assert columns[-1] - columns[0] > 0.5
    assert rows.max() - rows.min() < 1e-4


# --- the cache -------------------------------------------------------------------------------


class Spy:
    """Counts computations of features."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.compute = features._fill
        monkeypatch.setattr(features, "_fill", self)

    def __call__(self, *arguments: object) -> None:
        self.count += 1
        self.compute(*arguments)  # type: ignore[arg-type]


def test_samples_are_the_tails_whatever_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are glued in order."""
    tail = create_tail(random_vit())
    images = some_images(10)
    expected = tail.reduce(to_pixels(tail, images))
    for batch in (1, 3, 10, 64):
        monkeypatch.setattr(features, "_BATCH", batch)
        samples = reduce_images(tail, images, "key", None, "test")
        assert samples.dtype == np.float32
        np.testing.assert_allclose(samples, expected, rtol=1e-4, atol=1e-5)


def test_a_hit_equals_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call computes nothing and gives the same bits."""
    spy = Spy(monkeypatch)
    tail, images = create_tail(random_vit()), some_images()
    uncached = reduce_images(tail, images, "key", None, "test")
    miss = reduce_images(tail, images, "key", Cache(tmp_path / "a" / "b", LIMIT), "test")
    assert spy.count == 2
    hit = reduce_images(tail, images, "key", Cache(tmp_path / "a" / "b", LIMIT), "test")
    assert spy.count == 2
    np.testing.assert_array_equal(miss, uncached)
    np.testing.assert_array_equal(hit, uncached)
    layout = np.asfortranarray(images)  # the same images, laid out otherwise
    np.testing.assert_array_equal(
        reduce_images(tail, layout, "key", Cache(tmp_path / "a" / "b", LIMIT), ""), hit
    )
    assert spy.count == 2
    with pytest.raises(ValueError, match="read-only"):
        hit[0] = 0  # a cached sample cannot be spoilt by accident


def test_the_key_changes_with_all_that_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, one pixel, the order, the shape, and the kind of tail."""
    spy = Spy(monkeypatch)
    tail, images = create_tail(random_vit()), some_images(12)
    one_pixel = images.copy()
    one_pixel[-1, -1, -1] ^= 1
    other_tail = create_tail(random_vit(global_pool="avg"))
    calls = [
        (tail, images, "key"),
        (tail, images, "other key"),
        (tail, one_pixel, "key"),
        (tail, images[::-1], "key"),
        (tail, images[:-1], "key"),
        (tail, images.reshape(6, 16, 8), "key"),
        (other_tail, images, "key"),
    ]
    for count, (kind, content, key) in enumerate(calls, start=1):
        samples = reduce_images(kind, content, key, Cache(tmp_path, LIMIT), "test")
        assert spy.count == count
        assert len(samples) == len(content)
    assert len(list(tmp_path.glob("samples-*.npy"))) == len(calls)


def test_an_interrupted_computation_leaves_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does a stale partial file of a killed process matter."""
    tail, images = create_tail(random_vit()), some_images()
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(features, "_fill", fail)
        with pytest.raises(KeyboardInterrupt):
            reduce_images(tail, images, "key", Cache(tmp_path, LIMIT), "test")
    assert not list(tmp_path.glob("*.npy"))
    (lock,) = tmp_path.glob("*.lock")
    lock.with_suffix(".partial").write_bytes(b"rubbish")
    samples = reduce_images(tail, images, "key", Cache(tmp_path, LIMIT), "test")
    np.testing.assert_array_equal(samples, reduce_images(tail, images, "key", None, "test"))
    assert [path.suffixes for path in tmp_path.glob("*.npy")] == [[".npy"]]


class SlowInChild:
    """A process that computes slowly and tells how often it did."""

    def __init__(self, cache: Path, barrier: Barrier, answers: Queue) -> None:  # type: ignore[type-arg]
        self.cache, self.barrier, self.answers = cache, barrier, answers

    def __call__(self) -> None:
        """Runs in the forked process, whose patched module nobody else sees."""
        computed = []
        compute = features._fill

        def slow(*arguments: object) -> None:
            computed.append(1)
            time.sleep(0.3)
            compute(*arguments)  # type: ignore[arg-type]

        features._fill = slow  # type: ignore[assignment]
        tail = create_tail(random_vit())
        self.barrier.wait(timeout=60)
        samples = reduce_images(tail, some_images(), "key", Cache(self.cache, LIMIT), "test")
        self.answers.put((len(computed), np.array(samples)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_concurrent_writers_compute_once(tmp_path: Path) -> None:
    """Three processes that start together: one computes, all read the same samples."""
    context = multiprocessing.get_context("fork")
    answers: Queue[Any] = context.Queue()
    child = SlowInChild(tmp_path, context.Barrier(3), answers)
    processes = [context.Process(target=child) for _ in range(3)]
    for process in processes:
        process.start()
    results = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted(count for count, _ in results) == [0, 0, 1]
    expected = reduce_images(create_tail(random_vit()), some_images(), "key", None, "test")
    for _, samples in results:
        np.testing.assert_allclose(samples, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(samples, results[0][1])
    assert len(list(tmp_path.glob("*.npy"))) == 1


def test_the_cache_is_bounded_and_forgets_the_least_recently_used(tmp_path: Path) -> None:
    """Room for two files: a third evicts the one that was not used again."""
    tail = create_tail(random_vit())
    sets = [some_images(6, seed) for seed in range(3)]
    size = reduce_images(tail, sets[0], "key", None, "test").nbytes + 128  # npy header
    cache = Cache(tmp_path, 2 * size)
    paths: list[Path] = []
    for index in (0, 1):
        reduce_images(tail, sets[index], "key", cache, "test")
        paths += [file for file in tmp_path.glob("samples-*.npy") if file not in paths]
    for seconds, path in enumerate(paths):
        os.utime(path, (seconds, seconds))
    mapped = reduce_images(tail, sets[0], "key", cache, "test")  # now the most recent
    reduce_images(tail, sets[2], "key", cache, "test")
    assert paths[0].exists()
    assert not paths[1].exists()
    assert len(list(tmp_path.glob("samples-*.npy"))) == 2
    assert np.isfinite(mapped).all()  # still mapped


def test_a_file_larger_than_the_bound_is_still_used(tmp_path: Path) -> None:
    tail = create_tail(random_vit())
    samples = reduce_images(tail, some_images(), "key", Cache(tmp_path, 1), "test")
    assert samples.size > 0
    assert len(list(tmp_path.glob("samples-*.npy"))) == 1


def test_bfloat16_is_an_approximation_of_its_own(tmp_path: Path) -> None:
    """Its own cache entry; within bfloat16's precision (8 bits) of the reference, not equal."""
    tail, images = create_tail(random_vit()), some_images()
    cache = Cache(tmp_path, LIMIT)
    exact = reduce_images(tail, images, "key", cache, "test")
    rough = reduce_images(tail, images, "key", cache, "test", "bfloat16")
    assert rough.dtype == np.float32
    error = np.abs(exact - rough).max() / np.abs(exact).max()
    assert 0 < error < 0.03
    assert len(list(tmp_path.glob("samples-*.npy"))) == 2
