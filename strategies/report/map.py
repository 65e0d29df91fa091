"""Maps of wireless runs, from the devices and clusters that a run leaves behind."""

import csv
import dataclasses
import io
from pathlib import Path

import matplotlib
import numpy as np

from strategies.report.plots import INK, inline
from strategies.wireless.plan import map_figure, read_assignment
from strategies.wireless.topology import read_devices


@dataclasses.dataclass(frozen=True)
class NetworkMap:
    """A drawn network and its numbers.

    Attributes
    ----------
    title : str
    svg : str
        An ``<svg>`` element that names itself and refers to nothing outside.
    headings, rows
        The assignment as a table, a row a device.
    """

    title: str
    svg: str
    headings: list[str]
    rows: list[list[str]]


def network_maps(run_dir: Path, run_name: str) -> list[NetworkMap]:
    """A map for every method that has clusters; none for other runs."""
    devices, server = run_dir / "devices.csv", run_dir / "server.csv"
    found = sorted(run_dir.glob("*/clusters.csv"))
    if not devices.is_file() or not server.is_file():
        return []
    return [_map(devices, server, path, f"{run_name} {path.parent.name}") for path in found]


def _map(devices: Path, server: Path, clusters: Path, name: str) -> NetworkMap:
    x_m, y_m = np.loadtxt(server, delimiter=",", skiprows=1)
    topology = read_devices(devices, (float(x_m), float(y_m)), capacity=1)
    with clusters.open(newline="", encoding="utf-8") as file:
        headings, *rows = csv.reader(file)
    clustering = read_assignment(clusters, topology)
    labels, heads = clustering.labels, clustering.heads
    title = f"Map of {name}"
    buffer = io.StringIO()
    key = "map-" + "".join(c if c.isalnum() else "-" for c in name)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": key}):
        figure = map_figure(topology, clustering, INK)
        figure.savefig(buffer, format="svg", transparent=True)
    sizes = ", ".join(str(size) for size in np.bincount(labels))
    said = f"{len(labels)} devices in {len(heads)} clusters of {sizes} devices."
    return NetworkMap(title, inline(buffer.getvalue(), key, title, said), headings, rows)
