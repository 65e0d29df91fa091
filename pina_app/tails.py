"""What PINA trains of a frozen ViT, reduced to what depends on it.

Trainable is B of a rank-1 LoRA on the value projection of the last block (h numbers, by peft;
timm fuses q, k and v, so the fused layer is split first); a linear head follows. Everything
before is frozen, so an image is reduced once, exactly, and never seen again:

``ClassTokenTail``: if the model reads the class token only, the last block's attention weights
are constants. With A and the value weights frozen, the class token after attention is
``u0 + P (B * a)``: u0 is its value at B = 0, ``a`` the attention-weighted mean of ``A x`` for
every head, P the output projection. A sample is h + heads numbers.

``BlockTail``: for any other pooling a sample is the input of the last block (tokens x h).
"""

import torch
from peft import LoraConfig, inject_adapter_in_model
from timm.layers import Attention
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.func import functional_call

from strategies.clustering.public_statistics import PUBLIC_SEED

_PEFT_A = "attn.qkv.value.lora_A.default.weight"
_PEFT_B = "attn.qkv.value.lora_B.default.weight"


class SplitQKV(nn.Module):
    """timm's fused q, k, v projection as two layers, so that LoRA can sit on the values alone."""

    def __init__(self, fused: nn.Linear) -> None:
        super().__init__()
        rows = fused.out_features // 3
        self.query_key = nn.Linear(fused.in_features, 2 * rows, bias=fused.bias is not None)
        self.value = nn.Linear(fused.in_features, rows, bias=fused.bias is not None)
        with torch.no_grad():
            self.query_key.weight.copy_(fused.weight[: 2 * rows])
            self.value.weight.copy_(fused.weight[2 * rows :])
            if fused.bias is not None:
                self.query_key.bias.copy_(fused.bias[: 2 * rows])
                self.value.bias.copy_(fused.bias[2 * rows :])

    def forward(self, x: Tensor) -> Tensor:
        """Same output as the fused layer."""
        return torch.cat([self.query_key(x), self.value(x)], dim=-1)


def add_value_lora(backbone: VisionTransformer) -> nn.Module:
    """Split the last block's qkv and put peft's rank-1 LoRA on its value projection, in place.

    A is drawn from a Gaussian of variance 1/h with the public seed and frozen: with unit variance
    the update of B is an order of magnitude larger than the head's and takes over the clipped
    update (rotated CIFAR-10 after 17 rounds: FedAvg 46 % instead of 61 %). B starts at zero and is
    the only parameter that requires a gradient: exactly h numbers (PINA, Section 3.2). Returns the
    block.
    """
    block = backbone.blocks[-1]
    qkv = getattr(getattr(block, "attn", None), "qkv", None)
    if not isinstance(qkv, nn.Linear):
        raise ValueError("model: its last block has no fused qkv projection to adapt")
    block.attn.qkv = SplitQKV(qkv)
    inject_adapter_in_model(LoraConfig(r=1, lora_alpha=1, target_modules=["value"]), block)
    generator = torch.Generator().manual_seed(PUBLIC_SEED)
    parameters = dict(block.named_parameters())
    with torch.no_grad():
        lora_a = parameters[_PEFT_A]
        lora_a.normal_(std=lora_a.numel() ** -0.5, generator=generator)
    for name, parameter in parameters.items():
        parameter.requires_grad_(name == _PEFT_B)
    adapted: nn.Module = block.eval()
    return adapted


