"""What this project is measured against: the floor, and loops over the clients with autograd."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, one_hot

from pina_app.classifier import Classifier
from pina_app.model import HEAD_BIAS, HEAD_WEIGHT, LORA_B
from strategies.wire import Model

aten = torch.ops.aten


class Floor:
    """The limit of the reduced computation: its products, and hardly anything else.

    Gradients are written by hand; frozen scales, shifts and the whitener's mean are folded into
    the weights; B moves one (heads, h) matrix a client instead of a projection a sample; clients
    go through all epochs in chunks whose activations stay in the processor's cache. No Flower,
    clipping, noise or accounting. Plain SGD on full batches; all clients have equally many images.
    """

    def __init__(self, classifier: Classifier, chunk: int = 50) -> None:
        tail = classifier.tail
        block, backbone, statistics = tail.block, tail.backbone, classifier.statistics
        self.width, self.heads, self.chunk = tail.width, tail.heads, chunk

        def affine(norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
            return norm.weight.detach(), norm.bias.detach()

        def layer_scale(scale: nn.Module) -> Tensor:
            return scale.gamma.detach() if hasattr(scale, "gamma") else torch.ones(self.width)

        one, two = layer_scale(block.ls1)[:, None], layer_scale(block.ls2)
        projection = one * block.attn.proj.weight.detach()
        # (heads, h, h / heads): head by head, from B to what it adds to the token
        self.projection = projection.unflatten(1, (self.heads, -1)).transpose(0, 1).contiguous()
        fc1, fc2 = block.mlp.fc1, block.mlp.fc2
        scale, shift = affine(block.norm2)
        self.up = (fc1.weight.detach() * scale).contiguous()
        self.up_bias = fc1.bias.detach() + fc1.weight.detach() @ shift
        self.down = (two[:, None] * fc2.weight.detach()).contiguous()
        self.down_bias = two * fc2.bias.detach()
        whitener = torch.from_numpy(statistics.head)
        scale, shift = affine(backbone.norm)
        self.white = (whitener * scale).contiguous()
        self.white_bias = whitener @ (shift - torch.from_numpy(statistics.mean))
        self.eps = (block.norm2.eps, backbone.norm.eps)

    @torch.no_grad()
    def train(
        self, model: Model, samples: Tensor, labels: Tensor, epochs: int, rate: float
    ) -> Tensor:
        """Updates (K, D) of clients with samples (K, n, numbers): bias, weight, B in turn."""
        pairs = zip(samples.split(self.chunk), labels.split(self.chunk), strict=True)
        return torch.cat([self._train(model, x, y, epochs, rate) for x, y in pairs])

    def _train(self, model: Model, x: Tensor, y: Tensor, epochs: int, rate: float) -> Tensor:
        (clients, images), h = y.shape, self.width
        rows = clients * images
        start = [
            torch.from_numpy(np.array(model[name])) for name in (HEAD_BIAS, HEAD_WEIGHT, LORA_B)
        ]
        bias, weight, lora = (value.expand(clients, *value.shape).clone() for value in start)
        at_zero, attended = x[..., :h].reshape(rows, h), x[..., h:].contiguous()
        targets = one_hot(y, bias.shape[1]).float()
        step = -rate / images
        for _ in range(epochs):
            # (heads, K, h / heads) @ (heads, h / heads, h): what each head's mean adds to a token
            split = lora.unflatten(1, (self.heads, -1)).transpose(0, 1)
            moves = torch.bmm(split, self.projection.transpose(1, 2)).transpose(0, 1)
            token = torch.baddbmm(at_zero.view(clients, images, h), attended, moves).view(rows, h)
            normed, mean1, rstd1 = aten.native_layer_norm(token, [h], None, None, self.eps[0])
            hidden = torch.addmm(self.up_bias, normed, self.up.t())
            result = torch.addmm(self.down_bias, aten.gelu(hidden), self.down.t()).add_(token)
            final, mean2, rstd2 = aten.native_layer_norm(result, [h], None, None, self.eps[1])
            white = torch.addmm(self.white_bias, final, self.white.t()).view(clients, images, h)
            logits = torch.baddbmm(bias[:, None], white, weight.transpose(1, 2))
            delta = logits.softmax(dim=2).sub_(targets)
            back = torch.bmm(delta, weight).view(rows, h)
            weight.baddbmm_(delta.transpose(1, 2), white, alpha=step)
            bias.add_(delta.sum(dim=1), alpha=step)
            back = self._norm_backward(back @ self.white, result, mean2, rstd2)
            inner = aten.gelu_backward(back @ self.down, hidden) @ self.up
            back += self._norm_backward(inner, token, mean1, rstd1)
            moved = torch.bmm(attended.transpose(1, 2), back.view(clients, images, h))
            gradient = torch.bmm(moved.transpose(0, 1), self.projection)  # (heads, K, h / heads)
            lora.add_(gradient.transpose(0, 1).flatten(1), alpha=step)
        moved = [bias - start[0], (weight - start[1]).flatten(1), lora - start[2]]
        return torch.cat(moved, dim=1)

    def _norm_backward(self, back: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
        mask = [True, False, False]
        return aten.native_layer_norm_backward(back, x, [self.width], mean, rstd, None, None, mask)[
            0
        ]


class PlainViT(nn.Module):
    """The whole frozen ViT with its LoRA, whitener and head, as any training loop would run it."""

    def __init__(self, backbone: nn.Module, mean: Tensor, whitener: Tensor, classes: int) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        self.lora_b = next(p for n, p in backbone.named_parameters() if "lora_B" in n)
        self.lora_b.requires_grad_(True)
        self.register_buffer("mean", mean)
        self.register_buffer("whitener", whitener)
        self.head = nn.Linear(len(mean), classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits."""
        tokens = self.backbone.forward_features(pixels)
        features = self.backbone.forward_head(tokens, pre_logits=True)
        return self.head(linear(features - self.mean, self.whitener))


