"""What a process computes with: the frozen model, and the data of its clients."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from pina_app import lora, task
from pina_app.config import PinaConfig
from pina_app.datasets import load_federation
from pina_app.features import to_pixels
from pina_app.model import create_backbone
from pina_app.task import (
    ClientData,
    device_client,
    frozen_model,
    public_statistics,
    server_points,
)
from tests.app_kit.files import write


@pytest.fixture
def config(tmp_path: Path) -> PinaConfig:
    """The untrained small ViT on the digits, with a cache of its own."""
    for function in (frozen_model, task.simulated_federation, device_client):
        function.cache_clear()
    return PinaConfig(weights="none", cache_dir=str(tmp_path / "cache"))


def test_a_simulated_clients_samples_are_those_of_its_images(config: PinaConfig) -> None:
    """Reduced one client at a time, without a cache."""
    federation = load_federation(config)
    tail = frozen_model(config).tail
    for client in (0, 1, 49):
        own = slice(int(federation.offsets[client]), int(federation.offsets[client + 1]))
        data = task.simulated_client(config, client)
        expected = tail.reduce(to_pixels(tail, federation.images[own]))
        torch.testing.assert_close(data.samples, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(data.labels, federation.labels[own])
        assert data.group == client % 2
        assert data.usable


def test_usable_means_something_finite_to_train_on() -> None:
    """No images, NaN and infinity are not."""
    samples, labels = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    assert ClientData(samples, labels, 0).usable
    assert not ClientData(samples[:0], labels[:0], 0).usable
    for bad in (torch.nan, torch.inf):
        spoilt = samples.clone()
        spoilt[1, 2] = bad
        assert not ClientData(spoilt, labels, 0).usable


def test_the_key_of_samples_depends_on_the_loras_a(
    config: PinaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples hold ``A x``: with another A the cache of an older version must not be hit."""
    first = frozen_model(config)
    frozen_model.cache_clear()
    monkeypatch.setattr(lora, "PUBLIC_SEED", 1)
    second = frozen_model(config)
    assert first.key != second.key
    images = load_federation(config).images[:3]
    a, b = (m.reduce(images, "test")[:] for m in (first, second))
    np.testing.assert_allclose(a[:, :64], b[:, :64], atol=1e-6)
    assert np.abs(a[:, 64:] - b[:, 64:]).max() > 1e-4


def test_device_data(config: PinaConfig, tmp_path: Path) -> None:
    """One file, all of it; labels must fit the model."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (4, 8, 8), dtype=np.uint8), np.array([0, 3, 1, 9])
    path = write(tmp_path / "a.npz", {"x": x, "y": y})
    data = device_client(config, path)
    tail = frozen_model(config).tail
    expected = tail.reduce(to_pixels(tail, x))
    torch.testing.assert_close(data.samples, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(data.labels, y)
    assert data.within(10).usable
    assert data.within(None).usable
    assert not data.within(9).usable
    with pytest.raises(ValueError, match="needs labels y"):
        device_client(config, write(tmp_path / "b.npz", {"x": x}))


def test_public_statistics_of_the_public_images(config: PinaConfig) -> None:
    """The mean is that of the plain backbone's features; whitened they have unit variance."""
    from app_kit.sources import load_public_images

    statistics = public_statistics(config)
    images = load_public_images(config.public_data)
    assert images is not None
    plain = create_backbone(config)
    with torch.no_grad():
        features = plain(to_pixels(frozen_model(config).tail, images)).double().numpy()
    np.testing.assert_allclose(statistics.mean, features.mean(axis=0), rtol=1e-3, atol=1e-4)
    embedded = (features - features.mean(axis=0)) @ statistics.embedding[:8].T
    np.testing.assert_allclose(np.cov(embedded, rowvar=False), np.eye(8), atol=0.02)
    assert statistics.source == "digits"
    assert statistics.centred
    nothing = public_statistics(dataclasses.replace(config, public_data="none"))
    assert nothing.source == "none"
    assert not nothing.centred
    np.testing.assert_array_equal(nothing.head, np.eye(64))
    assert nothing.embedding.shape == (64, 64)


def test_damping_and_pseudo_clients_of_the_public_images(config: PinaConfig) -> None:
    """The setting reaches the head's whitener; pseudo-clients are as large as clients are."""
    damped = public_statistics(dataclasses.replace(config, whitening_damping=1.0))
    plain = public_statistics(config)
    largest = [np.linalg.eigvalsh(s.head.astype(np.float64)).max() for s in (damped, plain)]
    assert largest[0] < 0.9 * largest[1]
    points = server_points(dataclasses.replace(config, images_per_client=5), plain)
    assert points.shape == (200, len(plain.embedding))
    assert np.linalg.norm(points, axis=1).max() <= 1 + 1e-6
    other = server_points(dataclasses.replace(config, images_per_client=6), plain)
    assert np.abs(points - other).max() > 0.01
    assert server_points(dataclasses.replace(config, images_per_client=0), plain).any()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named(config: PinaConfig) -> None:
    """``auto`` takes the processor instead."""
    with pytest.raises(ValueError, match="device = 'cuda': no CUDA device"):
        frozen_model(dataclasses.replace(config, device="cuda"))
    assert next(frozen_model(config).tail.parameters()).device.type == "cpu"
