"""One training run of the wireless app in this process, kept on disk so that it is done once.

The app's own server and clients run unchanged on an in-process grid: the numbers are those of
``python -m wireless_cfl_app run``, without the 20 ms a message of Flower's engine.
"""

import argparse
import csv
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from app_kit.in_process_grid import InProcessGrid
from app_kit.run_config import Scalar, read_preset
from app_kit.run_files import read_summary, write_config
from strategies import run_record
from strategies.checkpoint import RunDirectory
from strategies.wireless.plan import read_assignment
from strategies.wireless.problem import Clustering
from strategies.wireless.topology import Topology, read_devices
from wireless_cfl_app import client_app, server_app
from wireless_cfl_app.config import PRESETS, from_run_config

HERE = Path(__file__).parent
FILES = {"fashion_mnist": "fashion_mnist.npz", "cifar10": "cifar10_jpegbytes.npz"}
METHODS = ("proposed", "similarity", "random", "fedavg")
TUNED = {"fashion_mnist": 0.2, "cifar10": 0.4}
"""Learning rates chosen by ``tuning.py`` on held-back training images."""

Run = tuple[dict[str, Any], list[dict[str, Any]], Path]


def options(description: str) -> argparse.ArgumentParser:
    """Arguments that all scripts have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True, help="folder of the .npz files")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("runs/wireless"), help="finished runs")
    return parser


def train(work: Path, preset: str, dataset: Path, **changes: Scalar) -> Run:
    """Summary, record and directory of one run.

    A run that was stopped goes on, a finished one is read.
    """
    values: dict[str, Scalar] = {
        **read_preset(PRESETS, preset),
        "clients-per-node": 100,
        "evaluate-every": 5,
        **{key.replace("_", "-"): value for key, value in changes.items()},
        "dataset": str(dataset.resolve()),
    }
    config = from_run_config(values)
    name = hashlib.sha256(json.dumps(config.to_run_config(), sort_keys=True).encode()).hexdigest()
    path = work / name[:16]
    directory = RunDirectory(path)
    try:
        if not read_summary(path):
            logging.getLogger("flwr").setLevel(logging.ERROR)
            torch.set_num_threads(1)
            run_config = config.to_run_config()
            write_config(path, "wireless", run_config)
            grid = InProcessGrid(client_app.app, config.nodes, run_config)
            server_app.run(grid, config, directory)
        (summary,) = read_summary(path)
        lines = run_record.read(directory.rounds_path)
    finally:
        directory.close()
    print(
        f"{preset} {changes}: accuracy {summary['accuracy_mean']:.4f}, "
        f"{summary['energy_j']:.3g} J, {summary['seconds']:.0f} s",
        flush=True,
    )
    return summary, lines, path


def clusters_of(path: Path, method: str) -> tuple[Topology, Clustering | None]:
    """Devices and clusters that a run left behind."""
    x_m, y_m = np.loadtxt(path / "server.csv", delimiter=",", skiprows=1)
    where = read_devices(path / "devices.csv", (float(x_m), float(y_m)), capacity=1)
    file = path / method / "clusters.csv"
    return where, read_assignment(file, where) if file.exists() else None


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    deviation = f" +- {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
    return f"{np.mean(values):.4g}{deviation}"


def lines_figure(
    path: Path,
    series: Mapping[str, Mapping[float, Sequence[float]]],
    axes_labels: tuple[str, str],
    *,
    logarithmic: bool = False,
) -> None:
    """One line a method through the means over seeds, with a band of one standard deviation."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for (name, points), line in zip(series.items(), ("-", "--", "-.", ":"), strict=False):
        places = sorted(points)
        means = np.array([np.mean(points[x]) for x in places])
        widths = np.array([np.std(points[x], ddof=1) for x in places])
        (drawn,) = axes.plot(places, means, line, label=name)
        axes.fill_between(
            places, means - widths, means + widths, alpha=0.2, color=drawn.get_color()
        )
    axes.set(xlabel=axes_labels[0], ylabel=axes_labels[1])
    if logarithmic:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def write_csv(name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """A result file beside the scripts."""
    rows = list(rows)
    with (HERE / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
