"""Logits, losses, embeddings and export against slow references on the full ViT."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn.functional import cross_entropy

from pina_app import classifier as classifier_module
from pina_app.classifier import Classifier
from pina_app.config import PinaConfig
from pina_app.features import to_pixels
from pina_app.model import HEAD_BIAS, HEAD_WEIGHT, LORA_B, create_backbone
from pina_app.tails import create_tail
from strategies.clustering.public_statistics import without_public_data
from strategies.wire import Model
from tests.pina_app.vits import (
    classifier_of,
    fused_features,
    lora_a,
    random_model,
    random_pixels,
    random_statistics,
    random_vit,
)

VITS = [
    {},
    {"depth": 3, "init_values": 0.5, "reg_tokens": 2, "qk_norm": True},
    {"global_pool": "avg"},
    {"global_pool": "map", "class_token": False},
]


def slow_logits(
    vit: VisionTransformer, classifier: Classifier, model: Model, pixels: Tensor
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """H P (f - mu) + b with the features of the plain fused ViT, in double precision."""
    b = torch.from_numpy(model[LORA_B])
    features = fused_features(vit, pixels, lora_a(classifier.tail), b).numpy().astype(float)
    s = classifier.statistics
    white = [s.head.astype(float) @ (row - s.mean) for row in features]
    return np.array([model[HEAD_WEIGHT] @ row + model[HEAD_BIAS] for row in white])


@pytest.mark.parametrize("options", VITS, ids=str)
def test_logits_are_those_of_the_whitened_full_model(options: dict[str, Any]) -> None:
    """With B away from zero; training and prediction agree."""
    vit = random_vit(1, **options)
    classifier = classifier_of(copy.deepcopy(vit))
    model, pixels = random_model(16), random_pixels(vit, 7)
    samples = classifier.tail.reduce(pixels)
    expected = slow_logits(vit, classifier, model, pixels)
    logits = classifier.logits(classifier.tensors(model), samples)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(classifier.predict(model, samples), expected, rtol=1e-4, atol=1e-4)
    without_b = classifier.logits(
        classifier.tensors({**model, LORA_B: np.zeros(16, np.float32)}), samples
    )
    assert np.abs(without_b.numpy() - expected).max() > 1e-2


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_chunks_do_not_change_results(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prediction and features are glued in order."""
    classifier = classifier_of(random_vit())
    samples = classifier.tail.reduce(random_pixels(classifier.tail.backbone, 7))
    model = random_model(16)
    expected = classifier.logits(classifier.tensors(model), samples)
    features = classifier.tail.features(samples, torch.zeros(16))
    monkeypatch.setattr(classifier_module, "_CHUNK", chunk)
    torch.testing.assert_close(classifier.predict(model, samples), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(classifier.frozen_features(samples), features, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [[1], [4, 1, 7], [2, 2]])
def test_client_losses_equal_a_loop(sizes: list[int]) -> None:
    """Mean cross entropy of every client under every model, one call each."""
    classifier = classifier_of(random_vit())
    models = [random_model(16, seed=s) for s in range(3)]
    clients = [
        classifier.tail.reduce(random_pixels(classifier.tail.backbone, n, seed=i))
        for i, n in enumerate(sizes)
    ]
    rng = torch.Generator().manual_seed(0)
    labels = [torch.randint(0, 4, (n,), generator=rng) for n in sizes]
    losses = classifier.client_losses(models, clients, labels)
    assert losses.shape == (len(sizes), 3)
    for k, (samples, targets) in enumerate(zip(clients, labels, strict=True)):
        for c, model in enumerate(models):
            logits = classifier.logits(classifier.tensors(model), samples)
            expected = float(cross_entropy(logits, targets))
            assert losses[k, c] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("public", [True, False])
def test_embeddings_equal_a_loop(public: bool) -> None:
    """``sqrt(n) mean P (x - mu)`` clipped to R = 1.25 sqrt(m), over R.

    Without public data the mean of projections of norm sqrt(m).
    """
    vit = random_vit()
    statistics = random_statistics(16) if public else without_public_data(16, 5)
    classifier = Classifier(create_tail(copy.deepcopy(vit)), statistics)
    pixels = [random_pixels(vit, n, seed=n) for n in (1, 6, 30)]
    embeddings = classifier.embeddings([classifier.tail.reduce(p) for p in pixels])
    radius = 1.25 * np.sqrt(5)
    assert embeddings.shape == (3, 5)
    clipped = 0
    for row, images in zip(embeddings, pixels, strict=True):
        rows = (vit(images).numpy().astype(float) - statistics.mean) @ statistics.embedding.T
        if not public:
            rows *= np.sqrt(5) / np.linalg.norm(rows, axis=1, keepdims=True)
        y = rows.mean(axis=0) * (np.sqrt(len(images)) if public else 1)
        clipped += np.linalg.norm(y) > radius
        y = y * min(1.0, radius / np.linalg.norm(y)) / radius
        np.testing.assert_allclose(row, y, rtol=1e-4, atol=1e-5)
    if public:
        assert 0 < clipped < 3  # both branches were taken


# --- export ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", VITS, ids=str)
def test_an_exported_model_is_a_plain_timm_model(options: dict[str, Any]) -> None:
    """Loaded into the plain ViT with a head it gives the logits; only 3 arrays differ."""
    vit = random_vit(4, **options)
    classifier = classifier_of(copy.deepcopy(vit))
    model, pixels = random_model(16), random_pixels(vit, 7)
    arrays = classifier.to_timm(model)
    last = len(vit.blocks) - 1
    assert arrays.keys() == {f"blocks.{last}.attn.qkv.weight", "head.weight", "head.bias"}
    assert all(value.is_contiguous() for value in arrays.values())

    plain = copy.deepcopy(vit)
    plain.reset_classifier(4, global_pool=plain.global_pool)
    missing, unexpected = plain.load_state_dict(arrays, strict=False)
    assert not unexpected
    assert not set(missing) & arrays.keys()
    with torch.no_grad():
        logits = plain(pixels)
    expected = classifier.logits(classifier.tensors(model), classifier.tail.reduce(pixels))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)

    original = vit.state_dict()
    changed = {
        name
        for name, value in plain.state_dict().items()
        if name in original and not torch.equal(value, original[name])
    }
    assert changed == {f"blocks.{last}.attn.qkv.weight"}
    rows = torch.zeros(48, dtype=torch.bool)
    rows[32:] = True  # the value rows
    differing = (plain.blocks[-1].attn.qkv.weight != vit.blocks[-1].attn.qkv.weight).any(dim=1)
    assert torch.equal(differing, rows)


