"""Strategies from few numbers, called as Flower's FedAvg is."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord

from app_kit.in_process_grid import InProcessGrid
from strategies import (
    IFCA,
    PINA,
    ClusteredStrategy,
    FedNova,
    HierarchicalFedAvg,
    cluster_arrays,
    wire,
)
from strategies.clientapp import ClientApp
from strategies.privacy.calibration import Event, epsilon_of
from strategies.starts import perturbed
from tests.contract.conftest import CLIENTS, WIDTH, Problem, start_models
from tests.strategies.plain_apps import client_of, plain_app, record

FACTORIES = (ClusteredStrategy, FedNova, IFCA, PINA)


def app(problem: Problem) -> Any:
    ours = ClientApp(embedding=lambda context: problem.embedding(client_of(context)))
    return plain_app(problem, ours)


@pytest.mark.parametrize("factory", FACTORIES)
def test_called_as_fedavg_is_in_private(factory: Any, tmp_path: Path) -> None:
    """Plain arrays in; the budget is met, not exceeded; every release is in the ledger."""
    problem, seen = Problem(), []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        assert set(arrays) == {"b", "head"}  # the names that the caller gave
        seen.append(server_round)
        return MetricRecord({"size": float(np.linalg.norm(arrays["b"].numpy()))})

    ledger = tmp_path / "ledger.jsonl"
    strategy = factory.planned(clients=CLIENTS, rounds=6, epsilon=8.0, seed=0, ledger=ledger)
    result = strategy.start(
        grid=InProcessGrid(app(problem), CLIENTS),
        initial_arrays=record(start_models(1)[0]),
        num_rounds=6,
        evaluate_fn=evaluate,
    )
    clusters = strategy.clusters
    assert seen == [n for n in range(7) for _ in range(clusters)]
    names = {"size"} if clusters == 1 else {f"cluster-{c}/size" for c in range(clusters)}
    assert set(result.evaluate_metrics_serverapp[6]) == names
    assert 7.9 < strategy.ledger.epsilon() <= 8.0
    assert len(ledger.read_text().splitlines()) == 6
    models = cluster_arrays(result.arrays)
    assert [set(model) for model in models] == [{"b", "head"}] * clusters
    assert wire.is_plain(result.arrays) == (clusters == 1)
    for model, own in zip(models, strategy.models, strict=True):
        np.testing.assert_array_equal(model["b"].numpy(), own["b"])


def test_pina_finds_the_clusters_by_the_embedding_before_it_trains() -> None:
    problem = Problem()
    strategy = PINA.planned(
        clients=CLIENTS, rounds=17, epsilon=None, seed=0, embedding_size=WIDTH, init_rounds=5
    )
    assert (strategy.init, strategy.init_rounds, strategy.total_rounds) == ("secure-kmeans", 5, 17)
    strategy.start(InProcessGrid(app(problem), CLIENTS), record(start_models(1)[0]), 17)
    found = sorted(wire.flatten(strategy.models), key=np.sum)
    centres = [problem.targets[1::2].mean(0), problem.targets[::2].mean(0)]
    np.testing.assert_allclose(found, centres, atol=0.05)


def test_without_an_embedding_pina_starts_at_random_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="flwr"):
        strategy = PINA.planned(clients=CLIENTS, rounds=3, epsilon=None)
    assert "start at random and clients choose by loss" in caplog.text
    assert "NO differential privacy" in caplog.text
    assert (strategy.init, strategy.init_rounds) == ("random", 0)


@pytest.mark.parametrize("cap", [None, 3])
def test_a_simulated_cohort_is_said_to_be_one(
    cap: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """And what the noise is worth without it, where a client takes part ``cap`` times at most."""
    with caplog.at_level(logging.INFO, logger="flwr"):
        strategy = PINA.planned(
            clients=50,
            rounds=20,
            epsilon=8.0,
            embedding_size=4,
            noise_cohort_size=10_000,
            max_participations=cap,
        )
    assert "epsilon 8, delta 0.0135 IF 10000 clients took part" in caplog.text
    plan = strategy.plan
    assert plan.init is not None
    stages = [(plan.init, plan.init.releases), (plan.train, cap or plan.train.releases)]
    amplified = cap is None
    events = [
        Event(stage.actual_multiplier, stage.sampling if amplified else 1.0)
        for stage, count in stages
        for _ in range(count)
    ]
    worth = epsilon_of(events, plan.delta)
    assert worth > 1000
    assert f"is worth epsilon = {worth:.3g}\n" in caplog.text
    assert "has to be trusted" in caplog.text
    assert strategy.plan.train.noise_scale == pytest.approx(50 / 10_000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 5, "embedding_size": 4}, r"rounds = 5: must be > 5"),
        ({"epsilon": 0.0}, r"epsilon = 0.0: must be > 0, or None"),
        ({"embedding_size": -1}, r"embedding_size = -1: must be >= 0"),
        ({"clusters": 30}, r"clusters = 30: must be in \[1, clients = 24\]"),
        ({"sampling": 1.5}, r"sampling = 1.5"),
    ],
)
def test_bad_numbers_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PINA.planned(**{"clients": CLIENTS, "rounds": 9, "epsilon": None, **changes})


def test_hierarchical_plans_clusters_from_plain_clients() -> None:
    """One round for the gradients; with everything averaged at the end it is near FedAvg's goal."""
    problem = Problem()
    strategy = HierarchicalFedAvg.planned(clients=CLIENTS, capacity=8)
    grid = InProcessGrid(app(problem), CLIENTS)
    result = strategy.start(grid, record(start_models(1)[0]), num_rounds=21)
    assert strategy.clustering is not None
    sizes = np.bincount(strategy.clustering.labels)
    assert len(sizes) >= 3
    assert sizes.max() <= 8
    weights = 5.0 + np.arange(CLIENTS)
    goal = np.average(problem.targets, axis=0, weights=weights)
    found = wire.flatten([{name: a.numpy() for name, a in result.arrays.items()}])[0]
    np.testing.assert_allclose(found, goal, atol=1e-4)
    with pytest.raises(ValueError, match="the topology has 24 devices"):
        HierarchicalFedAvg.planned(clients=5, topology=strategy.topology)


