"""The frozen timm ViT of a run, and the model that training starts from."""

import hashlib
from pathlib import Path

import numpy as np
import timm
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import nn

from pina_app import digits_vit
from pina_app.config import PinaConfig
from strategies.clustering.public_statistics import PUBLIC_SEED

LORA_B = "lora_B"
HEAD_WEIGHT = "head.weight"
HEAD_BIAS = "head.bias"
RANDOM_HEAD = 0.005
"""Standard deviation of a random head; ten times as much wrecks IFCA and PINA."""


def create_backbone(config: PinaConfig) -> VisionTransformer:
    """The frozen ViT of a configuration, without a head, in evaluation mode.

    Raises
    ------
    ValueError
        If timm does not know the model, it is not a ViT, or the weights are missing or do not
        fit. The message says what to download and where to put it.
    """
    cache_dir = Path(config.cache_dir).expanduser() if config.cache_dir is not None else None
    if config.model == "digits-vit":
        backbone = digits_vit.create_vit()
    else:
        options = {"img_size": config.image_size} if config.image_size else {}
        try:
            backbone = timm.create_model(
                config.model,
                pretrained=config.weights == "pretrained",
                num_classes=0,
                **options,
            )
        except Exception as error:
            raise ValueError(_creation_message(config, error)) from error
    if not isinstance(backbone, VisionTransformer):
        raise ValueError(f"model = {config.model!r}: must be a timm VisionTransformer")
    if backbone.patch_embed.num_patches < 1:
        raise ValueError(
            f"model = {config.model!r}, image-size = {config.image_size}: must be at least one "
            f"patch, {backbone.patch_embed.patch_size[0]} pixels"
        )
    if config.weights == "digits":
        digits_vit.load_pretrained(backbone, cache_dir)
    elif config.weights not in ("pretrained", "none"):
        _load_weights(backbone, config)
    return backbone.eval().requires_grad_(False)


def _creation_message(config: PinaConfig, error: Exception) -> str:
    if config.model.split(".")[0] not in timm.list_models():
        return f"model = {config.model!r}: timm does not know it (see timm.list_models('vit*'))"
    if config.weights == "pretrained":
        return (
            f"weights = 'pretrained': {config.model} could not be had from the model hub "
            f"({type(error).__name__}). Download its model.safetensors from "
            f"https://huggingface.co/timm/{config.model} on a machine with access, copy it here "
            "and set weights to that file's path"
        )
    return f"model = {config.model!r}, image-size = {config.image_size}: {error}"


def _load_weights(backbone: nn.Module, config: PinaConfig) -> None:
    path = Path(config.weights).expanduser()
    if not path.is_file():
        raise ValueError(
            f"weights = {config.weights!r}: no such file; must be 'pretrained', 'none', 'digits' "
            "or the path of a .safetensors file with timm's names"
        )
    try:
        weights = checkpoint_filter_fn(load_file(path), backbone)
        weights = {name: value.float() for name, value in weights.items()}
        missing, unexpected = backbone.load_state_dict(weights, strict=False)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(
            f"weights = {config.weights!r}: do not fit {config.model}: {error}"
        ) from error
    unexpected = [name for name in unexpected if not name.startswith("head.")]
    if missing or unexpected:
        raise ValueError(
            f"weights = {config.weights!r}: do not fit {config.model}: missing {missing[:3]}, "
            f"unexpected {unexpected[:3]}"
        )


def weights_key(config: PinaConfig, backbone: nn.Module) -> str:
    """Hash of the frozen weights and the image size: what the reduced samples depend on."""
    digest = hashlib.sha256(f"{config.model} {config.image_size}".encode())
    for name, value in backbone.state_dict().items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value.numpy()).data)
    return digest.hexdigest()[:24]


def initial_model(
    width: int, classes: int, *, random_head: bool, lora_size: int | None = None
) -> dict[str, NDArray[np.float32]]:
    """B = 0 and a head: zero, or small and random from the public seed.

    ``lora_size`` defaults to the width h, right for one adapted projection.
    With a zero head the gradient of B is zero; the printed method needs a common non-zero one.
    """
    rng = np.random.default_rng(PUBLIC_SEED)
    scale = RANDOM_HEAD if random_head else 0.0
    return {
        LORA_B: np.zeros(lora_size or width, dtype=np.float32),
        HEAD_WEIGHT: (scale * rng.standard_normal((classes, width))).astype(np.float32),
        HEAD_BIAS: np.zeros(classes, dtype=np.float32),
    }