def test_two_cluster_models_of_the_digits_in_plain_timm(cache_dir: Path) -> None:
    """The way of the README, with the pretrained small ViT and whole clients' images."""
    config = PinaConfig(cache_dir=str(cache_dir))
    plain = create_backbone(config)
    classifier = Classifier(create_tail(create_backbone(config)), random_statistics(64))
    images = np.random.default_rng(0).integers(0, 256, (9, 8, 8), dtype=np.uint8)
    pixels = to_pixels(classifier.tail, images)
    samples = classifier.tail.reduce(pixels)
    for seed in (0, 1):
        model = random_model(64, classes=10, seed=seed)
        vit = copy.deepcopy(plain)
        vit.reset_classifier(10)
        vit.load_state_dict(classifier.to_timm(model), strict=False)
        with torch.no_grad():
            torch.testing.assert_close(
                vit(pixels), classifier.predict(model, samples), rtol=1e-4, atol=1e-4
            )


def test_the_real_vit_small_reduces_and_exports_exactly(shared_data: Path) -> None:
    """DINOv2 ViT-S at 98 px: 384 + 6 numbers an image; export equals the reduced model."""
    config = PinaConfig(
        dataset="none.npz",
        public_data="none",
        model="vit_small_patch14_dinov2",
        weights=str(shared_data / "dinov2_vits14_fp16.safetensors"),
        image_size=98,
    )
    classifier = Classifier(create_tail(create_backbone(config)), random_statistics(384))
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    pixels = to_pixels(classifier.tail, images)
    samples = classifier.tail.reduce(pixels)
    assert samples.shape == (2, 384 + 6)
    model = random_model(384, classes=10)
    plain = create_backbone(config)
    plain.reset_classifier(10)
    before = plain.blocks[-1].attn.qkv.weight.clone()
    plain.load_state_dict(classifier.to_timm(model), strict=False)
    with torch.no_grad():
        logits = plain(pixels)
    expected = classifier.predict(model, samples)
    assert float((logits - expected).abs().max() / expected.abs().max()) < 1e-4
    merged = plain.blocks[-1].attn.qkv.weight
    assert torch.equal(merged[:768], before[:768])
    assert (merged[768:] != before[768:]).any(dim=1).sum() == 384


def test_models_are_copied_to_tensors() -> None:
    """Training must not write into a model that the caller holds, or share its memory."""
    classifier = classifier_of(random_vit())
    model = random_model(16)
    tensors = classifier.tensors(model)
    tensors[HEAD_BIAS] += 1
    assert not np.array_equal(tensors[HEAD_BIAS].numpy(), model[HEAD_BIAS])
    assert all(value.dtype == torch.float32 for value in tensors.values())
    double = {name: values.astype(np.float64) for name, values in model.items()}
    assert classifier.tensors(double)[LORA_B].dtype == torch.float32


def test_a_named_timm_model_with_num_classes(tmp_path: Path) -> None:
    """``timm.create_model(name, num_classes=...)`` takes the exported file as it is."""
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    full = timm.create_model("test_vit", img_size=32, num_classes=0).eval()
    save_file(full.state_dict(), tmp_path / "backbone.safetensors")
    classifier = classifier_of(copy.deepcopy(full))
    model = random_model(classifier.tail.width, classes=6)
    save_file(classifier.to_timm(model), tmp_path / "cluster-0.safetensors")

    plain = timm.create_model("test_vit", img_size=32, num_classes=6).eval()
    plain.load_state_dict(load_file(tmp_path / "backbone.safetensors"), strict=False)
    plain.load_state_dict(load_file(tmp_path / "cluster-0.safetensors"), strict=False)
    pixels = random_pixels(full, 4)
    with torch.no_grad():
        logits = plain(pixels)
    expected = classifier.predict(model, classifier.tail.reduce(pixels))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
