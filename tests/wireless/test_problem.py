"""The objective by hand and by loops, the constraints, and the errors of bad instances."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest

from strategies.wireless.problem import (
    Clustering,
    ClusteringProblem,
    InfeasibleCapacityError,
    check_clustering,
    load_instance,
    objective,
    representativeness,
    total_distance_m,
    utility_as_printed,
)
from tests.wireless.oracles import feasible_start, value_by_loops

SQUARE: dict = {
    "positions_m": np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 10.0], [6.0, 10.0]]),
    "server_m": np.array([0.0, -10.0]),
    "unit_gradients": np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]]),
    "candidates": np.array([0, 2]),
    "capacities": np.array([2, 2]),
    "alpha": 0.25,
}
PLAN = Clustering(np.array([0, 0, 1, 1]), np.array([0, 2]))


def test_distance_similarity_and_objective_by_hand() -> None:
    problem = ClusteringProblem(**SQUARE)
    # 5 m and 6 m to the heads, 10 m and 20 m from them to the server.
    assert total_distance_m(problem, PLAN) == pytest.approx(41.0)
    # Cluster 0: |(1, 1)|^2 / 4 = 1/2; cluster 1: gradients cancel.
    assert representativeness(problem, PLAN) == pytest.approx(0.25)
    reference = 10 + np.hypot(3, 14) + 20 + np.hypot(6, 20)
    value = 0.75 * 41 / reference + 0.25 * 0.25
    assert objective(problem, PLAN) == pytest.approx(value)
    # Eq. 18 charges the 30 m between heads and server without beta.
    assert utility_as_printed(problem, PLAN) == pytest.approx(value + 0.25 * 30 / reference)


def test_size_weighting_by_hand() -> None:
    problem = ClusteringProblem(**{**SQUARE, "weighting": "size", "capacities": np.array([3, 1])})
    plan = Clustering(np.array([0, 0, 1, 0]), np.array([0, 2]))
    # |(0, 1)|^2 / 9 with weight 3/4, and 1 with weight 1/4.
    assert representativeness(problem, plan) == pytest.approx(0.75 / 9 + 0.25)


def test_singletons_and_a_single_cluster() -> None:
    problem = ClusteringProblem(**{**SQUARE, "candidates": np.arange(4), "capacities": 4})
    alone = Clustering(np.arange(4), np.arange(4))
    assert representativeness(problem, alone) == pytest.approx(1.0)
    together = Clustering(np.zeros(4, dtype=np.int64), np.array([1]))
    assert representativeness(problem, together) == pytest.approx(2 / 16)


@pytest.mark.parametrize("seed", range(30))
def test_objective_equals_the_double_sum(draw, seed: int) -> None:
    problem = draw(seed, devices=9)
    plan = feasible_start(problem, seed)
    check_clustering(problem, plan)
    by_loops = value_by_loops(problem, plan.labels.tolist(), plan.heads.tolist())
    assert objective(problem, plan) == pytest.approx(by_loops, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 1.2}, r"alpha = 1.2: must lie in \[0, 1\]"),
        ({"alpha": float("nan")}, "alpha = nan"),
        ({"weighting": "other"}, "weighting = 'other'"),
        ({"positions_m": np.array([[0.0, 0], [1, 1], [np.nan, 2], [3, 3]])}, r"positions_m\[2\]"),
        ({"positions_m": np.array([[0.0, 0], [1, 1], [0, 0], [3, 3]])}, "occurs twice"),
        ({"server_m": np.array([np.inf, 0.0])}, "server_m"),
        ({"candidates": np.array([], dtype=np.int64)}, "candidates is empty"),
        ({"candidates": np.array([0, 4])}, r"must lie in \[0, 3\]"),
        ({"candidates": np.array([0, 0])}, "twice"),
        ({"capacities": np.array([2.5, 2])}, "whole numbers"),
        ({"capacities": np.array([4, 0])}, "capacities = 0"),
        ({"capacities": np.array([4])}, "shape"),
        ({"unit_gradients": np.ones((4, 2))}, r"unit_gradients\[0\] has squared length"),
        ({"unit_gradients": np.full((4, 2), np.nan)}, "NaN"),
        ({"unit_gradients": np.ones((3, 2))}, "shape"),
        ({"distance_reference_m": 0.0}, "distance_reference_m = 0.0"),
    ],
)
def test_bad_input_names_key_value_and_range(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClusteringProblem(**{**SQUARE, **change})


def test_infeasible_capacity_says_how_much_is_missing() -> None:
    with pytest.raises(InfeasibleCapacityError) as caught:
        ClusteringProblem(**{**SQUARE, "capacities": np.array([1, 2])})
    error = caught.value
    found = (error.devices, error.candidates, error.total_capacity, error.shortfall)
    assert found == (4, 2, 3, 1)


def test_smallest_head_count_uses_the_largest_capacities() -> None:
    problem = ClusteringProblem(
        **{**SQUARE, "candidates": np.arange(4), "capacities": np.array([1, 1, 3, 1])}
    )
    assert problem.smallest_head_count == 2


@pytest.mark.parametrize(
    ("labels", "heads"),
    [
        ([0, 1, 1, 1], [0, 2]),  # over capacity
        ([1, 0, 0, 1], [0, 2]),  # heads outside their clusters
        ([0, 0, 1, 2], [0, 2]),  # unknown cluster
        ([0, 1, 0, 1], [0, 1]),  # 1 is no candidate
        ([0, 0, 1, 1], [0, 0]),  # the same head twice
    ],
)
def test_check_clustering_rejects(labels: list[int], heads: list[int]) -> None:
    problem = ClusteringProblem(**SQUARE)
    check_clustering(problem, PLAN)
    with pytest.raises(ValueError, match=r"must|capacity"):
        check_clustering(problem, Clustering(np.array(labels), np.array(heads)))


def test_stored_values_are_reproduced(instances) -> None:
    with open(instances / "index.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 30
    for row in rows:
        path = instances / f"{row['name']}.npz"
        problem, _ = load_instance(path)
        with np.load(path) as stored:
            plan = Clustering(stored["best_labels"], stored["best_heads"])
            best = float(stored["best_value"])
        check_clustering(problem, plan)
        assert objective(problem, plan) == pytest.approx(best, abs=1e-9)


def test_instance_without_a_key_is_refused(tmp_path) -> None:
    np.savez(tmp_path / "bad.npz", positions_m=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="server_m"):
        load_instance(tmp_path / "bad.npz")


def test_replace_keeps_the_reference() -> None:
    problem = ClusteringProblem(**SQUARE)
    assert replace(problem, alpha=0.5).distance_reference_m == problem.distance_reference_m


def test_a_csv_is_no_instance(tmp_path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text("id,x_m,y_m\na,0,0\n")
    with pytest.raises(ValueError, match=r"is no \.npz file; for a CSV of devices use .*plan"):
        load_instance(path)
