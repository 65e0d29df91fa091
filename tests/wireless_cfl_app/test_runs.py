"""Whole runs: record, energy, resume, failures, bad input."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

import apps
from app_kit.run_config import Scalar
from app_kit.run_files import read_config
from strategies import run_record
from strategies.wireless import Channel, InfeasibleCapacityError
from strategies.wireless.links import EnergyAccount, cluster_links, server_links
from strategies.wireless.plan import read_assignment
from strategies.wireless.problem import Clustering
from strategies.wireless.topology import read_devices
from tests.wireless_cfl_app.runs import run_app, summary
from wireless_cfl_app.config import WirelessConfig, from_run_config
from wireless_cfl_app.results import divergence


class Killed(BaseException):
    """Stands for a kill: nothing in the app catches it."""


@pytest.mark.parametrize("method", ["proposed", "random", "similarity", "fedavg"])
def test_a_run_leaves_a_complete_directory(method: str, tmp_path: Path) -> None:
    run_app(tmp_path, {"method": method})
    entry, lines = summary(tmp_path), run_record.read(tmp_path / "rounds.jsonl")
    planned = method in ("proposed", "similarity")
    assert [line["phase"] for line in lines] == ["gradient"] * planned + ["train"] * 4
    assert [line["iteration"] for line in lines if line["phase"] == "train"] == [1, 2, 3, 4]
    measured = [line["iteration"] for line in lines if line["accuracy_mean"] is not None]
    assert measured == ([1, 2, 3, 4] if method == "fedavg" else [2, 4])
    assert entry["accuracy_mean"] == lines[-1]["accuracy_mean"]
    assert entry["private"] is False
    assert (entry["planning_j"] > 0) == planned
    assert 0 <= entry["label_divergence"] <= 2
    names = {path.name for path in (tmp_path / method).iterdir()}
    assert names == {"model.safetensors"} | (
        set() if method == "fedavg" else {"clusters.csv", "map.png"}
    )
    page = (tmp_path / "report.html").read_text()
    assert "models, gradients and positions reach the server as they are" in page
    assert ("Map of" in page) == (method != "fedavg")
    assert f"{entry['energy_j']:.3g}" in page
    assert "epsilon outside" not in page


@pytest.mark.parametrize("sketched", [0, 16])
def test_the_record_tells_the_bytes_that_travelled(sketched: int, tmp_path: Path) -> None:
    """A device takes the model down and up, and sends its gradient, or a projection of it, once."""
    run_app(tmp_path, {"clients-per-node": 1, "gradient-sketch": sketched})
    model = load_file(tmp_path / "proposed" / "model.safetensors")
    header = 128  # of NumPy's file format, for every array
    size = sum(values.nbytes + header + len(name) for name, values in model.items())
    numbers = sketched or sum(values.size for values in model.values())
    gradient = 4 * numbers + header + len("gradient")
    first, *training = run_record.read(tmp_path / "rounds.jsonl")
    assert (first["bytes_down_per_node"], first["bytes_up_per_node"]) == (size, gradient)
    assert (first["bytes_down"], first["bytes_up"]) == (12 * size, 12 * gradient)
    assert len(training) == 4
    for line in training:
        assert (line["bytes_down_per_node"], line["bytes_up_per_node"]) == (size, size)
        assert (line["bytes_down"], line["bytes_up"]) == (12 * size, 12 * size)
    entry = summary(tmp_path)
    assert (entry["bytes_down_per_node"], entry["bytes_up_per_node"]) == (size, size)
    assert entry["bytes_down"] == 5 * 12 * size
    assert entry["bytes_up"] == 12 * (4 * size + gradient)
    shown = f"{size / 1000:.1f} / {size / 1000:.1f}"
    assert f"<td>{shown}</td>" in (tmp_path / "report.html").read_text()


def test_devices_that_fail_send_nothing_up(tmp_path: Path) -> None:
    """Three of twelve never answer; in the last round nobody does."""
    rounds = {"train": 0}

    def fail(message: Message) -> bool:
        config = message.content.config_records.get("config")
        rounds["train"] += config is not None
        silent = config is not None and config["devices"] in ([0], [1], [2])
        return silent or rounds["train"] > 3 * 12

    run_app(tmp_path, {"clients-per-node": 1, "method": "fedavg"}, fail=fail)
    lines = run_record.read(tmp_path / "rounds.jsonl")
    (size,) = {line["bytes_down_per_node"] for line in lines}
    assert [line["bytes_down"] for line in lines] == [12 * size] * 4
    assert [line["bytes_up"] for line in lines] == [*[9 * size] * 3, 0]
    assert [line["bytes_up_per_node"] for line in lines] == [*[size] * 3, 0]
    assert summary(tmp_path)["bytes_up_per_node"] == size


@pytest.mark.parametrize("band", ["per-device", "shared"])
@pytest.mark.parametrize("method", ["proposed", "fedavg"])
def test_the_energy_of_a_run_is_the_sum_over_its_links(
    method: str, band: str, tmp_path: Path
) -> None:
    """Recomputed from the run record alone, link by link, with a device that fails at times."""
    rounds = {"count": 0}

    def fail(message: Message) -> bool:
        config = message.content.config_records.get("config")
        rounds["count"] += config is not None
        return config is not None and rounds["count"] % 7 == 0

    settings: dict[str, Scalar] = {"method": method, "band": band, "directions": "both"}
    run_app(tmp_path, settings, fail=fail)
    config = from_run_config(read_config(tmp_path))
    x_m, y_m = np.loadtxt(tmp_path / "server.csv", delimiter=",", skiprows=1)
    where = read_devices(tmp_path / "devices.csv", (x_m, y_m), config.capacity)
    model = load_file(tmp_path / method / "model.safetensors")
    channel = Channel(
        model_bits=32.0 * sum(values.size for values in model.values()),
        band=config.band,  # type: ignore[arg-type]
        directions="both",
    )
    total = EnergyAccount()
    failures = 0
    for line in run_record.read(tmp_path / "rounds.jsonl"):
        if line["phase"] != "train":
            continue
        failures += len(line["failed"])
        alive = np.setdiff1d(np.arange(config.devices), line["failed"])
        links = []
        if method == "fedavg":
            links.append(server_links(channel, where.positions_m, where.server_m, alive, "uplink"))
        else:
            labels = read_assignment(tmp_path / method / "clusters.csv", where).labels
            clustering = Clustering(labels, np.array(line["heads"]))
            live = np.setdiff1d(np.arange(len(line["heads"])), line["skipped"])
            taking = alive[np.isin(labels[alive], live)]
            links.append(cluster_links(channel, where.positions_m, clustering, None, taking))
            if line["iteration"] % config.tau2 == 0:
                heads = clustering.heads[live]
                links.append(server_links(channel, where.positions_m, where.server_m, heads))
        for transfers in links:
            for kind, joules in zip(transfers.kind, transfers.energy_j, strict=True):
                total += EnergyAccount(**{f"{kind}_j": float(joules)})
    assert failures > 0
    entry = summary(tmp_path)
    for kind in ("uplink_j", "relay_j", "downlink_j"):
        assert entry[kind] == pytest.approx(getattr(total, kind))
    assert entry["energy_j"] == pytest.approx(total.total_j)


def test_the_result_does_not_depend_on_the_number_of_nodes(tmp_path: Path) -> None:
    """1, 3 and 12 nodes."""
    models = []
    for per_node in (12, 4, 1):
        run_app(tmp_path / str(per_node), {"clients-per-node": per_node})
        models.append(load_file(tmp_path / str(per_node) / "proposed" / "model.safetensors"))
    for model in models[1:]:
        for name, values in model.items():
            np.testing.assert_allclose(values, models[0][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("crash_at", [3, 14, 20, 30])
def test_killed_anywhere_and_resumed_is_bit_identical(crash_at: int, tmp_path: Path) -> None:
    run_app(tmp_path / "whole")
    asked = 0

    def dying(message: Message, context: Context) -> Message:
        nonlocal asked
        asked += message.metadata.message_type == "train"
        if asked == crash_at:
            raise Killed
        return apps.client_app(message, context)

    killed = tmp_path / "killed"
    with pytest.raises(Killed):
        run_app(killed, wrap=dying)
    run_app(killed, {"resume": True})
    whole = load_file(tmp_path / "whole" / "proposed" / "model.safetensors")
    found = load_file(killed / "proposed" / "model.safetensors")
    assert all(np.array_equal(found[name], whole[name]) for name in whole)
    lines = [run_record.read(path / "rounds.jsonl") for path in (killed, tmp_path / "whole")]
    for a, b in zip(*lines, strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}


def test_a_finished_directory_is_not_overwritten(tmp_path: Path) -> None:
    run_app(tmp_path)
    with pytest.raises(ValueError, match="holds a run already; `python -m wireless_cfl_app resume"):
        run_app(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be resumed with alpha = 0\.25"):
        run_app(tmp_path, {"resume": True, "alpha": 0.25})


def test_sketched_gradients_are_all_that_leaves_a_device_for_planning(tmp_path: Path) -> None:
    grid = run_app(tmp_path, {"gradient-sketch": 16})
    sizes = {
        reply.content.array_records["arrays"]["gradient"].numpy().size
        for reply in grid.replies
        if "gradient" in reply.content.array_records.get("arrays", {})
    }
    assert sizes == {16}
    full, sketched = tmp_path / "full", summary(tmp_path)["planning_j"]
    run_app(full)
    model = load_file(full / "proposed" / "model.safetensors")
    parameters = sum(values.size for values in model.values())
    assert sketched == pytest.approx(summary(full)["planning_j"] * 16 / parameters)


def test_one_cluster_for_all_needs_capacity(tmp_path: Path) -> None:
    """Checked before any device is asked and before anything is written."""
    settings: dict[str, Scalar] = {"candidates": 2}
    with pytest.raises(InfeasibleCapacityError, match="12 devices cannot be served: 2 candidate"):
        run_app(tmp_path / "new", settings)
    assert not (tmp_path / "new" / "config.toml").exists()


def test_positions_come_from_a_file(tmp_path: Path) -> None:
    rows = [f"d{u},{10 * u},{u % 3}" for u in range(12)]
    path = tmp_path / "devices.csv"
    path.write_text("\n".join(["id,x_m,y_m", *rows]) + "\n")
    run_app(tmp_path / "run", {"positions": str(path), "method": "random"})
    assert "d7,70.0,1.0,yes,4" in (tmp_path / "run" / "devices.csv").read_text()
    with pytest.raises(ValueError, match=r"devices = 11: positions = .* names 12 devices"):
        run_app(tmp_path / "other", {"positions": str(path), "devices": 11})
    path.write_text("\n".join(["id,x_m,y_m", *rows[:-1], "d11,nan,0"]) + "\n")
    with pytest.raises(ValueError, match="must be finite"):
        run_app(tmp_path / "other", {"positions": str(path)})
    path.write_text("\n".join(["id,x_m,y_m", *rows[:-1], "d11,0,0"]) + "\n")
    with pytest.raises(ValueError, match="occurs twice"):
        run_app(tmp_path / "other", {"positions": str(path)})


def test_a_device_without_usable_data_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wireless_cfl_app import node

    healthy = node.simulated_device

    def faulty(config: WirelessConfig, device: int) -> object:
        if device == 5:
            raise OSError("no such file")
        return healthy(config, device)

    monkeypatch.setattr(node, "simulated_device", faulty)
    run_app(tmp_path, {"method": "random"})
    lines = run_record.read(tmp_path / "rounds.jsonl")
    assert all(line["failed"] == [5] for line in lines)


@given(counts=st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), min_size=4, max_size=4))
def test_label_divergence_by_hand(counts: list[list[int]]) -> None:
    """One cluster is like the whole; the definition is written out for two."""
    table = np.array(counts)
    assert divergence(table, np.zeros(4, dtype=int)) == pytest.approx(0)
    labels, total = np.array([0, 1, 0, 1]), 0.0
    for cluster in (0, 1):
        own = table[labels == cluster].sum(axis=0)
        share = own.sum() / table.sum()
        everywhere = table.sum(axis=0) / table.sum()
        total += share * float(np.abs(own / own.sum() - everywhere).sum())
    assert divergence(table, labels) == pytest.approx(total)
