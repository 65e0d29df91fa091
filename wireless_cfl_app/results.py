"""What a run leaves behind besides its record: model, clusters, map, summary."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from app_kit.run_files import put_summary
from strategies import run_record, traffic
from strategies.checkpoint import RunDirectory, write_atomically
from strategies.hierarchical import HierarchicalFedAvg
from strategies.wireless.plan import write_assignment, write_map
from strategies.wireless.topology import Topology
from wireless_cfl_app.config import WirelessConfig
from wireless_cfl_app.data import label_counts

NOTE = "models, gradients and positions reach the server as they are"


def trust(config: WirelessConfig) -> list[str]:
    """Whom those who take part have to trust; for the start log and the report."""
    if config.simulation:
        return [NOTE]
    return [
        f"no privacy at all: the server is trusted with everything; {NOTE}",
        "on devices: whoever may submit runs to the SuperLink is trusted, too; a run is code that "
        "the devices execute",
    ]


def write_devices(path: Path, where: Topology) -> None:
    """``devices.csv``, in the form that ``positions`` reads, and ``server.csv``."""
    capacity = dict(zip(where.candidates.tolist(), where.capacities.tolist(), strict=True))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "x_m", "y_m", "candidate", "capacity"])
    for device, (name, place) in enumerate(zip(where.ids, where.positions_m, strict=True)):
        able = device in capacity
        row = [name, *map(repr, map(float, place)), "yes" if able else "no"]
        writer.writerow([*row, capacity.get(device, "")])
    write_atomically(path / "devices.csv", text.getvalue().encode())
    server = ",".join(repr(float(value)) for value in where.server_m)
    write_atomically(path / "server.csv", f"x_m,y_m\n{server}\n".encode())


def save_result(
    config: WirelessConfig, directory: RunDirectory, strategy: HierarchicalFedAvg
) -> None:
    """The model with its clusters and map, and the method's object in ``summary.json``."""
    assert strategy.arrays is not None
    folder = directory.path / config.method
    folder.mkdir(exist_ok=True)
    model = {name: np.asarray(array.numpy()) for name, array in strategy.arrays.items()}
    write_atomically(folder / "model.safetensors", save(model))
    if strategy.clustering is not None:
        write_assignment(folder / "clusters.csv", strategy.topology, strategy.clustering)
        write_map(folder / "map.png", strategy.topology, strategy.clustering)
    put_summary(directory.path, _summary(config, directory, strategy))


def _summary(
    config: WirelessConfig, directory: RunDirectory, strategy: HierarchicalFedAvg
) -> dict[str, Any]:
    everything = run_record.read(directory.rounds_path)
    lines = [line for line in everything if line["method"] == config.method]
    training = [line for line in lines if line["phase"] == "train"]
    measured = [line for line in training if line["accuracy_mean"] is not None]
    kinds = ("uplink_j", "relay_j", "downlink_j", "delay_s")
    energy = {kind: sum(line[kind] for line in training) for kind in kinds}
    return {
        "method": config.method,
        "accuracy_mean": measured[-1]["accuracy_mean"] if measured else None,
        "loss": measured[-1]["loss"] if measured else None,
        "rounds": len(lines),
        "seconds": round(sum(line["seconds"] for line in lines), 2),
        "clusters": 0 if strategy.clustering is None else len(strategy.clustering.heads),
        "energy_j": energy["uplink_j"] + energy["relay_j"] + energy["downlink_j"],
        **energy,
        # Step 1: what it costs to send the gradients once; not part of energy_j.
        "planning_j": sum(line["uplink_j"] for line in lines if line["phase"] != "train"),
        **traffic.of_run(lines),
        "label_divergence": label_divergence(config, strategy) if config.simulation else None,
        "private": False,
        "notes": trust(config),
    }


def label_divergence(config: WirelessConfig, strategy: HierarchicalFedAvg) -> float:
    """Mean L1 distance between a cluster's label distribution and that of all data, in [0, 2].

    Clusters are weighted by their samples; without clusters every device stands for itself.
    """
    counts = label_counts(config)
    labels = np.arange(len(counts))
    if strategy.clustering is not None:
        labels = strategy.clustering.labels
    return divergence(counts, labels)


def divergence(counts: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """The same from (U, classes) label counts and (U,) cluster labels."""
    sums = np.stack([counts[labels == cluster].sum(axis=0) for cluster in np.unique(labels)])
    samples = sums.sum(axis=1)
    everywhere = counts.sum(axis=0) / counts.sum()
    distances = np.abs(sums / samples[:, None] - everywhere).sum(axis=1)
    return float(samples @ distances / samples.sum())
