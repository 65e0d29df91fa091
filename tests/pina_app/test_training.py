"""Batched training of many clients against a plain loop over clients on the full ViT."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn.functional import cross_entropy

from pina_app.classifier import Classifier
from pina_app.model import HEAD_BIAS, HEAD_WEIGHT, LORA_B
from pina_app.training import LocalTraining, train_clients
from strategies.wire import Model
from tests.pina_app.vits import (
    classifier_of,
    fused_features,
    lora_a,
    random_model,
    random_pixels,
    random_vit,
)

NAMES = [HEAD_BIAS, HEAD_WEIGHT, LORA_B]  # the order of an update
BASE = LocalTraining(epochs=3, batch_size=4, learning_rate=0.1)


@dataclasses.dataclass
class Task:
    """Clients with raw images, and the same reduced."""

    vit: VisionTransformer
    classifier: Classifier
    pixels: list[Tensor]
    samples: list[Tensor]
    labels: list[Tensor]
    starts: list[Model]

    def rngs(self) -> list[np.random.Generator]:
        """Fresh generators of every client's order."""
        return [np.random.default_rng([7, k]) for k in range(len(self.pixels))]

    def train(self, training: LocalTraining) -> NDArray[np.float64]:
        """The batched result."""
        return train_clients(
            self.classifier, training, self.starts, self.samples, self.labels, self.rngs()
        )


def create_task(sizes: Sequence[int], seed: int = 0, **options: Any) -> Task:
    vit = random_vit(seed, **options)
    classifier = classifier_of(copy.deepcopy(vit))
    pixels = [random_pixels(vit, n, seed=seed + k) for k, n in enumerate(sizes)]
    rng = torch.Generator().manual_seed(seed)
    return Task(
        vit,
        classifier,
        pixels,
        [classifier.tail.reduce(p) for p in pixels],
        [torch.randint(0, 4, (n,), generator=rng) for n in sizes],
        [random_model(16, seed=seed + k) for k in range(len(sizes))],
    )


def slow_update(task: Task, training: LocalTraining, k: int) -> NDArray[np.float64]:
    """One client by torch.optim.SGD on the plain fused ViT and its raw images."""
    start = {n: torch.from_numpy(v.copy()) for n, v in task.starts[k].items()}
    parameters = {n: torch.nn.Parameter(v.clone()) for n, v in start.items()}
    trained = ([LORA_B] if training.train_lora else []) + (
        [HEAD_BIAS, HEAD_WEIGHT] if training.train_head else []
    )
    optimizer = torch.optim.SGD([parameters[n] for n in trained], lr=training.learning_rate)
    statistics = task.classifier.statistics
    a = lora_a(task.classifier.tail)
    rng = task.rngs()[k]
    for _ in range(training.epochs):
        order = rng.permutation(len(task.labels[k]))
        for first in range(0, len(order), training.batch_size):
            batch = order[first : first + training.batch_size]
            features = fused_features(task.vit, task.pixels[k][batch], a, parameters[LORA_B])
            white = (features - torch.from_numpy(statistics.mean)) @ torch.from_numpy(
                statistics.head
            ).T
            logits = white @ parameters[HEAD_WEIGHT].T + parameters[HEAD_BIAS]
            loss = cross_entropy(logits, task.labels[k][batch])
            for name in trained:
                drift = (parameters[name] - start[name]).square().sum()
                loss = loss + training.mu / 2 * drift
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return np.concatenate(
        [(parameters[n].detach() - start[n]).flatten().double().numpy() for n in NAMES]
    )


def assert_equals_the_loop(task: Task, training: LocalTraining) -> None:
    updates = task.train(training)
    assert updates.shape == (len(task.labels), 4 + 4 * 16 + 16)
    assert updates.dtype == np.float64
    for k, update in enumerate(updates):
        expected = slow_update(task, training, k)
        error = np.abs(update - expected).max() / np.abs(expected).max()
        assert error < 1e-5, f"client {k}: {error:.2e}"


@pytest.mark.parametrize("batch_size", [1, 3, 4, 50])
@pytest.mark.parametrize("epochs", [1, 3])
def test_equals_a_loop_over_clients(batch_size: int, epochs: int) -> None:
    """Clients of 1, 7, 4 and 10 images: incomplete batches, and clients that run out of them."""
    training = dataclasses.replace(BASE, batch_size=batch_size, epochs=epochs)
    assert_equals_the_loop(create_task([1, 7, 4, 10]), training)


@pytest.mark.parametrize("options", [{"global_pool": "avg"}, {"global_pool": "map"}], ids=str)
def test_equals_a_loop_for_other_poolings(options: dict[str, Any]) -> None:
    """The block tail trains as exactly as the class-token tail."""
    assert_equals_the_loop(create_task([5, 2], **options), BASE)


@settings(max_examples=10)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    batch_size=st.integers(1, 10),
    epochs=st.integers(1, 2),
    mu=st.sampled_from([0.0, 0.7]),
    seed=st.integers(0, 1000),
)
def test_equals_a_loop_for_any_sizes(
    sizes: list[int], batch_size: int, epochs: int, mu: float, seed: int
) -> None:
    """Drawn sizes, batches, epochs and proximal weights."""
    training = LocalTraining(epochs, batch_size, 0.1, mu=mu)
    assert_equals_the_loop(create_task(sizes, seed), training)


