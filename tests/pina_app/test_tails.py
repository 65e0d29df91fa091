"""The reductions against the full model, forward and backward."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models.vision_transformer import ParallelScalingBlock, ResPostBlock, VisionTransformer
from torch import Tensor
from torch.func import functional_call, grad, vmap

from pina_app.lora import SplitQKV, add_lora, target_paths
from pina_app.tails import BlockTail, ClassTokenTail, FeatureTail, create_tail
from tests.pina_app.vits import LORA_A, fused_features, lora_a, random_pixels, random_vit

PEFT_B = "attn.qkv.value.lora_B.default.weight"
CLASSES = 5

TOKEN_VITS = [
    {},
    {"depth": 1},
    {"depth": 3, "num_heads": 4, "embed_dim": 24},
    {"num_heads": 1, "embed_dim": 12},
    {"init_values": 0.5},
    {"qk_norm": True},
    {"class_token": True, "reg_tokens": 3},
    {"reg_tokens": 2, "no_embed_class": True, "init_values": 0.1, "qk_norm": True},
    {"pre_norm": True},
    {"qkv_bias": False},
    {"proj_bias": False},
    {"patch_size": 2},
    {"patch_size": 8},
    {"img_size": (8, 12)},
    {"fc_norm": True},
    {"final_norm": False},
    {"in_chans": 1, "mlp_ratio": 2.0},
    {"scale_mlp_norm": True},
]
OTHER_VITS = [
    {"global_pool": "avg"},
    {"global_pool": "avg", "class_token": False, "depth": 3},
    {"global_pool": "avg", "class_token": True, "reg_tokens": 2, "qk_norm": True},
    {"global_pool": "avg", "fc_norm": False, "init_values": 0.5},
    {"global_pool": "max", "pool_include_prefix": True},
    {"global_pool": "avgmax"},
    {"global_pool": "map", "class_token": False},
    {"global_pool": "map", "num_heads": 4, "reg_tokens": 1},
    {"block_fn": ResPostBlock, "init_values": 0.5},
    {"scale_attn_norm": True},
]


def relative(actual: Tensor, expected: Tensor) -> float:
    """Largest deviation over the norm's scale of the expected values."""
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-6))


def assert_exact(options: dict[str, Any], seed: int) -> None:
    """Features, and gradients of a loss in B and the head, of the reduced and the full models."""
    plain = random_vit(seed, **options)
    wrapped = copy.deepcopy(plain)
    add_lora(wrapped)
    tail = create_tail(copy.deepcopy(plain))
    pixels = random_pixels(plain, 6, seed + 1)
    rng = torch.Generator().manual_seed(seed + 2)
    width = plain.embed_dim
    head = torch.randn((CLASSES, width), generator=rng) / width**0.5
    targets = torch.randint(0, CLASSES, (len(pixels),), generator=rng)
    samples = tail.reduce(pixels)
    name = f"blocks.{len(plain.blocks) - 1}.{PEFT_B}"
    models = {
        "reduced": lambda b: tail.features(samples, b),
        "peft": lambda b: functional_call(wrapped, {name: b[:, None]}, (pixels,)),
        "fused": lambda b: fused_features(plain, pixels, lora_a(tail), b),
    }
    for scale in (0.0, 0.3):
        results = {}
        for model, features in models.items():
            b = (scale * torch.randn(width, generator=torch.Generator().manual_seed(9))).clone()
            b.requires_grad_()
            h = head.clone().requires_grad_()
            output = features(b)
            loss = torch.nn.functional.cross_entropy(output @ h.T, targets)
            results[model] = (output.detach(), *torch.autograd.grad(loss, (b, h)))
        assert results["fused"][1].abs().max() > 1e-4  # B matters, or the test says nothing
        for model in ("peft", "fused"):
            for quantity, actual, expected in zip(
                ("features", "gradient of B", "gradient of head"),
                results["reduced"],
                results[model],
                strict=True,
            ):
                error = relative(actual, expected)
                assert error < 1e-5, f"{quantity} against {model}, |B| {scale}: {error:.2e}"


@pytest.mark.parametrize("options", TOKEN_VITS, ids=str)
def test_class_token_tail_is_exact(options: dict[str, Any]) -> None:
    """Chosen where it fits, and equal to the full model."""
    assert ClassTokenTail.fits(add_lora(random_vit(**options)))
    assert_exact(options, seed=len(str(options)))


@pytest.mark.parametrize("options", OTHER_VITS, ids=str)
def test_block_tail_is_exact(options: dict[str, Any]) -> None:
    """Chosen where the class-token reduction does not fit, and equal to the full model."""
    vit = random_vit(**options)
    assert not ClassTokenTail.fits(add_lora(copy.deepcopy(vit)))
    assert isinstance(create_tail(vit), BlockTail)
    assert_exact(options, seed=len(str(options)))