# --- one model in, C out -----------------------------------------------------------------


def test_perturbations_have_their_size_and_leave_integers_alone() -> None:
    rng = np.random.default_rng(0)
    model = {
        "w": 3.0 * np.ones((100, 100), np.float32),
        "zeros": np.zeros(10_000),
        "count": np.array(4),
        "scalar": np.array(2.0),
    }
    copies = perturbed(model, 3, 0.5, rng)
    for copy in copies:
        assert [copy[n].dtype for n in model] == [v.dtype for v in model.values()]
        assert [copy[n].shape for n in model] == [v.shape for v in model.values()]
        assert (copy["w"] - 3.0).std() == pytest.approx(1.5, rel=0.05)
        assert copy["zeros"].std() == pytest.approx(0.05, rel=0.05)
        assert copy["count"] == 4
    assert np.abs(copies[0]["w"] - copies[1]["w"]).max() > 1
    for copy in (*perturbed(model, 1, 0.5, rng), *perturbed(model, 2, 0.0, rng)):
        np.testing.assert_array_equal(copy["w"], model["w"])


def test_only_random_starts_are_perturbed() -> None:
    """Prototypes tell clusters apart, so PINA with an embedding starts from exact copies."""
    start = ArrayRecord({"w": Array(np.ones(5, np.float32))})
    for strategy, equal in (
        (PINA.planned(clients=9, rounds=9, epsilon=None, embedding_size=4, seed=0), True),
        (PINA.planned(clients=9, rounds=9, epsilon=None, seed=0), False),
        (IFCA.planned(clients=9, rounds=9, epsilon=None, seed=0), False),
    ):
        first, second = strategy._from_one(start)
        assert np.array_equal(first["w"], second["w"]) == equal
