"""The plan for a user's own devices: assignment as CSV, map as PNG."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from strategies.wireless.problem import Clustering
from strategies.wireless.topology import Topology

LIMITS = np.array([-0.75, 0.75])


def load_gradients(path: str | Path, topology: Topology) -> NDArray[np.floating]:
    """(U, p) gradients from an ``.npz`` with key ``gradients``, rows in the order of the devices,
    or of its key ``ids`` if it has one. ``ValueError`` if they do not match the devices.
    """
    with np.load(path, allow_pickle=False) as stored:
        if "gradients" not in stored:
            raise ValueError(f"{path} has the keys {stored.files}: must have gradients")
        rows = np.asarray(stored["gradients"])
        ids = [str(name) for name in stored["ids"]] if "ids" in stored else list(topology.ids)
    if rows.ndim != 2 or len(rows) != len(ids):
        raise ValueError(f"{path}: gradients has shape {rows.shape}: must be ({len(ids)}, p)")
    place = {name: index for index, name in enumerate(ids)}
    missing = [name for name in topology.ids if name not in place]
    if missing:
        raise ValueError(f"{path} lacks the gradient of {missing[0]!r}: must have one per device")
    return rows[[place[name] for name in topology.ids]]


def write_assignment(path: str | Path, topology: Topology, clustering: Clustering) -> None:
    """Columns id, cluster, head_id, is_head, distance_to_head_m; the file appears whole or not."""
    own_head = clustering.heads[clustering.labels]
    offset = topology.positions_m - topology.positions_m[own_head]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "cluster", "head_id", "is_head", "distance_to_head_m"])
    for device, name in enumerate(topology.ids):
        head = int(own_head[device])
        distance = f"{np.hypot(*offset[device]):.3f}"
        cluster = int(clustering.labels[device])
        writer.writerow([name, cluster, topology.ids[head], int(head == device), distance])
    _write_whole(Path(path), text.getvalue().encode())


def read_assignment(path: str | Path, topology: Topology) -> Clustering:
    """Inverse of ``write_assignment``; the rows may come in any order.

    ``ValueError`` unless the file assigns exactly the devices of the topology.
    """
    with open(path, newline="", encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    if set(rows) != set(topology.ids):
        raise ValueError(f"{path}: assigns other devices than the {len(topology.ids)} given")
    place = {name: index for index, name in enumerate(topology.ids)}
    labels = np.array([int(rows[name]["cluster"]) for name in topology.ids], dtype=np.int64)
    heads = np.zeros(labels.max() + 1, dtype=np.int64)
    heads[labels] = [place[rows[name]["head_id"]] for name in topology.ids]
    return Clustering(labels, heads)


def write_map(path: str | Path, topology: Topology, clustering: Clustering) -> None:
    """Devices, heads and links as a PNG; a server far outside is shown by the direction to it."""
    image = io.BytesIO()
    map_figure(topology, clustering).savefig(image, format="png", dpi=150)
    _write_whole(Path(path), image.getvalue())


def map_figure(topology: Topology, clustering: Clustering, ink: str = "black") -> Figure:
    """The map; ``ink`` is the colour of text, axes and outlines."""
    place, heads = topology.positions_m, clustering.heads
    figure = Figure(figsize=(7, 7), layout="constrained")
    axes = figure.add_subplot()
    colours = np.arange(len(heads)) % 20
    for device, cluster in enumerate(clustering.labels):
        ends = place[[device, heads[cluster]]]
        axes.plot(ends[:, 0], ends[:, 1], color=ink, alpha=0.25, linewidth=0.8, zorder=1)
    colour = colours[clustering.labels]
    kind: dict[str, Any] = {"cmap": "tab20", "vmin": 0, "vmax": 19}
    axes.scatter(place[:, 0], place[:, 1], c=colour, s=18, zorder=2, label="device", **kind)
    axes.scatter(
        place[heads, 0], place[heads, 1], c=colours, s=110, marker="s", zorder=3,
        edgecolors=ink, label="head", **kind,
    )  # fmt: skip
    middle, span = place.mean(axis=0), float(np.ptp(place, axis=0).max()) or 1.0
    away = topology.server_m - middle
    distance = float(np.linalg.norm(away))
    if distance < span:
        server = topology.server_m
        axes.scatter([server[0]], [server[1]], marker="*", s=250, color=ink, label="server")
    else:
        tip, tail = middle + away / distance * 0.66 * span, middle + away / distance * 0.56 * span
        arrow = {"arrowstyle": "->", "color": ink}
        axes.annotate("", xy=tuple(tip), xytext=tuple(tail), arrowprops=arrow)
        text = f"server, {distance:.0f} m"
        axes.annotate(text, xy=tuple(tip), ha="right", va="bottom", color=ink)
        axes.set(xlim=middle[0] + span * LIMITS, ylim=middle[1] + span * LIMITS)
    axes.set(aspect="equal")
    axes.set_xlabel("x (m)", color=ink)
    axes.set_ylabel("y (m)", color=ink)
    axes.tick_params(colors=ink)
    axes.set_title(f"{len(place)} devices, {len(heads)} clusters", color=ink)
    for spine in axes.spines.values():
        spine.set_color(ink)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, labelcolor=ink)
    return figure


def _write_whole(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)
