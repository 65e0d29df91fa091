"""What "auto" stands for in a configuration, and where the choice arrives."""

import dataclasses

import numpy as np
import pytest

from pina_app import choices, preflight
from pina_app.config import PRESETS, PinaConfig, from_run_config
from pina_app.methods import create_strategy, initial_models, method_aggregation, method_plan
from strategies.aggregation import Aggregation
from strategies.clustering import initialisation
from strategies.pina import PINA
from strategies.privacy.ledger import Ledger
from strategies.release import Coded
from tests.pina_app.vits import random_statistics

REAL = PinaConfig(clients=1000, q=1.0, rounds=20, noise_cohort_size=None)
"""A real cohort of 1,000 clients at epsilon 2."""


@pytest.mark.parametrize("preset", sorted(file.stem for file in PRESETS.glob("*.toml")))
def test_simulated_cohorts_keep_the_default_method(preset: str) -> None:
    """Secure-kmeans for two clusters, discriminant for four; slots."""
    config = from_run_config({"preset": preset})
    two = config.clusters == 2
    assert choices.initialisation(config).value == ("secure-kmeans" if two else "discriminant")
    assert choices.release(config).value == "slots"
    plan = method_plan(config, "pina")
    assert plan.init is not None
    assert plan.init.releases == (7 if two else 5)


def test_a_real_cohort() -> None:
    """Spectral and coded, in plan, aggregation and strategy."""
    assert choices.initialisation(REAL).value == "spectral"
    assert choices.release(REAL).value == "coded"
    plan = method_plan(REAL, "pina")
    assert plan.init is not None
    assert plan.init.releases == 2
    # METHODS 6.4: z_i = 8 at epsilon 2.
    assert plan.init.noise_multiplier == pytest.approx(8.0, abs=0.05)
    strategy = create_strategy(REAL, "pina", random_statistics(16), None)
    assert isinstance(strategy, PINA)
    assert strategy.init == "spectral"
    assert strategy.aggregation.release == "coded"
    assert method_aggregation(REAL, "oracle").release == "coded"
    assert method_aggregation(REAL, "fedavg").release == "slots"
    line = choices.explain(REAL)
    assert "\n" not in line
    assert "init = spectral (auto: 1,000 clients over noise" in line
    assert "release = coded (auto: noise" in line
    # Its 2 x 714 numbers are few: noise .3 S.  A head of 3,850 is louder.
    assert strategy.aggregation.contrast == 0.5
    assert line.endswith("contrast = 0.5")


def test_very_loud_noise_weakens_the_contrasts() -> None:
    """In the strategy, in what clients are asked, and in the layout that both sides use."""
    config = dataclasses.replace(REAL, clients=500)
    assert choices.contrast(config) == 0.35
    assert choices.explain(config).endswith("contrast = 0.35")
    for method in ("pina", "oracle"):
        strategy = create_strategy(config, method, random_statistics(16), None)
        strategy.models = initial_models(config, method, 16, 10)
        request = strategy.request(strategy.init_rounds + 1)
        assert request.layout == Coded(2, request.width, config.clip, 0.35)


def test_the_rule_leaves_epsilon_for_training() -> None:
    """At epsilon 8 secure-kmeans is affordable for 2,000 clients: for .37 of it, not for .6."""
    config = dataclasses.replace(REAL, clients=2000, epsilon=8.0)
    assert choices.initialisation(config).value == "secure-kmeans"
    plan, fedavg = (method_plan(config, method).train for method in ("pina", "fedavg"))
    assert plan.noise_multiplier < 1.15 * fedavg.noise_multiplier
    forced = method_plan(dataclasses.replace(config, init="secure-kmeans"), "pina")
    assert forced.train.noise_multiplier > 1.2 * fedavg.noise_multiplier


def test_many_real_clients_need_neither() -> None:
    config = dataclasses.replace(REAL, clients=200_000, epsilon=8.0)
    assert choices.initialisation(config).value == "secure-kmeans"
    assert choices.release(config).value == "slots"


@pytest.mark.parametrize(
    ("changes", "init", "release"),
    [
        ({"init": "secure-kmeans"}, "secure-kmeans", "coded"),
        ({"init": "spectral", "release": "slots"}, "spectral", "slots"),
        ({"release": "slots"}, "spectral", "slots"),
        ({"server_momentum": 0.9}, "spectral", "slots"),
        ({"rescale": "none"}, "spectral", "slots"),
        ({"init": "random"}, "random", "slots"),
        ({"init": "lora-sketch"}, "lora-sketch", "slots"),
        ({"private": False}, "secure-kmeans", "slots"),
        ({"noise_cohort_size": 10_000}, "secure-kmeans", "slots"),
    ],
)
def test_what_is_configured_stands(changes: dict[str, object], init: str, release: str) -> None:
    """The rule fills in "auto" alone, and never what another setting excludes."""
    config = dataclasses.replace(REAL, **changes)  # type: ignore[arg-type]
    assert choices.initialisation(config).value == init
    assert choices.release(config).value == release


