"""The embedded model: a two-block ViT pretrained on the public part of scikit-learn's digits.

450 public digits pretrain it (upright images, labels, shifts and noise) and give the public
statistics. Its hyper-parameters were chosen on the public part alone
(``experiments/digits_tuning.py``).
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import timm
import torch
from filelock import FileLock
from numpy.typing import NDArray
from safetensors.torch import load_file, save
from torch import nn

from app_kit.digits import PUBLIC_IMAGES, load
from strategies.checkpoint import write_atomically

ARCHITECTURE = {
    "img_size": 8,
    "patch_size": 2,
    "in_chans": 1,
    "embed_dim": 64,
    "depth": 2,
    "num_heads": 4,
    "num_classes": 0,
}
PRETRAINING = {"epochs": 300, "batch": 150, "learning_rate": 4e-3, "noise": 0.2, "version": 1}


def create_vit() -> nn.Module:
    """The untrained backbone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return timm.models.VisionTransformer(**ARCHITECTURE, mlp_ratio=4)  # type: ignore[no-any-return]


def pretrained_weights(cache_dir: Path) -> Path:
    """File of the pretrained backbone; trains it on first use (about half a minute).

    The file's name is a hash of all that determines it. Concurrent callers wait for the first.
    """
    images, labels = load()
    images, labels = images[:PUBLIC_IMAGES], labels[:PUBLIC_IMAGES]
    recipe = {**ARCHITECTURE, **PRETRAINING, "torch": torch.__version__, "timm": timm.__version__}
    key = hashlib.sha256(
        json.dumps(recipe, sort_keys=True).encode() + images.tobytes() + labels.tobytes()
    ).hexdigest()[:16]
    path = cache_dir / f"digits-vit-{key}.safetensors"
    cache_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            print("pretraining the small ViT on the public digits (once, about 30 s) ...")
            backbone = pretrain(images, labels)
            write_atomically(path, save(backbone.state_dict()))
    return path


def pretrain(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> nn.Module:
    """Train the backbone with a linear head on labelled public images."""
    epochs, batch = int(PRETRAINING["epochs"]), int(PRETRAINING["batch"])
    pixels = torch.from_numpy(images).float()[:, None] / 127.5 - 1
    targets = torch.from_numpy(labels)
    backbone = create_vit()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = nn.Linear(int(ARCHITECTURE["embed_dim"]), 10)
    parameters = [*backbone.parameters(), *head.parameters()]
    rate = PRETRAINING["learning_rate"]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.05)
    steps = len(pixels) // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, epochs * steps)
    generator = torch.Generator().manual_seed(0)
    backbone.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(pixels), generator=generator).split(batch)[:steps]:
            shift = torch.randint(-1, 2, (2,), generator=generator).tolist()
            shifted = torch.roll(pixels[chosen], shift, (2, 3))
            noise = torch.randn(shifted.shape, generator=generator)
            logits = head(backbone(shifted + PRETRAINING["noise"] * noise))
            loss = nn.functional.cross_entropy(logits, targets[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return backbone.eval()


def load_pretrained(backbone: nn.Module, cache_dir: Path | None) -> None:
    """Fill the backbone with the pretrained weights; without a cache they are trained anew."""
    if cache_dir is None:
        images, labels = load()
        weights = pretrain(images[:PUBLIC_IMAGES], labels[:PUBLIC_IMAGES]).state_dict()
    else:
        weights = load_file(pretrained_weights(cache_dir))
    backbone.load_state_dict(weights)
