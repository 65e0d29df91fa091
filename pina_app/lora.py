"""Rank-1 LoRA on chosen layers of a timm ViT, by peft; what is trained is one vector of all B's.

A target is ``BLOCK.LAYER``: BLOCK is an index (negative ones from the end), ``last`` or ``all``;
LAYER is ``query``, ``key``, ``value``, ``proj`` (of the attention), ``fc1`` or ``fc2`` (of the
MLP). The default, ``last.value``, is the paper's (PINA, Section 3.2): B has h numbers, and nothing
else is trained in stage 1. timm fuses q, k and v in one layer, which is split first.

Every A is drawn from a Gaussian of variance 1/(its length) with the public seed and stays frozen;
B starts at zero. With unit variance the update of B is an order of magnitude larger than the head's
and takes over the clipped update (rotated CIFAR-10 after 17 rounds: FedAvg 46 % instead of 61 %).
"""

import dataclasses

import torch
from peft import LoraConfig, inject_adapter_in_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from strategies.clustering.public_statistics import PUBLIC_SEED

DEFAULT_TARGETS = "last.value"
LAYERS = {
    "query": "attn.qkv.query",
    "key": "attn.qkv.key",
    "value": "attn.qkv.value",
    "proj": "attn.proj",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}
_FUSED = ("query", "key", "value")


class SplitQKV(nn.Module):
    """timm's fused q, k, v projection as three layers, so that LoRA can sit on one alone."""

    def __init__(self, fused: nn.Linear) -> None:
        super().__init__()
        rows = fused.out_features // 3
        for index, name in enumerate(_FUSED):
            part = nn.Linear(fused.in_features, rows, bias=fused.bias is not None)
            own = slice(index * rows, (index + 1) * rows)
            with torch.no_grad():
                part.weight.copy_(fused.weight[own])
                if fused.bias is not None:
                    part.bias.copy_(fused.bias[own])
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        """Same output as the fused layer."""
        return torch.cat([self.get_submodule(name)(x) for name in _FUSED], dim=-1)


@dataclasses.dataclass(frozen=True)
class Lora:
    """The adapted layers of one backbone, in the order of their B's in the trained vector.

    Attributes
    ----------
    backbone : VisionTransformer
    paths : tuple of str
        Names of the adapted layers.
    sizes : tuple of int
        Outputs of each, the lengths of their B's.
    """

    backbone: VisionTransformer
    paths: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """Length of the trained vector."""
        return sum(self.sizes)

    @property
    def first_block(self) -> int:
        """Everything before this block is frozen."""
        return min(int(path.split(".")[1]) for path in self.paths)

    def parameters(self, vector: Tensor) -> dict[str, Tensor]:
        """peft's parameters B (out, 1) by name, from the trained vector."""
        parts = vector.split(self.sizes)
        return {
            f"{path}.lora_B.default.weight": part[:, None]
            for path, part in zip(self.paths, parts, strict=True)
        }

    def lora_a(self, path: str) -> Tensor:
        """The frozen row A (1, in) of one layer."""
        a: Tensor = self.backbone.get_submodule(path).lora_A.default.weight
        return a

    @torch.no_grad()
    def merged(self, vector: Tensor) -> dict[str, Tensor]:
        """timm's own weights, with timm's names, of the layers that the trained vector changes."""
        changes = dict(zip(self.paths, vector.split(self.sizes), strict=True))
        weights: dict[str, Tensor] = {}
        for path in self.paths:
            parent, _, layer = path.rpartition(".")
            if layer in _FUSED:
                rows = [self._weight(f"{parent}.{name}", changes) for name in _FUSED]
                weights[f"{parent}.weight"] = torch.cat(rows)
            else:
                weights[f"{path}.weight"] = self._weight(path, changes)
        return weights

    def _weight(self, path: str, changes: dict[str, Tensor]) -> Tensor:
        layer = self.backbone.get_submodule(path)
        if path not in changes:
            plain: Tensor = layer.weight
            return plain
        base: Tensor = layer.get_base_layer().weight
        return base + torch.outer(changes[path], self.lora_a(path)[0])


def target_paths(targets: str, depth: int) -> tuple[str, ...]:
    """Names of the layers that ``lora-targets`` means, in the order of the blocks.

    Raises
    ------
    ValueError
        If a target is not of the form BLOCK.LAYER or its block does not exist.
    """
    paths = set()
    for target in (part.strip() for part in targets.split(",")):
        block, _, layer = target.partition(".")
        blocks = {"last": [depth - 1], "all": list(range(depth))}.get(block)
        if blocks is None and block.lstrip("-").isdigit():
            blocks = [int(block) % depth] if -depth <= int(block) < depth else []
        if not blocks or layer not in LAYERS:
            raise ValueError(
                f"lora-targets = {targets!r}: {target!r} must be BLOCK.LAYER, BLOCK one of last, "
                f"all, {-depth} to {depth - 1}, LAYER one of {', '.join(LAYERS)}"
            )
        paths |= {(index, LAYERS[layer]) for index in blocks}
    return tuple(f"blocks.{index}.{layer}" for index, layer in sorted(paths))


def add_lora(backbone: VisionTransformer, targets: str = DEFAULT_TARGETS) -> Lora:
    """Put frozen A's and zero B's on the target layers, in place.

    Of the whole model only the B's require a gradient afterwards.

    Raises
    ------
    ValueError
        If a target does not exist in this model.
    """
    paths = target_paths(targets, len(backbone.blocks))
    for path in paths:
        parent, _, layer = path.rpartition(".")
        if layer in _FUSED:
            block = backbone.get_submodule(parent.removesuffix(".attn.qkv"))
            fused = getattr(getattr(block, "attn", None), "qkv", None)
            if isinstance(fused, nn.Linear):
                block.attn.qkv = SplitQKV(fused)
            elif not isinstance(fused, SplitQKV):
                raise ValueError(
                    f"model: {parent} is no fused qkv projection that LoRA could split"
                )
    missing = [path for path in paths if not isinstance(_get(backbone, path), nn.Linear)]
    if missing:
        raise ValueError(f"lora-targets = {targets!r}: the model has no linear layer {missing[0]}")
    sizes = tuple(backbone.get_submodule(path).out_features for path in paths)
    inject_adapter_in_model(LoraConfig(r=1, lora_alpha=1, target_modules=list(paths)), backbone)
    lora = Lora(backbone, paths, sizes)
    generator = torch.Generator().manual_seed(PUBLIC_SEED)
    with torch.no_grad():
        for path in paths:
            row = lora.lora_a(path)
            row.normal_(std=row.numel() ** -0.5, generator=generator)
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(".lora_B." in name)
    backbone.eval()
    return lora


def _get(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None