def train_loop(
    trained: dict[str, Tensor],
    logits: Callable[[], Tensor],
    labels: Tensor,
    epochs: int,
    rate: float,
) -> Tensor:
    """Full-batch SGD with autograd; returns the update (D,): bias, weight, B in turn."""
    parameters = [trained[name] for name in (HEAD_BIAS, HEAD_WEIGHT, LORA_B)]
    begin = [parameter.detach().clone() for parameter in parameters]
    for _ in range(epochs):
        gradients = torch.autograd.grad(cross_entropy(logits(), labels), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= rate * gradient
    with torch.no_grad():
        return torch.cat([(p - b).flatten() for p, b in zip(parameters, begin, strict=True)])


def full_vit(
    classifier: Classifier, model: Model, pixels: Tensor, labels: Tensor, epochs: int, rate: float
) -> Tensor:
    """One client's update with the whole ViT forward and backward in every step."""
    statistics = classifier.statistics
    mean, whitener = torch.from_numpy(statistics.mean), torch.from_numpy(statistics.head)
    plain = PlainViT(classifier.tail.backbone, mean, whitener, len(model[HEAD_BIAS]))
    trained = {HEAD_BIAS: plain.head.bias, HEAD_WEIGHT: plain.head.weight, LORA_B: plain.lora_b}
    before = plain.lora_b.detach().clone()
    try:
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(torch.from_numpy(np.array(model[name])).view_as(parameter))
        return train_loop(trained, lambda: plain(pixels), labels, epochs, rate)
    finally:
        with torch.no_grad():
            plain.lora_b.copy_(before)
        plain.lora_b.requires_grad_(False)


def frozen_once(
    classifier: Classifier, model: Model, pixels: Tensor, labels: Tensor, epochs: int, rate: float
) -> Tensor:
    """One client's update; what is frozen is reduced once, exactly, and then trained with autograd.

    The strongest loop over clients: it knows the reduction, and only does not keep it for the next
    round nor batch over clients.
    """
    trained = {
        name: torch.from_numpy(np.array(value)).requires_grad_() for name, value in model.items()
    }
    samples = classifier.tail.reduce(pixels)
    return train_loop(trained, lambda: classifier.logits(trained, samples), labels, epochs, rate)