def test_size_of_an_update() -> None:
    """The embedded ViT: a head of 10 (64 + 1) numbers, and B of 64."""
    assert choices.update_size(PinaConfig()) == 714
    assert choices.update_size(PinaConfig(trainable="head")) == 650
    assert choices.update_size(PinaConfig(simulation=False, seed=None, classes=3)) == 259
    # A data set that is not at hand: ten classes.
    absent = PinaConfig(dataset="absent.npz", weights="none", public_data="none")
    assert choices.update_size(absent) == 714


@pytest.mark.parametrize(
    ("init", "clusters", "fewest"),
    [
        ("secure-kmeans", 2, 2),
        ("secure-kmeans", 5, 2),
        ("spectral", 2, 2),
        ("spectral", 3, 2),
        ("server-points", 3, 2),
        ("discriminant", 2, 2),
        ("discriminant", 3, 3),
        ("private-whitening", 2, 3),
        ("private-whitening", 3, 4),
    ],
)
def test_too_few_releases_are_refused(init: str, clusters: int, fewest: int) -> None:
    """Before the run and by the strategy: clients would train without (or with 3C) prototypes."""
    public = "none" if init == "private-whitening" else "digits"
    config = PinaConfig(init=init, clusters=clusters, init_rounds=fewest, public_data=public)
    plan = choices.privacy_plan(config, init)
    assert plan.init is not None
    assert plan.init.releases == fewest
    assert initialisation.fewest_rounds(init, clusters) == fewest
    if fewest > 2:
        message = f"init-rounds = {fewest - 1}: init = '{init}' with {clusters} clusters needs at "
        with pytest.raises(ValueError, match=f"{message}least {fewest}"):
            choices.privacy_plan(dataclasses.replace(config, init_rounds=fewest - 1), init)
    fewer = dataclasses.replace(plan, init=dataclasses.replace(plan.init, releases=fewest - 1))
    with pytest.raises(ValueError, match=rf"init_releases = {fewest - 1}: {init}.*least {fewest}"):
        PINA(
            init=init,
            name="pina",
            clients=50,
            clusters=clusters,
            plan=fewer,
            aggregation=Aggregation(1.0),
            ledger=Ledger(None, "pina", plan.delta, plan.budget),
            classes=10,
            server_points=np.zeros((9, 64)),
        )


def test_more_clusters_than_numbers_in_an_embedding_are_refused_before_the_run() -> None:
    """Also where the rule chooses, and where the features have fewer numbers than wanted."""
    config = PinaConfig(public_data="none", clusters=5, embedding_size=4, weights="none")
    with pytest.raises(ValueError, match=r"clusters = 5: init = 'private-whitening' .* has 4;"):
        preflight.check(config)
    config = dataclasses.replace(config, public_data="digits", init="discriminant")
    with pytest.raises(ValueError, match=r"clusters = 5: init = 'discriminant' .* has 4;"):
        preflight.check(config)
    config = PinaConfig(public_data="none", clusters=70, clients=200, weights="none")
    with pytest.raises(ValueError, match=r"clusters = 70: .* has 64;"):
        preflight.check(config)
    preflight.check(dataclasses.replace(config, init="secure-kmeans"))


def test_server_points_reach_the_strategy() -> None:
    config = PinaConfig(init="server-points", private=False)
    points = np.zeros((9, 5))  # the size of an embedding
    strategy = create_strategy(config, "pina", random_statistics(16), None, points)
    assert strategy.init_rounds == 3
    with pytest.raises(ValueError, match="server_points of shape None"):
        create_strategy(config, "pina", random_statistics(16), None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"release": "coded", "server-momentum": 0.5},
            "server-momentum = 0.5: must be 0 with release = 'coded'; use release = 'slots'",
        ),
        (
            {"release": "coded", "rescale": "normality"},
            "rescale = 'normality': must be 'count' with release = 'coded'; use release = 'slots'",
        ),
        (
            {"init": "server-points", "public-data": "none"},
            "public-data = 'none': init = 'server-points' (feddp-kmeans) needs public images",
        ),
        (
            {"init": "server-points", "simulation": False, "seed": "none"},
            "images-per-client = 0: init = 'server-points' (feddp-kmeans) needs",
        ),
        (
            {"init": "random", "release": "coded"},
            "init = 'random': release = 'coded' needs clusters that are known before training",
        ),
        (
            {"init": "discriminant", "public-data": "none"},
            "public-data = 'none': init = 'discriminant' needs public images, in whose units it "
            "clips; use init = 'private-whitening'",
        ),
        (
            {"init": "private-whitening", "public-data": "digits"},
            "init = 'private-whitening': takes the place of public images, and public-data = "
            "'digits' has some; use init = 'discriminant', or public-data = 'none'",
        ),
        (
            {"methods": "rr-cluster", "rescale": "none"},
            "rescale = 'none': method rr-cluster needs the counts of 'count'",
        ),
    ],
)
def test_refused_combinations(settings: dict[str, str | float | bool], message: str) -> None:
    with pytest.raises(ValueError, match=r"must be|needs|use init") as error:
        from_run_config(settings)
    assert str(error.value).startswith(message)
