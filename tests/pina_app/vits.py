"""Small random timm ViTs, and slow full forward passes to compare reductions with."""

from typing import Any

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.func import functional_call

from pina_app.classifier import Classifier
from pina_app.model import HEAD_BIAS, HEAD_WEIGHT, LORA_B
from pina_app.tails import Tail, create_tail
from strategies.clustering.public_statistics import PublicStatistics
from strategies.wire import Model

LORA_A = "attn.qkv.value.lora_A.default.weight"


def random_vit(seed: int = 0, **options: Any) -> VisionTransformer:
    """A small ViT whose every parameter is random, so that nothing cancels by accident."""
    shape = {
        "img_size": 8,
        "patch_size": 4,
        "in_chans": 3,
        "embed_dim": 16,
        "depth": 2,
        "num_heads": 2,
        "num_classes": 0,
        **options,
    }
    vit = VisionTransformer(**shape).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in vit.named_parameters():
            scale = value[0].numel() ** -0.5 if value.ndim > 1 else 0.2
            centre = 1.0 if name.endswith("norm.weight") or "norm" in name else 0.0
            noise = torch.randn(value.shape, generator=generator)
            value.copy_(centre * (not name.endswith("bias")) + scale * noise)
    return vit.requires_grad_(False)


def random_pixels(vit: VisionTransformer, count: int, seed: int = 1) -> Tensor:
    """Input images of a ViT."""
    size = vit.patch_embed.img_size
    channels = vit.patch_embed.proj.in_channels
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((count, channels, *size), generator=generator)


def lora_a(tail: Tail) -> Tensor:
    """The frozen row A (h,) that peft holds."""
    row: Tensor = tail.lora.lora_a(tail.lora.paths[0])[0]
    return row


def fused_features(vit: VisionTransformer, pixels: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Oracle without peft and reduction: the plain fused ViT with B A added to the value rows."""
    name = f"blocks.{len(vit.blocks) - 1}.attn.qkv.weight"
    weight = dict(vit.named_parameters())[name]
    update = torch.cat([torch.zeros(2 * len(b), len(a)), torch.outer(b, a)])
    features: Tensor = functional_call(vit, {name: weight + update}, (pixels,))
    return features


def random_statistics(width: int, seed: int = 2) -> PublicStatistics:
    """Public statistics with a whitener that is neither symmetric nor the identity."""
    rng = np.random.default_rng(seed)
    return PublicStatistics(
        "test",
        (rng.standard_normal(width) / 2).astype(np.float32),
        (rng.standard_normal((5, width)) / 4).astype(np.float32),
        (np.eye(width) + 0.2 * rng.standard_normal((width, width))).astype(np.float32),
    )


def random_model(width: int, classes: int = 4, seed: int = 3) -> Model:
    """A cluster model away from its start."""
    rng = np.random.default_rng(seed)
    return {
        LORA_B: (0.3 * rng.standard_normal(width)).astype(np.float32),
        HEAD_WEIGHT: (0.3 * rng.standard_normal((classes, width))).astype(np.float32),
        HEAD_BIAS: (0.3 * rng.standard_normal(classes)).astype(np.float32),
    }


def classifier_of(vit: VisionTransformer) -> Classifier:
    """A classifier on a ViT; takes the ViT over."""
    return Classifier(create_tail(vit), random_statistics(vit.embed_dim))