@settings(max_examples=20)
@given(
    depth=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 3, 4]),
    head_width=st.sampled_from([4, 8, 10]),
    patch=st.sampled_from([2, 4, 8]),
    registers=st.integers(0, 2),
    init_values=st.sampled_from([None, 0.3]),
    qk_norm=st.booleans(),
    pre_norm=st.booleans(),
    pool=st.sampled_from(["token", "token", "avg", "map"]),
    seed=st.integers(0, 2**16),
)
def test_any_small_vit_is_exact(
    depth: int,
    heads: int,
    head_width: int,
    patch: int,
    registers: int,
    init_values: float | None,
    qk_norm: bool,
    pre_norm: bool,
    pool: str,
    seed: int,
) -> None:
    """The chosen tail equals the full model whatever the shape."""
    options = {
        "depth": depth,
        "num_heads": heads,
        "embed_dim": heads * head_width,
        "patch_size": patch,
        "reg_tokens": registers,
        "init_values": init_values,
        "qk_norm": qk_norm,
        "pre_norm": pre_norm,
        "global_pool": pool,
    }
    kind = ClassTokenTail if pool == "token" else BlockTail
    assert isinstance(create_tail(random_vit(seed, **options)), kind)
    assert_exact(options, seed)


@pytest.mark.parametrize("options", [{}, {"global_pool": "avg"}, {"global_pool": "map"}], ids=str)
def test_gradients_of_many_clients_at_once(options: dict[str, Any]) -> None:
    """``vmap`` over clients, which training uses, equals a loop over them."""
    vit = random_vit(5, **options)
    tail = create_tail(vit)
    samples = tail.reduce(random_pixels(vit, 12)).unflatten(0, (3, 4))
    b = 0.2 * torch.randn((3, tail.width), generator=torch.Generator().manual_seed(0))

    def loss(lora_b: Tensor, own: Tensor) -> Tensor:
        return tail.features(own, lora_b).square().sum()

    together = vmap(grad(loss))(b, samples)
    for client in range(3):
        own = b[client].clone().requires_grad_()
        (alone,) = torch.autograd.grad(loss(own, samples[client]), own)
        assert relative(together[client], alone) < 1e-5


def test_class_token_sample_is_width_plus_heads() -> None:
    """The samples are as small as promised."""
    vit = random_vit(num_heads=4)
    assert create_tail(vit).reduce(random_pixels(vit, 3)).shape == (3, 16 + 4)


def test_block_sample_is_all_tokens() -> None:
    """The input of the last block."""
    vit = random_vit(global_pool="avg", class_token=True)
    assert create_tail(vit).reduce(random_pixels(vit, 3)).shape == (3, 4 + 1, 16)


@pytest.mark.parametrize("options", [*TOKEN_VITS, *OTHER_VITS], ids=str)
def test_feature_sample_is_the_feature(options: dict[str, Any]) -> None:
    """Where no layer is adapted: (n, h), what the other tails and timm compute at B = 0."""
    vit = random_vit(3, **options)
    pixels = random_pixels(vit, 5)
    whole = vit.forward_head(vit.forward_features(pixels), pre_logits=True)
    other = create_tail(copy.deepcopy(vit))
    tail = create_tail(vit, adapted=False)
    assert isinstance(tail, FeatureTail)
    samples, no_lora = tail.reduce(pixels), torch.zeros(tail.lora.size)
    assert samples.shape == (5, vit.embed_dim)
    assert relative(tail.features(samples, no_lora), whole) < 1e-5
    assert relative(samples, other.features(other.reduce(pixels), no_lora)) < 1e-4


@pytest.mark.parametrize("bias", [True, False])
def test_split_qkv_equals_the_fused_layer(bias: bool) -> None:
    """Same rows in the same order."""
    torch.manual_seed(0)
    fused = torch.nn.Linear(12, 36, bias=bias)
    x = torch.randn(2, 5, 12)
    split = SplitQKV(fused)
    torch.testing.assert_close(split(x), fused(x), rtol=1e-6, atol=1e-6)
    assert torch.equal(split.value.weight, fused.weight[24:])
    assert (split.value.bias is not None) == bias


@pytest.mark.parametrize("options", [{}, {"global_pool": "avg"}, {"depth": 3, "qk_norm": True}])
def test_exactly_h_numbers_are_trainable(options: dict[str, Any]) -> None:
    """Of the whole peft-wrapped model only B of the last value projection (PINA, Section 3.2)."""
    vit = random_vit(**options).requires_grad_(True)
    vit.requires_grad_(False)
    lora = add_lora(vit)
    trainable = {n: p for n, p in vit.named_parameters() if p.requires_grad}
    assert list(trainable) == [f"blocks.{len(vit.blocks) - 1}.{PEFT_B}"]
    assert sum(p.numel() for p in trainable.values()) == vit.embed_dim
    assert not next(iter(trainable.values())).any()  # B starts at zero
    assert lora.size == vit.embed_dim
    assert not vit.training