@pytest.mark.parametrize("mu", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("train_lora", [True, False])
def test_the_proximal_term_equals_an_explicit_one(mu: float, train_lora: bool) -> None:
    """FedProx: ``mu / 2 |w - w_start|^2`` added to the loss of every batch."""
    training = dataclasses.replace(BASE, mu=mu, train_lora=train_lora)
    assert_equals_the_loop(create_task([3, 9, 1]), training)


def test_a_larger_proximal_weight_keeps_clients_nearer() -> None:
    """In the limit nobody moves far: FedProx is not SGD."""
    task = create_task([6, 6])
    norms = [
        np.linalg.norm(task.train(dataclasses.replace(BASE, epochs=20, mu=mu)), axis=1)
        for mu in (0.0, 1.0, 8.0)
    ]
    assert (norms[0] > 1.2 * norms[1]).all()
    assert (norms[1] > 1.2 * norms[2]).all()


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 128])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_blocks_of_clients_do_not_change_the_result(at_once: int, mu: float) -> None:
    """Padding depends on the block; results must not."""
    task = create_task([1, 7, 4, 10, 2])
    training = dataclasses.replace(BASE, mu=mu)
    whole = task.train(training)
    blocks = task.train(dataclasses.replace(training, clients_at_once=at_once))
    np.testing.assert_allclose(blocks, whole, rtol=1e-5, atol=1e-6 * np.abs(whole).max())


def test_training_does_not_depend_on_company() -> None:
    """A client alone, or with others of any size: the same update."""
    task = create_task([4, 9, 2])
    together = task.train(BASE)
    for k in range(3):
        alone = train_clients(
            task.classifier,
            BASE,
            task.starts[k : k + 1],
            task.samples[k : k + 1],
            task.labels[k : k + 1],
            task.rngs()[k : k + 1],
        )
        np.testing.assert_allclose(alone[0], together[k], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("train_lora", "train_head", "moving"),
    [
        (True, True, {LORA_B, HEAD_WEIGHT, HEAD_BIAS}),
        (False, True, {HEAD_WEIGHT, HEAD_BIAS}),
        (True, False, {LORA_B}),
    ],
)
@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_what_is_not_trained_does_not_change_at_all(
    train_lora: bool, train_head: bool, moving: set[str], mu: float
) -> None:
    """Exactly zero, not nearly; what is trained equals the loop."""
    task = create_task([5, 3])
    training = dataclasses.replace(BASE, train_lora=train_lora, train_head=train_head, mu=mu)
    updates = task.train(training)
    cuts = {HEAD_BIAS: slice(0, 4), HEAD_WEIGHT: slice(4, 68), LORA_B: slice(68, 84)}
    for name, cut in cuts.items():
        if name in moving:
            assert (np.abs(updates[:, cut]).max(axis=1) > 1e-4).all()
        else:
            assert not updates[:, cut].any()
    assert_equals_the_loop(task, training)


def test_lora_stage_moves_exactly_h_numbers() -> None:
    """Stage 1 of the printed method: B alone, h non-zero numbers."""
    update = create_task([8]).train(dataclasses.replace(BASE, train_head=False))[0]
    assert np.count_nonzero(update) == 16


def test_with_a_zero_head_the_gradient_of_b_is_zero() -> None:
    """Why the printed method needs a non-zero common head (METHODS 6.1)."""
    task = create_task([8])
    task.starts[0][HEAD_WEIGHT][:] = 0
    update = task.train(dataclasses.replace(BASE, train_head=False))
    assert not update.any()


def test_one_full_batch_step_is_minus_the_rate_times_the_gradient() -> None:
    """By finite differences of the mean loss, in some directions."""
    task = create_task([6])
    rate = 1e-2
    training = LocalTraining(epochs=1, batch_size=6, learning_rate=rate)
    gradient = -task.train(training)[0] / rate
    start = np.concatenate([task.starts[0][n].ravel() for n in NAMES]).astype(float)

    def loss(flat: NDArray[np.float64]) -> float:
        shapes = {HEAD_BIAS: (4,), HEAD_WEIGHT: (4, 16), LORA_B: (16,)}
        parts = np.split(flat, [4, 68])
        model = {
            n: p.reshape(shapes[n]).astype(np.float32) for n, p in zip(NAMES, parts, strict=True)
        }
        losses = task.classifier.client_losses([model], task.samples, task.labels)
        return float(losses[0, 0])

    rng = np.random.default_rng(0)
    for _ in range(5):
        direction = rng.standard_normal(84)
        direction /= np.linalg.norm(direction)
        numeric = (loss(start + 0.01 * direction) - loss(start - 0.01 * direction)) / 0.02
        assert gradient @ direction == pytest.approx(numeric, rel=2e-2, abs=1e-3)


def test_inputs_are_left_alone() -> None:
    """Neither start models nor samples are written to."""
    task = create_task([4, 2])
    before = copy.deepcopy((task.starts, task.samples, task.labels))
    task.train(BASE)
    for ours, theirs in zip(task.starts, before[0], strict=True):
        assert all(np.array_equal(ours[n], theirs[n]) for n in NAMES)
    assert all(torch.equal(x, y) for x, y in zip(task.samples, before[1], strict=True))
    assert all(torch.equal(x, y) for x, y in zip(task.labels, before[2], strict=True))


def test_the_order_of_images_comes_from_the_clients_generator() -> None:
    """Same generators, same bits; other generators, another result (batches are small)."""
    task = create_task([9, 9])
    np.testing.assert_array_equal(task.train(BASE), task.train(BASE))
    others = [np.random.default_rng([8, k]) for k in range(2)]
    other = train_clients(task.classifier, BASE, task.starts, task.samples, task.labels, others)
    assert not np.allclose(other, task.train(BASE), rtol=1e-3, atol=1e-5)
