"""From images to cached reduced samples."""

import multiprocessing
import os
import time
from collections.abc import Iterator
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
    """Counts the images of every computation of features, but for the one that tells the shape."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images = 0
        self.compute = features._in_batches
        monkeypatch.setattr(features, "_in_batches", self)

    def __call__(self, *arguments: Any) -> Iterator[NDArray[np.float32]]:
        for batch in self.compute(*arguments):
            self.images += len(batch)
            yield batch

    def since(self) -> int:
        """Images computed since the last call."""
        count, self.images = self.images, 0
        return count


def test_samples_are_the_tails_whatever_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are glued in order."""
    tail = create_tail(random_vit())
    images = some_images(10)
    expected = tail.reduce(to_pixels(tail, images))
    for batch in (1, 3, 10, 64):
        monkeypatch.setattr(features, "_BATCH", batch)
        samples = reduce_images(tail, images, "key", None, "test")[:]
        assert samples.dtype == np.float32
        np.testing.assert_allclose(samples, expected, rtol=1e-4, atol=1e-5)


def test_a_hit_equals_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call computes nothing and gives the same bits."""
    spy = Spy(monkeypatch)
    tail, images = create_tail(random_vit()), some_images()
    cache = Cache(tmp_path / "a" / "b", LIMIT)
    uncached = reduce_images(tail, images, "key", None, "test")[:]
    miss = reduce_images(tail, images, "key", cache, "test")
    assert spy.since() == 2 * len(images)
    hit = reduce_images(tail, images, "key", cache, "test")
    np.testing.assert_array_equal(miss[:], uncached)
    np.testing.assert_array_equal(hit[:], uncached)
    np.testing.assert_array_equal(hit[3:5], uncached[3:5])
    layout = np.asfortranarray(images)  # the same images, laid out otherwise
    np.testing.assert_array_equal(reduce_images(tail, layout, "key", cache, "")[:], uncached)
    assert spy.since() == 0
    with pytest.raises(ValueError, match="read-only"):
        hit.rows[0] = 0  # a cached sample cannot be spoilt by accident


def test_only_images_that_were_never_seen_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another order, a part, a repetition and a mixture, each image with its own sample."""
    spy = Spy(monkeypatch)
    tail, images = create_tail(random_vit()), some_images(12)
    expected = reduce_images(tail, images, "key", None, "test")[:]
    spy.since()
    for index, new in (
        ([4, 2, 7], 3),
        ([7, 2], 0),
        ([2, 5, 5, 4, 5], 1),
        (list(range(12)), 8),
    ):
        samples = reduce_images(tail, images[index], "key", Cache(tmp_path, LIMIT), "test")
        assert spy.since() == new
        np.testing.assert_allclose(samples[:], expected[index], rtol=1e-5, atol=1e-6)


