"""The frozen backbone, its weights, and the start of training."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor

from pina_app.config import PinaConfig
from pina_app.model import (
    HEAD_BIAS,
    HEAD_WEIGHT,
    LORA_B,
    create_backbone,
    initial_model,
    weights_key,
)

TINY = "test_vit"  # timm's own 0.4 M parameter ViT for tests, 160 px, patches of 16
BASE = PinaConfig(dataset="none.npz", public_data="none", model=TINY, weights="none", image_size=32)


def tiny_weights() -> dict[str, Tensor]:
    """Random weights of the tiny ViT, with a head, as a file would hold them."""
    torch.manual_seed(1)
    state = timm.create_model(TINY, img_size=32, num_classes=7).state_dict()
    return {name: value.clone().contiguous() for name, value in state.items()}


def configured(path: Path) -> PinaConfig:
    return dataclasses.replace(BASE, weights=str(path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_local_weights_are_loaded(tmp_path: Path, dtype: torch.dtype) -> None:
    """Every array of the file is in the model; a head in the file is passed over."""
    weights = {name: value.to(dtype) for name, value in tiny_weights().items()}
    save_file(weights, tmp_path / "w.safetensors")
    backbone = create_backbone(configured(tmp_path / "w.safetensors"))
    state = backbone.state_dict()
    assert state.keys() == {name for name in weights if not name.startswith("head.")}
    for name, value in state.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, weights[name].float())
    assert not backbone.training
    assert not any(p.requires_grad for p in backbone.parameters())
    assert backbone(torch.zeros(1, 3, 32, 32)).shape == (1, backbone.embed_dim)


def bad_weights(kind: str, path: Path) -> None:
    weights = tiny_weights()
    if kind == "missing array":
        del weights["blocks.0.attn.qkv.weight"]
    elif kind == "another array":
        weights["blocks.99.attn.qkv.weight"] = torch.zeros(3)
    elif kind == "wrong shape":
        weights["norm.weight"] = torch.zeros(3)
    elif kind == "unrelated":
        weights = {"conv1.weight": torch.zeros(4, 3, 3, 3)}
    elif kind == "empty":
        weights = {}
    save_file(weights, path)
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif kind == "truncated header":
        path.write_bytes(path.read_bytes()[:20])
    elif kind == "no bytes":
        path.write_bytes(b"")
    elif kind == "not safetensors":
        path.write_bytes(b"PK\x03\x04" + bytes(100))


@pytest.mark.parametrize(
    "kind",
    [
        "missing array",
        "another array",
        "wrong shape",
        "unrelated",
        "empty",
        "truncated",
        "truncated header",
        "no bytes",
        "not safetensors",
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, kind: str) -> None:
    """The message names the key, the file and the model."""
    path = tmp_path / "w.safetensors"
    bad_weights(kind, path)
    with pytest.raises(ValueError, match="do not fit") as error:
        create_backbone(configured(path))
    assert str(error.value).startswith(f"weights = {str(path)!r}: do not fit {TINY}")


def test_weights_of_another_size_of_the_model_are_refused(tmp_path: Path) -> None:
    """A whole checkpoint of another width."""
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0, depth=1)
    save_file(vit.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match="do not fit"):
        create_backbone(configured(tmp_path / "w.safetensors"))


def test_a_missing_weights_file_says_what_may_stand_there(tmp_path: Path) -> None:
    """Key, value and what is allowed."""
    with pytest.raises(ValueError, match="no such file") as error:
        create_backbone(configured(tmp_path / "absent.safetensors"))
    for word in ("weights = ", "absent.safetensors", "pretrained", "none", ".safetensors file"):
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "vit_enormous"}, "model = 'vit_enormous': timm does not know it"),
        ({"model": "test_resnet"}, "model = 'test_resnet'"),
        ({"model": "test_resnet", "image_size": 0}, "model = 'test_resnet': must be a timm Vision"),
    ],
)
def test_a_model_that_cannot_be_used_is_named(changes: dict[str, str], message: str) -> None:
    """Unknown to timm, or not a ViT."""
    with pytest.raises(ValueError, match="model = ") as error:
        create_backbone(dataclasses.replace(BASE, **changes))  # type: ignore[arg-type]
    assert str(error.value).startswith(message)


def test_without_a_hub_the_error_says_what_to_download_and_where_to_put_it() -> None:
    """The test session is offline (HF_HUB_OFFLINE in conftest.py), so this never waits."""
    config = dataclasses.replace(
        BASE, model="vit_tiny_patch16_224.augreg_in21k", weights="pretrained", image_size=0
    )
    with pytest.raises(ValueError, match="hub") as error:
        create_backbone(config)
    message = str(error.value)
    assert message.startswith("weights = 'pretrained': vit_tiny_patch16_224.augreg_in21k")
    assert "https://huggingface.co/timm/vit_tiny_patch16_224.augreg_in21k" in message
    assert "model.safetensors" in message
    assert "set weights to that file's path" in message
    assert "\n" not in message


def test_the_digits_vit_is_created_without_weights() -> None:
    """``weights = "none"`` trains nothing."""
    backbone = create_backbone(PinaConfig(weights="none", cache_dir="/nonexistent/never-used"))
    assert backbone.embed_dim == 64


def test_the_digits_vit_is_loaded_from_the_cache(cache_dir: Path) -> None:
    """Trained weights differ from the start and are the same every time."""
    config = PinaConfig(cache_dir=str(cache_dir))
    first, again = create_backbone(config), create_backbone(config)
    start = create_backbone(dataclasses.replace(config, weights="none"))
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert not torch.equal(first.pos_embed, start.pos_embed)


def test_weights_key_depends_on_weights_model_and_size() -> None:
    """One changed number, another size or another name changes the key; nothing else does."""
    backbone = create_backbone(BASE)
    key = weights_key(BASE, backbone)
    assert weights_key(dataclasses.replace(BASE, rounds=3, clip=9.0), backbone) == key
    assert weights_key(dataclasses.replace(BASE, image_size=48), backbone) != key
    assert weights_key(dataclasses.replace(BASE, model="other"), backbone) != key
    with torch.no_grad():
        backbone.blocks[-1].mlp.fc2.bias[-1] += 1e-6
    assert weights_key(BASE, backbone) != key


@pytest.mark.parametrize("random_head", [True, False])
def test_initial_model(random_head: bool) -> None:
    """B = 0; the head is zero, or Gaussian with standard deviation 0.005 from the public seed."""
    model = initial_model(384, 10, random_head=random_head)
    assert {name: (values.shape, values.dtype.name) for name, values in model.items()} == {
        LORA_B: ((384,), "float32"),
        HEAD_WEIGHT: ((10, 384), "float32"),
        HEAD_BIAS: ((10,), "float32"),
    }
    assert not model[LORA_B].any()
    assert not model[HEAD_BIAS].any()
    if random_head:
        # 3,840 draws: the sample deviation is within 5 % of 0.005 (more than 4 standard errors).
        assert model[HEAD_WEIGHT].std() == pytest.approx(0.005, rel=0.05)
    else:
        assert not model[HEAD_WEIGHT].any()
    again = initial_model(384, 10, random_head=random_head)
    assert all(np.array_equal(model[name], again[name]) for name in model)


def test_the_real_vit_small_loads(shared_data: Path) -> None:
    """22,056,192 parameters at 98 px, and timm's own loading gives the same features."""
    path = shared_data / "dinov2_vits14_fp16.safetensors"
    config = PinaConfig(
        dataset="none.npz",
        public_data="none",
        model="vit_small_patch14_dinov2",
        weights=str(path),
        image_size=98,
    )
    backbone = create_backbone(config)
    stored = load_file(path)
    assert sum(value.numel() for value in stored.values()) == 22_056_192
    plain = timm.create_model("vit_small_patch14_dinov2", img_size=98, num_classes=0).eval()
    filtered = checkpoint_filter_fn(stored, plain)
    plain.load_state_dict({name: value.float() for name, value in filtered.items()})
    pixels = torch.randn((1, 3, 98, 98), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = backbone(pixels)
        assert features.shape == (1, 384)
        torch.testing.assert_close(features, plain(pixels), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            backbone.blocks[11].attn.qkv.weight, stored["blocks.11.attn.qkv.weight"].float()
        )
