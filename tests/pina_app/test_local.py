"""A node's part of a round: what the methods change in it."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from pina_app import local
from pina_app.config import PinaConfig
from pina_app.task import ClientData
from pina_app.training import LocalTraining, train_clients
from strategies import wire
from strategies.privacy.mechanisms import from_grid
from strategies.randomness import stream
from tests.pina_app.vits import classifier_of, random_model, random_pixels, random_vit

SIZES = (3, 7, 12)
CONFIG = PinaConfig(epochs=2, batch_size=4, learning_rate=0.1, weights="none")
STEPS = np.array([2 * 1, 2 * 2, 2 * 3])  # two epochs of 1, 2 and 3 batches


@pytest.fixture(scope="module")
def clients() -> tuple[Any, dict[int, ClientData]]:
    """A classifier and three clients of different sizes."""
    vit = random_vit()
    pixels = [random_pixels(vit, size, seed) for seed, size in enumerate(SIZES)]
    classifier = classifier_of(vit)
    rng = np.random.default_rng(0)
    data = {
        k: ClientData(
            classifier.tail.reduce(own), torch.from_numpy(rng.integers(0, 4, len(own))), k % 2
        )
        for k, own in enumerate(pixels)
    }
    return classifier, data


def request_for(model: wire.Model, **changes: Any) -> wire.RoundRequest:
    """A training round without privacy whose threshold clips nothing."""
    request = wire.RoundRequest(
        method="test",
        phase="train",
        round=1,
        assignment="single",
        clusters=1,
        width=wire.width(model),
        threshold=100.0,
        kappa=0.0,
        noise_multiplier=0.0,
        private=False,
    )
    return dataclasses.replace(request, **changes)


def updates(classifier: Any, data: dict[int, ClientData], model: wire.Model, mu: float) -> Any:
    """Every client trained by itself."""
    settings = LocalTraining(CONFIG.epochs, CONFIG.batch_size, CONFIG.learning_rate, mu)
    return np.concatenate(
        [
            train_clients(
                classifier,
                settings,
                [model],
                [own.samples],
                [own.labels],
                [stream(0, "batches-train", 1, k)],
            )
            for k, own in data.items()
        ]
    )


def released(content: Any, request: wire.RoundRequest) -> np.ndarray:
    """The sum in a reply, in the units of updates."""
    total = content.array_records["contribution"]["sum"].numpy()
    return request.layout.decode(from_grid(total, request.layout.sensitivity))[0]


@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_the_proximal_weight_reaches_every_client(clients: Any, mu: float) -> None:
    classifier, data = clients
    model = random_model(16)
    request = request_for(model)
    content = local.answer(CONFIG, classifier, request, data, [model], None, mu)
    expected = updates(classifier, data, model, mu).sum(axis=0)
    np.testing.assert_allclose(released(content, request)[0], expected, atol=1e-5)
    if mu:
        assert np.abs(expected - updates(classifier, data, model, 0.0).sum(axis=0)).max() > 1e-3


def test_fednova_divides_every_update_by_its_own_steps(clients: Any) -> None:
    classifier, data = clients
    model = random_model(16)
    request = request_for(model, normalise=True)
    content = local.answer(CONFIG, classifier, request, data, [model], None)
    expected = (updates(classifier, data, model, 0.0) / STEPS[:, None]).sum(axis=0)
    np.testing.assert_allclose(released(content, request)[0], expected, atol=1e-5)
    assert [CONFIG.local_steps(size) for size in SIZES] == list(STEPS)


def test_moved_clients_train_the_other_model(clients: Any) -> None:
    """All who would take the first cluster leave it, those of the second stay."""
    classifier, data = clients
    models = [random_model(16, seed=seed) for seed in (3, 4)]
    request = request_for(
        models[0], assignment="oracle", clusters=2, leave=[1.0, 0.0], join=[0.0, 1.0]
    )
    content = local.answer(CONFIG, classifier, request, data, models, None)
    expected = updates(classifier, data, models[1], 0.0).sum(axis=0)
    found = released(content, request)
    assert not found[0].any()
    np.testing.assert_allclose(found[1], expected, atol=1e-5)


def test_local_noise_comes_on_top_whatever_happens_to_the_clients(clients: Any) -> None:
    """The same noise for clients that work, that cannot, and on a node that fails as a whole."""
    classifier, data = clients
    model = random_model(16)
    quiet = request_for(model, private=True, threshold=1.0)
    request = dataclasses.replace(quiet, noise_multiplier=2.0)

    def vector(content: Any) -> np.ndarray:
        assert list(content) == ["contribution"]
        return content.array_records["contribution"]["sum"].numpy()

    noise = vector(local.nothing(CONFIG, request, list(data)))
    assert np.std(noise / 2**32) == pytest.approx(2 * np.sqrt(3), rel=0.3)
    answers = [
        vector(local.answer(CONFIG, classifier, r, data, [model], None)) for r in (request, quiet)
    ]
    np.testing.assert_array_equal(answers[0] - answers[1], noise)
    unusable = dict.fromkeys(data, ClientData.nothing())
    np.testing.assert_array_equal(
        vector(local.answer(CONFIG, classifier, request, unusable, [model], None)), noise
    )
    assert not vector(local.nothing(CONFIG, quiet, list(data))).any()