class ClassTokenTail(nn.Module):
    """Exact reduction for models that read the class token only (see the module docstring)."""

    def __init__(self, backbone: VisionTransformer) -> None:
        super().__init__()
        self.backbone = backbone
        self.block = backbone.blocks[-1]
        self.heads = self.block.attn.num_heads
        self.width = backbone.embed_dim

    @staticmethod
    def fits(backbone: VisionTransformer) -> bool:
        """Whether only the class token is read and the attention is linear in its values."""
        block = backbone.blocks[-1]
        return (
            backbone.global_pool == "token"
            and backbone.attn_pool is None
            and type(block) is Block
            and type(block.attn) is Attention
            and isinstance(block.attn.norm, nn.Identity)
            and block.attn.gate is None
        )

    @torch.no_grad()
    def reduce(self, pixels: Tensor) -> Tensor:
        """Samples (n, h + heads): the class token after attention at B = 0, and ``a``."""
        seen: dict[str, Tensor] = {}
        hooks = [
            self.block.register_forward_pre_hook(lambda _, x: seen.update(tokens=x[0])),
            self.block.norm2.register_forward_pre_hook(lambda _, x: seen.update(after=x[0])),
        ]
        self.backbone.forward_features(pixels)
        for hook in hooks:
            hook.remove()
        attended = self._attend(seen["tokens"])
        return torch.cat([seen["after"][:, 0], attended], dim=1)

    def _attend(self, tokens: Tensor) -> Tensor:
        """Attention-weighted mean of ``A x`` over the tokens for every head, (n, heads).

        The attention is linear in its values: with all values of a token replaced by ``A x``,
        what reaches the output projection is that mean.
        """
        attention = self.block.attn
        qkv = attention.qkv
        lora_a = dict(self.block.named_parameters())[_PEFT_A]
        seen: dict[str, Tensor] = {}
        hook = attention.proj.register_forward_pre_hook(lambda _, x: seen.update(values=x[0]))
        probe = _ConstantValues(qkv.query_key, lora_a, self.width)
        attention.qkv = probe
        try:
            attention(self.block.norm1(tokens))
        finally:
            attention.qkv = qkv
            hook.remove()
        return seen["values"][:, 0].reshape(len(tokens), self.heads, -1)[:, :, 0]

    def features(self, samples: Tensor, lora_b: Tensor) -> Tensor:
        """Features of the class token."""
        block = self.block
        at_zero, attended = samples[:, : self.width], samples[:, self.width :]
        spread = attended.repeat_interleave(lora_b.numel() // self.heads, dim=1)
        change = nn.functional.linear(lora_b * spread, block.attn.proj.weight)
        token = at_zero + block.ls1(change)
        token = token + block.ls2(block.mlp(block.norm2(token)))
        return self.backbone.fc_norm(self.backbone.norm(token))  # type: ignore[no-any-return]


class _ConstantValues(nn.Module):
    """q and k as they are, and ``A x`` in place of every value."""

    def __init__(self, query_key: nn.Linear, lora_a: Tensor, width: int) -> None:
        super().__init__()
        self.query_key = query_key
        self.lora_a = lora_a
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        values = nn.functional.linear(x, self.lora_a).expand(*x.shape[:-1], self.width)
        return torch.cat([self.query_key(x), values], dim=-1)


class BlockTail(nn.Module):
    """For any pooling: the last block, final norm and pooling of the model itself."""

    def __init__(self, backbone: VisionTransformer) -> None:
        super().__init__()
        self.backbone = backbone
        self.block = backbone.blocks[-1]
        self.width = backbone.embed_dim
        for attention in (self.block.attn, backbone.attn_pool):
            if attention is not None:
                attention.fused_attn = False  # the fused kernel has no batching rule

    @torch.no_grad()
    def reduce(self, pixels: Tensor) -> Tensor:
        """Samples (n, tokens, h): the input of the last block."""
        seen: dict[str, Tensor] = {}
        hook = self.block.register_forward_pre_hook(lambda _, x: seen.update(tokens=x[0]))
        self.backbone.forward_features(pixels)
        hook.remove()
        return seen["tokens"]

    def features(self, samples: Tensor, lora_b: Tensor) -> Tensor:
        """Pooled features."""
        tokens = functional_call(self.block, {_PEFT_B: lora_b[:, None]}, (samples,))
        pooled: Tensor = self.backbone.forward_head(self.backbone.norm(tokens), pre_logits=True)
        return pooled


Tail = ClassTokenTail | BlockTail


def create_tail(backbone: VisionTransformer) -> Tail:
    """Add the LoRA and choose the smallest exact reduction."""
    add_value_lora(backbone)
    kind = ClassTokenTail if ClassTokenTail.fits(backbone) else BlockTail
    return kind(backbone).requires_grad_(False)


def merged_qkv(tail: Tail, lora_b: Tensor) -> Tensor:
    """timm's fused qkv weight (3h, h) with the LoRA merged in: only the value rows change."""
    qkv = tail.block.attn.qkv
    base = qkv.value.get_base_layer() if hasattr(qkv.value, "get_base_layer") else qkv.value
    lora_a = dict(tail.block.named_parameters())[_PEFT_A]
    value = base.weight + torch.outer(lora_b, lora_a[0])
    return torch.cat([qkv.query_key.weight, value])
