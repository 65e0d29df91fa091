"""The trainable model on reduced samples: features, whitened head, losses, embeddings, export."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from pina_app.model import HEAD_BIAS, HEAD_WEIGHT, LORA_B
from pina_app.tails import Tail
from strategies.clustering import discriminant
from strategies.clustering.frame import Frame
from strategies.clustering.public_statistics import PublicStatistics
from strategies.clustering.secure_kmeans import client_embedding

Parameters = dict[str, Tensor]
_CHUNK = 4096  # samples in one forward pass


class Classifier:
    """A tail with publicly whitened features and a linear head.

    Parameters
    ----------
    tail : Tail
        Frozen; on the device where everything is computed.
    statistics : PublicStatistics
        Mean and whitener of the head's input.
    """

    def __init__(self, tail: Tail, statistics: PublicStatistics) -> None:
        self.tail = tail
        self.statistics = statistics
        self.device = next(tail.parameters()).device
        self._no_lora = torch.zeros(tail.lora.size, device=self.device)
        self._mean = torch.from_numpy(statistics.mean).to(self.device)
        self._whitener = torch.from_numpy(statistics.head).to(self.device)

    def logits(self, parameters: Parameters, samples: Tensor) -> Tensor:
        """Logits (n, classes) of samples under one model.

        With a leading client axis on samples and parameters: (K, n, classes) of K clients, each
        under its own model.
        """
        weight, bias = parameters[HEAD_WEIGHT], parameters[HEAD_BIAS]
        no_lora = self._no_lora.expand(*weight.shape[:-2], -1)
        features = self.tail.features(samples, parameters.get(LORA_B, no_lora))
        white = linear(features - self._mean, self._whitener)
        if weight.ndim == 2:
            return linear(white, weight, bias)
        return torch.baddbmm(bias[:, None], white, weight.transpose(1, 2))

    def tensors(self, model: Mapping[str, NDArray[np.floating]]) -> Parameters:
        """A model's arrays on this classifier's device."""
        return {
            name: torch.from_numpy(np.array(values, dtype=np.float32)).to(self.device)
            for name, values in model.items()
        }

    @torch.no_grad()
    def frozen_features(self, samples: Tensor) -> NDArray[np.float32]:
        """Features (n, h) of the frozen model (B = 0), before whitening."""
        chunks = [
            self.tail.features(c.to(self.device), self._no_lora) for c in samples.split(_CHUNK)
        ]
        features: NDArray[np.float32] = torch.cat(chunks).cpu().numpy()
        return features

    def client_features(self, clients: Sequence[Tensor]) -> list[NDArray[np.float32]]:
        """Frozen features (n_k, h) of several clients' samples."""
        features = self.frozen_features(torch.cat(list(clients)))
        return np.split(features, np.cumsum([len(samples) for samples in clients])[:-1])

    def embeddings(self, clients: Sequence[Tensor]) -> NDArray[np.float64]:
        """Embeddings (n, m) of several clients' samples."""
        centred = self.statistics.centred
        return np.stack([client_embedding(w, centred=centred) for w in self.whitened(clients)])

    def whitened(self, clients: Sequence[Tensor]) -> list[NDArray[np.float64]]:
        """Features (n_k, m) of several clients, whitened as for their embeddings."""
        return [self.statistics.whitened(part) for part in self.client_features(clients)]

    def framed_embeddings(
        self, clients: Sequence[Tensor], labels: Sequence[Tensor], frame: Frame
    ) -> NDArray[np.float64]:
        """Embeddings (n, r) in a frame of ``strategies.clustering.frame``."""
        return np.stack(
            [
                discriminant.embedding(rows, own.numpy(), frame)
                for rows, own in zip(self.whitened(clients), labels, strict=True)
            ]
        )

    @torch.no_grad()
    def predict(self, model: Mapping[str, NDArray[np.floating]], samples: Tensor) -> Tensor:
        """Logits (n, classes) without gradients, in chunks."""
        parameters = self.tensors(model)
        chunks = [self.logits(parameters, c.to(self.device)) for c in samples.split(_CHUNK)]
        return torch.cat(chunks).cpu()

    def client_losses(
        self,
        models: Sequence[Mapping[str, NDArray[np.floating]]],
        clients: Sequence[Tensor],
        labels: Sequence[Tensor],
    ) -> NDArray[np.float64]:
        """Mean training loss (n, C) of every client under every cluster model (PINA, Eq. 6)."""
        samples, targets = torch.cat(list(clients)), torch.cat(list(labels))
        sizes = np.array([len(part) for part in clients])
        starts = np.cumsum(sizes) - sizes
        losses = np.stack(
            [
                cross_entropy(self.predict(m, samples), targets, reduction="none").numpy()
                for m in models
            ],
            axis=1,
        ).astype(np.float64)
        return np.add.reduceat(losses, starts) / sizes[:, None]  # type: ignore[no-any-return]

    @torch.no_grad()
    def to_timm(self, model: Mapping[str, NDArray[np.floating]]) -> dict[str, Tensor]:
        """Arrays that turn the plain timm ViT (``num_classes`` set) into this cluster model.

        The LoRA is merged into the layers it adapts (fused qkv weights whole), the whitener into
        the head: ``W (f - mu) @ H + b``.
        """
        parameters = self.tensors(model)
        weight = parameters[HEAD_WEIGHT] @ self._whitener
        bias = parameters[HEAD_BIAS] - weight @ self._mean
        merged = self.tail.lora.merged(parameters.get(LORA_B, self._no_lora))
        return {
            **{name: value.contiguous() for name, value in merged.items()},
            "head.weight": weight.contiguous(),
            "head.bias": bias.contiguous(),
        }
