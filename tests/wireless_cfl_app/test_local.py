"""The network, gradients and local steps against plain PyTorch."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from strategies.randomness import stream
from wireless_cfl_app import local
from wireless_cfl_app.data import DeviceData, Task, to_pixels
from wireless_cfl_app.model import accuracy_and_loss, create_model, parameters

TASK = Task((28, 28, 1), 10)


def data(count: int = 40, task: Task = TASK) -> DeviceData:
    rng = np.random.default_rng(0)
    shape = task.shape if task.shape[2] == 3 else task.shape[:2]
    images = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    return DeviceData(to_pixels(images), torch.from_numpy(rng.integers(0, 10, count)))


def test_the_network_is_the_papers_size_on_fashion_mnist() -> None:
    """28 kB of float32."""
    assert parameters(create_model(TASK, 0)) * 4 == 28_152


@pytest.mark.parametrize("shape", [(8, 8, 1), (16, 20, 3), (28, 28, 1), (32, 32, 3)])
def test_the_network_fits_the_images_and_depends_on_its_seed_only(
    shape: tuple[int, int, int],
) -> None:
    task = Task(shape, 10)
    torch.manual_seed(5)
    first = create_model(task, 3)
    torch.manual_seed(6)
    again, other = create_model(task, 3), create_model(task, 4)
    images = data(3, task).images
    assert torch.equal(first(images), again(images))
    assert not torch.equal(first(images), other(images))
    assert first(images).shape == (3, 10)


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match="images of 6 x 8 pixels"):
        create_model(Task((6, 8, 1), 10), 0)


@pytest.mark.parametrize("batch", [7, 1000])
def test_the_gradient_is_that_of_the_mean_loss(batch: int) -> None:
    model, own = create_model(TASK, 0), data()
    found = local.gradient(model, own, batch)
    model.zero_grad()
    nn.functional.cross_entropy(model(own.images), own.labels).backward()
    expected = torch.cat([p.grad.ravel() for p in model.parameters() if p.grad is not None])
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-6)


def stepped(
    model: nn.Module,
    start: local.State,
    steps: int,
    iteration: int,
    devices: tuple[int, ...] = (4,),
) -> local.State:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    own = {device: data(20 + device) for device in devices}
    settings = local.LocalSteps(steps=steps, iteration=iteration, batch_size=22, seed=9)
    return local.train(model, optimiser, start, own, settings)


def by_hand(start: local.State, steps: int, iteration: int, device: int) -> local.State:
    """Plain SGD on drawn batches."""
    model, own = create_model(TASK, 0), data(20 + device)
    model.load_state_dict(start)
    for t in range(iteration, iteration + steps):
        count = 20 + device
        chosen = stream(9, "batch", t, device).choice(count, min(22, count), replace=False)
        model.zero_grad()
        nn.functional.cross_entropy(model(own.images[chosen]), own.labels[chosen]).backward()
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p -= 0.1 * p.grad
    return model.state_dict()


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("devices", [(4,), (0, 1, 7)])
def test_devices_together_are_a_plain_loop(steps: int, devices: tuple[int, ...]) -> None:
    """Unequal data, batches of 20 to 22; one step is taken jointly, several one after another."""
    model = create_model(TASK, 0)
    start = copy.deepcopy(model.state_dict())
    found = stepped(model, start, steps, 10, devices)
    states = {device: by_hand(start, steps, 10, device) for device in devices}
    total = sum(20 + device for device in devices)
    for name, values in found.items():
        expected = sum(states[d][name].double() * ((20 + d) / total) for d in devices)
        torch.testing.assert_close(values.double(), expected, rtol=1e-5, atol=1e-7)


def test_how_steps_are_grouped_into_rounds_changes_nothing() -> None:
    """Two and two are four steps; the joint step of one device is its own."""
    model = create_model(TASK, 0)
    start = copy.deepcopy(model.state_dict())
    whole = stepped(model, start, steps=4, iteration=0)
    halves = stepped(model, stepped(model, start, steps=2, iteration=0), steps=2, iteration=2)
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
    single = start
    for iteration in range(4):
        single = stepped(model, single, steps=1, iteration=iteration)
    for name, values in whole.items():
        torch.testing.assert_close(single[name], values, rtol=1e-5, atol=1e-7)


def test_weighted_mean_by_hand() -> None:
    states = {3: {"w": torch.tensor([1.0, 2.0])}, 8: {"w": torch.tensor([4.0, 8.0])}}
    found = local.weighted_mean(states, {3: 10, 8: 30})
    torch.testing.assert_close(found["w"], torch.tensor([3.25, 6.5]))
    assert found["w"].dtype == torch.float32


def test_accuracy_and_loss_do_not_depend_on_the_batch() -> None:
    model, own = create_model(TASK, 0), data()
    accuracy, loss = accuracy_and_loss(model, own.images, own.labels, batch=7)
    logits = model(own.images)
    assert accuracy == pytest.approx(float((logits.argmax(1) == own.labels).float().mean()))
    assert loss == pytest.approx(float(nn.functional.cross_entropy(logits, own.labels)), rel=1e-5)