def test_sgd_on_the_wrapped_model_changes_b_only() -> None:
    """A plain training loop over all of the model's parameters moves h numbers and no other."""
    vit = random_vit()
    add_lora(vit)
    before = {n: p.clone() for n, p in vit.named_parameters()}
    optimizer = torch.optim.SGD([p for p in vit.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        vit(random_pixels(vit, 4)).square().sum().backward()
        optimizer.step()
    changed = [n for n, p in vit.named_parameters() if not torch.equal(p, before[n])]
    assert changed == [f"blocks.1.{PEFT_B}"]


def test_a_is_public_gaussian_and_the_same_everywhere() -> None:
    """A does not depend on the process's random state or on the weights."""
    draws = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        draws.append(lora_a(create_tail(random_vit(seed, embed_dim=400, num_heads=4))))
    assert torch.equal(*draws)
    # 400 numbers of variance 1/400: mean within 4 standard errors, square sum by chi-square.
    assert abs(float(draws[0].mean())) < 4 / 400
    assert 0.75 < float(draws[0].square().sum()) < 1.3


@pytest.mark.parametrize("options", [{}, {"qkv_bias": False}, {"global_pool": "avg"}], ids=str)
def test_merging_changes_value_rows_only(options: dict[str, Any]) -> None:
    """q and k rows stay bit-identical; the value rows get the outer product B A."""
    vit = random_vit(7, **options)
    original = vit.blocks[-1].attn.qkv.weight.clone()
    tail = create_tail(vit)
    width = tail.width
    b = torch.linspace(-1, 1, width)
    name = f"blocks.{len(vit.blocks) - 1}.attn.qkv.weight"
    merged = tail.lora.merged(b)[name]
    assert torch.equal(merged[: 2 * width], original[: 2 * width])
    np.testing.assert_allclose(
        merged[2 * width :] - original[2 * width :], np.outer(b, lora_a(tail)), atol=1e-6
    )
    assert torch.equal(tail.lora.merged(torch.zeros(width))[name], original)


def test_reduce_leaves_the_model_as_it_was() -> None:
    """No hook or probe stays behind, also after a failed pass."""
    vit = random_vit()
    tail = create_tail(vit)
    pixels = random_pixels(vit, 2)
    first = tail.reduce(pixels)
    state = {name: value.clone() for name, value in vit.state_dict().items()}
    assert torch.equal(tail.reduce(pixels), first)
    assert state.keys() == vit.state_dict().keys()
    assert LORA_A in dict(tail.block.named_parameters())
    hooks = [m for m in vit.modules() if m._forward_pre_hooks or m._forward_hooks]
    assert hooks == []


def test_a_block_without_qkv_is_refused() -> None:
    """A clear message, not an AttributeError."""
    with pytest.raises(ValueError, match="no fused qkv"):
        create_tail(random_vit(block_fn=ParallelScalingBlock))


def test_tail_has_no_trainable_parameters() -> None:
    """B is an argument; the module itself is frozen."""
    vit: VisionTransformer = random_vit()
    assert not any(p.requires_grad for p in create_tail(vit).parameters())


TARGETS = ["last.value", "last.query,last.fc2", "0.value", "all.value,1.key,-1.proj", "all.fc1"]


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("options", [{"depth": 3}, {"depth": 3, "global_pool": "avg"}], ids=str)
def test_any_targets_are_exact(targets: str, options: dict[str, Any]) -> None:
    """Features and gradients of the reduced model equal the peft-wrapped full model's to 1e-5.

    The merged weights in a plain timm ViT give the same features.
    """
    plain = random_vit(4, **options)
    wrapped = copy.deepcopy(plain)
    lora = add_lora(wrapped, targets)
    tail = create_tail(copy.deepcopy(plain), targets)
    assert tail.lora.paths == lora.paths
    pixels = random_pixels(plain, 5)
    samples = tail.reduce(pixels)
    b = (0.2 * torch.randn(lora.size, generator=torch.Generator().manual_seed(8))).requires_grad_()
    reduced = tail.features(samples, b)
    full = functional_call(wrapped, lora.parameters(b), (pixels,))
    assert relative(reduced, full) < 1e-5
    gradients = [torch.autograd.grad(out.square().sum(), b)[0] for out in (reduced, full)]
    assert gradients[1].abs().max() > 1e-4
    assert relative(*gradients) < 1e-5
    merged = {name: value.detach() for name, value in tail.lora.merged(b.detach()).items()}
    plain.load_state_dict(merged, strict=False)
    assert relative(plain(pixels), full) < 1e-5


def test_the_cut_is_the_first_adapted_block() -> None:
    """Targets of later blocks leave more to the frozen prefix."""
    first = create_tail(random_vit(depth=3), "1.value,2.fc1")
    assert isinstance(first, BlockTail)
    assert first.cut == 1
    assert isinstance(create_tail(random_vit(depth=3), "2.value"), ClassTokenTail)
    assert isinstance(create_tail(random_vit(depth=3), "2.value,2.key"), BlockTail)


def test_target_names() -> None:
    assert target_paths("last.value", 12) == ("blocks.11.attn.qkv.value",)
    assert target_paths("-1.value,11.value", 12) == ("blocks.11.attn.qkv.value",)
    assert target_paths("all.fc1", 2) == ("blocks.0.mlp.fc1", "blocks.1.mlp.fc1")
    for bad in ("value", "12.value", "-13.value", "last.norm", "", "first.value"):
        with pytest.raises(ValueError, match="lora-targets"):
            target_paths(bad, 12)
