"""Topology, CSV input and the command line, end to end."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import numpy as np
import pytest

from strategies.wireless.__main__ import main
from strategies.wireless.problem import Clustering, check_clustering, load_instance, objective
from strategies.wireless.topology import devices_in_disc, read_devices

HEADER = "id,x_m,y_m,candidate,capacity\n"
FOUR = HEADER + "a,0,0,yes,3\nb,10,0,no,\nc,0,10,,\nd,5,5,1,2\n"


def write(path, text: str):
    path.write_text(text)
    return path


def test_disc_is_uniform_and_seeded() -> None:
    one = devices_in_disc(np.random.default_rng(0), devices=4000)
    again = devices_in_disc(np.random.default_rng(0), devices=4000)
    assert (one.positions_m == again.positions_m).all()
    radius = np.linalg.norm(one.positions_m, axis=1)
    assert radius.max() <= 100
    # Uniform in area: half of the devices lie within 100 / sqrt 2 m.
    assert (radius < 100 / np.sqrt(2)).mean() == pytest.approx(0.5, abs=0.03)
    assert one.server_m.tolist() == [1000.0, 0.0]


@pytest.mark.parametrize(
    "change", [{"devices": 0}, {"radius_m": 0.0}, {"server_distance_m": -1.0}, {"candidates": 200}]
)
def test_disc_checks_its_numbers(change: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        devices_in_disc(np.random.default_rng(0), **change)


def test_csv_columns(tmp_path) -> None:
    found = read_devices(write(tmp_path / "d.csv", FOUR), (0.0, 50.0), capacity=4)
    assert found.ids == ("a", "b", "c", "d")
    assert found.candidates.tolist() == [0, 2, 3]
    assert found.capacities.tolist() == [3, 4, 2]
    assert found.positions_m[3].tolist() == [5.0, 5.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,x_m\na,1\n", "y_m"),
        (HEADER, "names no device"),
        (HEADER + "a,zero,0,,\n", "line 2: x_m = 'zero'"),
        (HEADER + "a,0,0,maybe,\n", "candidate = 'maybe'"),
        (HEADER + "a,0,0,,\na,1,1,,\n", "'a' occurs twice"),
        (HEADER + "a,0,0,,\nb,0,0,,\n", "occurs twice"),
        (HEADER + "a,nan,0,,\n", "finite"),
        (HEADER + "a,0,0,no,\n", "candidates is empty"),
        (HEADER + "a,0,0,,1\nb,1,1,no,\n", "1 too few"),
        (HEADER + "a,0,0,,1.5\n", "whole numbers"),
    ],
)
def test_bad_csv_is_one_clear_error_and_writes_nothing(
    tmp_path, monkeypatch, capsys, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "d.csv", text)
    arguments = ["plan", str(path), "--server-x-m", "100", "--server-y-m", "0", "--capacity", "5"]
    assert main([*arguments, "--seconds", "0.1"]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert out == ""
    assert [file.name for file in tmp_path.iterdir()] == ["d.csv"]


def test_plan_writes_assignment_and_map(tmp_path, capsys) -> None:
    rng = np.random.default_rng(0)
    place = rng.uniform(-100, 100, (24, 2))
    lines = [f"n{u},{x:.3f},{y:.3f}" for u, (x, y) in enumerate(place)]
    path = write(tmp_path / "d.csv", "id,x_m,y_m\n" + "\n".join(lines) + "\n")
    order = rng.permutation(24)
    gradients = rng.normal(size=(24, 50))
    np.savez(tmp_path / "g.npz", gradients=gradients[order], ids=[f"n{u}" for u in order])
    arguments = ["plan", str(path), "--server-x-m", "1000", "--server-y-m", "0"]
    arguments += ["--capacity", "6", "--gradients", str(tmp_path / "g.npz"), "--seconds", "0.5"]
    arguments += ["--assignment", str(tmp_path / "a.csv"), "--map", str(tmp_path / "m.png")]
    assert main(arguments) == 0
    assert "clusters" in capsys.readouterr().out
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [f"n{u}" for u in range(24)]
    for row in rows:
        group = [other for other in rows if other["cluster"] == row["cluster"]]
        assert len(group) <= 6
        assert [other["id"] for other in group if other["is_head"] == "1"] == [row["head_id"]]
        own, head = int(row["id"][1:]), int(row["head_id"][1:])
        distance = np.linalg.norm(place[own].round(3) - place[head].round(3))
        assert float(row["distance_to_head_m"]) == pytest.approx(distance, abs=2e-3)


def test_gradients_must_match_the_devices(tmp_path, capsys) -> None:
    path = write(tmp_path / "d.csv", FOUR)
    np.savez(tmp_path / "g.npz", gradients=np.ones((3, 2)))
    arguments = ["plan", str(path), "--server-x-m", "100", "--server-y-m", "0", "--capacity", "5"]
    assert main([*arguments, "--gradients", str(tmp_path / "g.npz")]) == 2
    assert "must be (4, p)" in capsys.readouterr().err


def test_solve_prints_one_json_object(instances, capsys) -> None:
    path = instances / "joint_u10_v4_a050.npz"
    assert main(["solve", str(path), "--seconds", "3", "--seed", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = {"value", "labels", "heads", "lower_bound", "gap", "status", "seconds"}
    assert set(found) == keys
    problem, _ = load_instance(path)
    plan = Clustering(np.array(found["labels"]), np.array(found["heads"]))
    check_clustering(problem, plan)
    assert objective(problem, plan) == pytest.approx(found["value"], abs=1e-12)
    assert (found["status"], found["gap"]) == ("optimal", 0.0)
    assert main(["solve", str(path), "--exact", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == pytest.approx(found["value"])


def test_the_same_seed_and_sweeps_print_the_same_plan(instances, capsys) -> None:
    arguments = ["solve", str(instances / "u100_n30_v10_a050.npz"), "--sweeps", "3", "--json"]
    plans = []
    for _ in range(2):
        assert main(arguments) == 0
        plan = json.loads(capsys.readouterr().out)
        del plan["seconds"]
        plans.append(plan)
    assert plans[0] == plans[1]


def test_module_runs_and_the_package_stays_light() -> None:
    code = (
        "import sys, strategies, strategies.wireless; "
        "heavy = {'torch', 'timm', 'pulp', 'matplotlib'} & set(sys.modules); "
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-m", "strategies.wireless", "solve", "nowhere.npz"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
