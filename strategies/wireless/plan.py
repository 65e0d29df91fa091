"""The plan for a user's own devices: assignment as CSV, map as PNG."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
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


def write_map(path: str | Path, topology: Topology, clustering: Clustering) -> None:
    """Devices, heads and links as a PNG; a server far outside is shown by the direction to it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    place, heads = topology.positions_m, clustering.heads
    figure = Figure(figsize=(7, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = np.arange(len(heads)) % 20
    for device, cluster in enumerate(clustering.labels):
        ends = place[[device, heads[cluster]]]
        axes.plot(ends[:, 0], ends[:, 1], color="0.8", linewidth=0.8, zorder=1)
    colour = colours[clustering.labels]
    kind: dict[str, Any] = {"cmap": "tab20", "vmin": 0, "vmax": 19}
    axes.scatter(place[:, 0], place[:, 1], c=colour, s=18, zorder=2, label="device", **kind)
    axes.scatter(
        place[heads, 0], place[heads, 1], c=colours, s=110, marker="s", zorder=3,
        edgecolors="black", label="head", **kind,
    )  # fmt: skip
    middle, span = place.mean(axis=0), float(np.ptp(place, axis=0).max()) or 1.0
    away = topology.server_m - middle
    distance = float(np.linalg.norm(away))
    if distance < span:
        axes.scatter(
            [topology.server_m[0]],
            [topology.server_m[1]],
            marker="*",
            s=250,
            color="black",
            label="server",
        )
    else:
        tip, tail = middle + away / distance * 0.66 * span, middle + away / distance * 0.56 * span
        axes.annotate("", xy=tuple(tip), xytext=tuple(tail), arrowprops={"arrowstyle": "->"})
        axes.annotate(f"server, {distance:.0f} m", xy=tuple(tip), ha="center", va="bottom")
        axes.set(xlim=middle[0] + span * LIMITS, ylim=middle[1] + span * LIMITS)
    axes.set(xlabel="x (m)", ylabel="y (m)", aspect="equal")
    axes.set_title(f"{len(place)} devices, {len(heads)} clusters")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    _write_whole(Path(path), image.getvalue())


def _write_whole(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)