def test_the_key_changes_with_all_that_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, one pixel, the shape, and the kind of tail."""
    spy = Spy(monkeypatch)
    tail, images = create_tail(random_vit()), some_images(12)
    one_pixel = images.copy()
    one_pixel[-1, -1, -1] ^= 1
    other_tail = create_tail(random_vit(global_pool="avg"))
    for kind, content, key, new in (
        (tail, images, "key", 12),
        (tail, images, "other key", 12),
        (tail, one_pixel, "key", 1),
        (tail, images.reshape(6, 16, 8), "key", 6),
        (other_tail, images, "key", 12),
    ):
        samples = reduce_images(kind, content, key, Cache(tmp_path, LIMIT), "test")
        assert spy.since() == new
        assert len(samples) == len(content)
    assert len(list(tmp_path.glob("samples-*.rows"))) == 4


@pytest.mark.parametrize("cut", ["after a batch", "within a row", "within a digest"])
def test_an_interrupted_computation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    """Whatever was half written is written again, the rest is kept."""
    monkeypatch.setattr(features, "_BATCH", 4)
    spy = Spy(monkeypatch)
    tail, images = create_tail(random_vit()), some_images(12)
    expected = reduce_images(tail, images, "key", None, "test")[:]
    with monkeypatch.context() as patch:

        def dies_in_the_third_batch(*arguments: Any) -> Iterator[NDArray[np.float32]]:
            for number, batch in enumerate(spy(*arguments)):
                if number == 2:
                    raise KeyboardInterrupt
                yield batch

        patch.setattr(features, "_in_batches", dies_in_the_third_batch)
        with pytest.raises(KeyboardInterrupt):
            reduce_images(tail, images, "key", Cache(tmp_path, LIMIT), "test")
    (rows,) = tmp_path.glob("*.rows")
    (digests,) = tmp_path.glob("*.digests")
    if cut == "within a row":
        with rows.open("ab") as file:
            file.write(b"half a row")
    if cut == "within a digest":
        with digests.open("ab") as file:
            file.write(b"half a digest")
    spy.since()
    samples = reduce_images(tail, images, "key", Cache(tmp_path, LIMIT), "test")
    assert spy.since() == 4
    np.testing.assert_allclose(samples[:], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("deleted", ["rows", "digests"])
def test_a_pool_without_one_of_its_files_is_computed_again(tmp_path: Path, deleted: str) -> None:
    tail, images = create_tail(random_vit()), some_images()
    first = reduce_images(tail, images, "key", Cache(tmp_path, LIMIT), "test")[:]
    (file,) = tmp_path.glob(f"*.{deleted}")
    file.unlink()
    again = reduce_images(tail, images[::-1], "key", Cache(tmp_path, LIMIT), "test")[::-1]
    np.testing.assert_allclose(again, first, rtol=1e-5, atol=1e-6)


class SlowInChild:
    """A process that computes slowly and tells how often it did."""

    def __init__(self, cache: Path, barrier: Barrier, answers: Queue) -> None:  # type: ignore[type-arg]
        self.cache, self.barrier, self.answers = cache, barrier, answers

    def __call__(self) -> None:
        """Runs in the forked process, whose patched module nobody else sees."""
        computed = []
        compute = features._in_batches

        def slow(*arguments: Any) -> Iterator[NDArray[np.float32]]:
            computed.append(1)
            time.sleep(0.3)
            yield from compute(*arguments)

        features._in_batches = slow  # type: ignore[assignment]
        tail = create_tail(random_vit())
        self.barrier.wait(timeout=60)
        samples = reduce_images(tail, some_images(), "key", Cache(self.cache, LIMIT), "test")
        self.answers.put((len(computed), samples[:]))


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
    expected = reduce_images(create_tail(random_vit()), some_images(), "key", None, "test")[:]
    for _, samples in results:
        np.testing.assert_allclose(samples, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(samples, results[0][1])
    assert len(list(tmp_path.glob("*.rows"))) == 1


def test_the_cache_is_bounded_and_forgets_the_least_recently_used(tmp_path: Path) -> None:
    """Room for the pools of two models: a third evicts the one that was not used again."""
    tail, images = create_tail(random_vit()), some_images(6)
    cache = Cache(tmp_path, 2 * reduce_images(tail, images, "key", None, "test")[:].nbytes)
    paths: list[Path] = []
    for key in ("a", "b"):
        reduce_images(tail, images, key, cache, "test")
        paths += [file for file in tmp_path.glob("samples-*.rows") if file not in paths]
    for seconds, path in enumerate(paths):
        os.utime(path, (seconds, seconds))
    mapped = reduce_images(tail, images, "a", cache, "test")  # now the most recent
    reduce_images(tail, images, "c", cache, "test")
    assert paths[0].exists()
    assert not paths[1].exists()
    assert not paths[1].with_suffix(".digests").exists()
    assert len(list(tmp_path.glob("samples-*.rows"))) == 2
    assert np.isfinite(mapped[:]).all()  # still mapped


def test_a_pool_that_is_written_to_is_not_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process whose cache is smaller deletes what it can, in the middle of a pass."""
    tail, images = create_tail(random_vit()), some_images(12)
    reduce_images(tail, images[:5], "key", Cache(tmp_path, LIMIT), "test")
    reduce_images(tail, images[:5], "old", Cache(tmp_path, LIMIT), "test")
    reduce, asked = features._reduce, []

    def evicting(*arguments: Any) -> NDArray[np.float32]:
        asked.append(1)
        if len(asked) == 2:  # the first tells the shape
            Cache(tmp_path, 0).evict(keep=tmp_path / "another.rows")
        return reduce(*arguments)

    monkeypatch.setattr(features, "_reduce", evicting)
    samples = reduce_images(tail, images, "key", Cache(tmp_path, LIMIT), "test")
    assert len(asked) == 2
    assert len(list(tmp_path.glob("*.rows"))) == len(list(tmp_path.glob("*.digests"))) == 1
    expected = reduce_images(tail, images, "key", None, "test")[:]
    np.testing.assert_allclose(samples[:], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("left", [0.0, 0.5, 0.999])
def test_rows_that_a_crash_of_the_machine_has_lost_are_computed_again(
    tmp_path: Path, left: float
) -> None:
    """Digests can reach the disk before their rows."""
    tail, images, cache = create_tail(random_vit()), some_images(12), Cache(tmp_path, LIMIT)
    expected = reduce_images(tail, images, "key", cache, "test")[:]
    (rows,) = tmp_path.glob("*.rows")
    os.truncate(rows, int(left * rows.stat().st_size))
    samples = reduce_images(tail, images[::-1], "key", cache, "test")
    np.testing.assert_allclose(samples[:], expected[::-1], rtol=1e-5, atol=1e-6)


def test_a_pool_larger_than_the_bound_is_still_used(tmp_path: Path) -> None:
    tail = create_tail(random_vit())
    samples = reduce_images(tail, some_images(), "key", Cache(tmp_path, 1), "test")
    assert samples[:].size > 0
    assert len(list(tmp_path.glob("samples-*.rows"))) == 1


def test_bfloat16_is_an_approximation_of_its_own(tmp_path: Path) -> None:
    """Its own pool; within bfloat16's precision (8 bits) of the reference, not equal."""
    tail, images = create_tail(random_vit()), some_images()
    cache = Cache(tmp_path, LIMIT)
    exact = reduce_images(tail, images, "key", cache, "test")[:]
    rough = reduce_images(tail, images, "key", cache, "test", "bfloat16")[:]
    assert rough.dtype == np.float32
    error = np.abs(exact - rough).max() / np.abs(exact).max()
    assert 0 < error < 0.03
    assert len(list(tmp_path.glob("samples-*.rows"))) == 2
