"""The embedded task: the public part, and the ViT that is pretrained on it once."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from torch import nn

from app_kit import digits
from pina_app import digits_vit


def pixels(images: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(images).float()[:, None] / 127.5 - 1


def test_load_is_a_fixed_shuffle_of_all_digits() -> None:
    """Images keep their labels; grey values 0..16 become 0..255."""
    images, labels = digits.load()
    bunch = sklearn.datasets.load_digits()
    assert images.shape == (1797, 8, 8)
    assert images.dtype == np.uint8
    assert (images.min(), images.max()) == (0, 255)
    expected = {
        (np.round(image * 255 / 16).astype(np.uint8).tobytes(), int(label))
        for image, label in zip(bunch.images, bunch.target, strict=True)
    }
    assert {(i.tobytes(), int(y)) for i, y in zip(images, labels, strict=True)} == expected
    assert np.bincount(labels).tolist() == np.bincount(bunch.target).tolist()
    assert np.bincount(labels[: digits.PUBLIC_IMAGES], minlength=10).min() >= 30
    again, _ = digits.load()
    np.testing.assert_array_equal(again, images)


def test_the_untrained_vit_is_the_same_whatever_the_random_state() -> None:
    """Creating it neither uses nor moves the caller's random numbers."""
    torch.manual_seed(1)
    first = digits_vit.create_vit().state_dict()
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)
    second = digits_vit.create_vit().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_pretraining_is_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two short runs from different random states are bit-identical; training does something."""
    monkeypatch.setitem(digits_vit.PRETRAINING, "epochs", 2)
    images, labels = digits.load()
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        results.append(digits_vit.pretrain(images[:300], labels[:300]).state_dict())
    start = digits_vit.create_vit().state_dict()
    for name in start:
        assert torch.equal(results[0][name], results[1][name])
    assert not torch.equal(
        results[0]["blocks.0.attn.qkv.weight"], start["blocks.0.attn.qkv.weight"]
    )


class FakePretraining:
    """Counts trainings, and remembers on what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> None:
        self.seen: list[tuple[NDArray[np.uint8], NDArray[np.int64]]] = []
        self.seconds = seconds
        monkeypatch.setattr(digits_vit, "pretrain", self)

    def __call__(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> nn.Module:
        self.seen.append((images, labels))
        time.sleep(self.seconds)
        return digits_vit.create_vit()


def test_only_public_images_are_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first 450 of the fixed shuffle, and nothing of clients or test."""
    fake = FakePretraining(monkeypatch)
    digits_vit.pretrained_weights(tmp_path)
    images, labels = digits.load()
    ((seen, their),) = fake.seen
    np.testing.assert_array_equal(seen, images[:450])
    np.testing.assert_array_equal(their, labels[:450])


def test_a_second_call_does_not_train_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is the cache, and any change of the recipe is another file."""
    fake = FakePretraining(monkeypatch)
    path = digits_vit.pretrained_weights(tmp_path / "new" / "folder")
    assert digits_vit.pretrained_weights(tmp_path / "new" / "folder") == path
    assert len(fake.seen) == 1
    paths = {path}
    for table, key, value in (
        (digits_vit.PRETRAINING, "epochs", 299),
        (digits_vit.PRETRAINING, "noise", 0.1),
        (digits_vit.ARCHITECTURE, "depth", 3),
    ):
        monkeypatch.setitem(table, key, value)
        paths.add(digits_vit.pretrained_weights(tmp_path / "new" / "folder"))
    assert len(paths) == len(fake.seen) == 4


def test_concurrent_callers_wait_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several threads, one training, one file."""
    fake = FakePretraining(monkeypatch, seconds=0.2)
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(digits_vit.pretrained_weights(tmp_path)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake.seen) == 1
    assert len(paths) == 4
    assert len(set(paths)) == 1
    assert load_file(paths[0]).keys() == digits_vit.create_vit().state_dict().keys()


def test_a_failed_training_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted first use is simply repeated."""

    def interrupted(*_: object) -> nn.Module:
        raise KeyboardInterrupt

    monkeypatch.setattr(digits_vit, "pretrain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        digits_vit.pretrained_weights(tmp_path)
    assert not list(tmp_path.glob("*.safetensors*"))
    fake = FakePretraining(monkeypatch)
    digits_vit.pretrained_weights(tmp_path)
    assert len(fake.seen) == 1


def test_the_pretrained_features_separate_unseen_digits(cache_dir: Path) -> None:
    """A linear probe on public features classifies the private part; untrained features do not.

    Measured: .92 with pretraining, against .6 without.
    """
    images, labels = digits.load()
    trained = digits_vit.create_vit().eval()
    digits_vit.load_pretrained(trained, cache_dir)
    accuracies = []
    for vit in (trained, digits_vit.create_vit().eval()):
        with torch.no_grad():
            features = vit(pixels(images)).numpy()
        public, private = features[: digits.PUBLIC_IMAGES], features[digits.PUBLIC_IMAGES :]
        probe = LogisticRegression(max_iter=2000).fit(public, labels[: digits.PUBLIC_IMAGES])
        accuracies.append(probe.score(private, labels[digits.PUBLIC_IMAGES :]))
    assert accuracies[0] > 0.88
    assert accuracies[0] > accuracies[1] + 0.05
