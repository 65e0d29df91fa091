"""The trainable end of a frozen ViT, and the exact reduction of an image to what reaches it.

Everything before the first adapted layer is frozen, so an image is reduced once and never seen
again. The cut is found from the model and the LoRA targets:

``ClassTokenTail``: if only the last value projection is adapted and the model reads the class
token alone, the last block's attention weights are constants. With A and the value weights frozen,
the class token after attention is ``u0 + P (B * a)``: u0 is its value at B = 0, ``a`` the
attention-weighted mean of ``A x`` for every head, P the output projection. A sample is h + heads
numbers.

``BlockTail``: for all other targets and poolings a sample is the input (tokens x h) of the first
adapted block.

``FeatureTail``: where no layer is adapted (only the head is trained) a sample is its h features.
"""

import torch
from timm.layers import Attention
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pina_app.lora import DEFAULT_TARGETS, Lora, SplitQKV, add_lora


class ClassTokenTail(nn.Module):
    """Exact reduction for models that read the class token only (see the module docstring)."""

    projection: Tensor

    def __init__(self, lora: Lora) -> None:
        super().__init__()
        self.lora = lora
        self.backbone = lora.backbone
        self.block = self.backbone.blocks[-1]
        self.heads = self.block.attn.num_heads
        self.width = self.backbone.embed_dim
        attention = self.block.attn
        scaled = self.block.ls1(attention.proj.weight.T)  # (h in heads, h), with the layer scale
        self.register_buffer("projection", scaled.unflatten(0, (self.heads, -1)), persistent=False)

    @staticmethod
    def fits(lora: Lora) -> bool:
        """Whether only the class token is read and only the last values are adapted."""
        backbone = lora.backbone
        block = backbone.blocks[-1]
        return (
            lora.paths == (f"blocks.{len(backbone.blocks) - 1}.attn.qkv.value",)
            and backbone.global_pool == "token"
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
        seen: dict[str, Tensor] = {}
        hook = attention.proj.register_forward_pre_hook(lambda _, x: seen.update(values=x[0]))
        attention.qkv = _ConstantValues(qkv, self.lora.lora_a(self.lora.paths[0]))
        try:
            attention(self.block.norm1(tokens))
        finally:
            attention.qkv = qkv
            hook.remove()
        return seen["values"][:, 0].reshape(len(tokens), self.heads, -1)[:, :, 0]

    def features(self, samples: Tensor, lora_b: Tensor) -> Tensor:
        """Features of the class token: (n, h) for B (h,), or (K, n, h) for K clients' B (K, h).

        With one ``a`` a head, B is projected once for each client and head, not for each sample.
        """
        if lora_b.ndim == 1:
            return self.features(samples[None], lora_b[None])[0]
        block = self.block
        by_head = lora_b.unflatten(1, (self.heads, -1)).transpose(0, 1)
        moves = torch.bmm(by_head, self.projection).transpose(0, 1)  # (K, heads, h)
        at_zero, attended = samples[..., : self.width], samples[..., self.width :]
        token = torch.baddbmm(at_zero, attended, moves).flatten(0, 1)
        token = token + block.ls2(block.mlp(block.norm2(token)))
        features = self.backbone.fc_norm(self.backbone.norm(token))
        batched: Tensor = features.unflatten(0, samples.shape[:2])
        return batched


class _ConstantValues(nn.Module):
    """q and k as they are, and ``A x`` in place of every value."""

    def __init__(self, qkv: SplitQKV, lora_a: Tensor) -> None:
        super().__init__()
        self.qkv = qkv
        self.lora_a = lora_a

    def forward(self, x: Tensor) -> Tensor:
        query, key = (self.qkv.get_submodule(name)(x) for name in ("query", "key"))
        values = nn.functional.linear(x, self.lora_a).expand(query.shape)
        return torch.cat([query, key, values], dim=-1)


class BlockTail(nn.Module):
    """For any targets and pooling: the blocks from the first adapted one on, norm and pooling."""

    def __init__(self, lora: Lora) -> None:
        super().__init__()
        self.lora = lora
        self.backbone = lora.backbone
        self.width = self.backbone.embed_dim
        self.cut = lora.first_block
        self.rest = _Rest(self.backbone, self.cut)
        attentions = [block.attn for block in self.backbone.blocks[self.cut :]]
        for attention in (*attentions, self.backbone.attn_pool):
            if attention is not None:
                attention.fused_attn = False  # the fused kernel has no batching rule

    @torch.no_grad()
    def reduce(self, pixels: Tensor) -> Tensor:
        """Samples (n, tokens, h): the input of the first adapted block."""
        seen: dict[str, Tensor] = {}
        block = self.backbone.blocks[self.cut]
        hook = block.register_forward_pre_hook(lambda _, x: seen.update(tokens=x[0]))
        self.backbone.forward_features(pixels)
        hook.remove()
        return seen["tokens"]

    def features(self, samples: Tensor, lora_b: Tensor) -> Tensor:
        """Pooled features: (n, h) for one vector of all B's, (K, n, h) for those of K clients."""
        if lora_b.ndim == 2:
            return vmap(self.features)(samples, lora_b)
        named = self.lora.parameters(lora_b)
        weights = {f"backbone.{name}": value for name, value in named.items()}
        pooled: Tensor = functional_call(self.rest, weights, (samples,))
        return pooled


class _Rest(nn.Module):
    """A backbone from one block on."""

    def __init__(self, backbone: VisionTransformer, cut: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.cut = cut

    def forward(self, tokens: Tensor) -> Tensor:
        for block in self.backbone.blocks[self.cut :]:
            tokens = block(tokens)
        pooled: Tensor = self.backbone.forward_head(self.backbone.norm(tokens), pre_logits=True)
        return pooled


class FeatureTail(nn.Module):
    """Nothing is left to compute; the LoRA stays at B = 0."""

    def __init__(self, lora: Lora) -> None:
        super().__init__()
        self.lora = lora
        self.backbone = lora.backbone
        self.width = self.backbone.embed_dim

    @torch.no_grad()
    def reduce(self, pixels: Tensor) -> Tensor:
        """Samples (n, h): the pooled features."""
        tokens = self.backbone.forward_features(pixels)
        features: Tensor = self.backbone.forward_head(tokens, pre_logits=True)
        return features

    def features(self, samples: Tensor, lora_b: Tensor) -> Tensor:
        """The samples, (n, h) or (K, n, h); ``lora_b`` must be 0."""
        return samples


Tail = ClassTokenTail | BlockTail | FeatureTail


def create_tail(
    backbone: VisionTransformer, targets: str = DEFAULT_TARGETS, *, adapted: bool = True
) -> Tail:
    """Add the LoRA, in place, and choose the smallest exact reduction.

    ``adapted``: whether the LoRA is trained at all.
    """
    lora = add_lora(backbone, targets)
    fits = ClassTokenTail if ClassTokenTail.fits(lora) else BlockTail
    return (fits if adapted else FeatureTail)(lora).requires_grad_(False)
