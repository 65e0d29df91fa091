"""Where the devices and the server are (wireless CFL paper, Sections 2 and 5).

The paper's network: 100 devices, uniform in a disc of 100 m radius, and a server 1 km from its
centre. A user's own network comes from a CSV file.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strategies.wireless.problem import (
    ClusteringProblem,
    FloatArray,
    IntArray,
    Weighting,
    check_positions,
)

TRUE_WORDS = {"1", "true", "yes"}
FALSE_WORDS = {"0", "false", "no"}


@dataclass(frozen=True)
class Topology:
    """Devices, server and who may be a head.

    Parameters
    ----------
    ids : (U,) names of the devices, distinct.
    positions_m : (U, 2) coordinates in metres, finite and distinct.
    server_m : (2,) coordinates of the server in metres.
    candidates : (N,) indices of the devices that may be heads.
    capacities : (N,) devices each candidate can serve, itself included.
    """

    ids: tuple[str, ...]
    positions_m: FloatArray
    server_m: FloatArray
    candidates: IntArray
    capacities: IntArray

    def __post_init__(self) -> None:
        check_positions(self.positions_m)
        if len(self.ids) != len(self.positions_m):
            raise ValueError(f"ids has {len(self.ids)} names: must be {len(self.positions_m)}")
        if len(set(self.ids)) != len(self.ids):
            twice = next(name for name in self.ids if self.ids.count(name) > 1)
            raise ValueError(f"id = {twice!r} occurs twice: must be distinct")

    def problem(
        self,
        unit_gradients: NDArray[np.floating],
        *,
        alpha: float = 0.5,
        weighting: Weighting = "paper",
    ) -> ClusteringProblem:
        """The clustering problem of these devices (Eq. 16); checks everything else."""
        return ClusteringProblem(
            self.positions_m,
            self.server_m,
            unit_gradients,
            self.candidates,
            self.capacities,
            alpha,
            weighting,
        )


def devices_in_disc(
    rng: np.random.Generator,
    *,
    devices: int = 100,
    radius_m: float = 100.0,
    server_distance_m: float = 1000.0,
    candidates: int | None = None,
    capacity: int = 15,
) -> Topology:
    """Devices uniform in a disc around the origin, the server on the x axis (Section 5).

    ``candidates`` devices drawn at random may be heads (default: all). ``ValueError`` if a number
    is out of range.
    """
    if devices < 1:
        raise ValueError(f"devices = {devices}: must be >= 1")
    if not 0 < radius_m < np.inf:
        raise ValueError(f"radius_m = {radius_m}: must be > 0")
    if not 0 <= server_distance_m < np.inf:
        raise ValueError(f"server_distance_m = {server_distance_m}: must be >= 0")
    if candidates is not None and not 1 <= candidates <= devices:
        raise ValueError(f"candidates = {candidates}: must lie in [1, {devices}]")
    radius, angle = radius_m * np.sqrt(rng.random(devices)), 2 * np.pi * rng.random(devices)
    chosen = np.arange(devices)
    if candidates is not None:
        chosen = np.sort(rng.choice(devices, candidates, replace=False))
    return Topology(
        ids=tuple(str(u) for u in range(devices)),
        positions_m=np.column_stack([radius * np.cos(angle), radius * np.sin(angle)]),
        server_m=np.array([server_distance_m, 0.0]),
        candidates=chosen,
        capacities=np.full(len(chosen), capacity),
    )


def read_devices(path: str | Path, server_m: tuple[float, float], capacity: int) -> Topology:
    """Devices from a CSV file with columns id, x_m, y_m and optionally candidate and capacity.

    ``candidate`` is yes/no, true/false or 1/0 (empty or absent: yes); ``capacity`` overrides the
    given one. ``ValueError`` names the line, the column and what is allowed.
    """
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        missing = {"id", "x_m", "y_m"} - set(reader.fieldnames or ())
        if missing:
            raise ValueError(f"{path} lacks the columns {sorted(missing)}: must have id, x_m, y_m")
        rows = list(reader)
    if not rows:
        raise ValueError(f"{path} names no device: must have at least one line")
    ids, positions, candidates, capacities = [], [], [], []
    for index, row in enumerate(rows):
        where = f"{path} line {index + 2}"
        ids.append(row["id"])
        positions.append([_number(row["x_m"], "x_m", where), _number(row["y_m"], "y_m", where)])
        word = (row.get("candidate") or "yes").strip().lower()
        if word not in TRUE_WORDS | FALSE_WORDS:
            raise ValueError(f"{where}: candidate = {word!r}: must be yes or no")
        if word in TRUE_WORDS:
            candidates.append(index)
            own = (row.get("capacity") or "").strip()
            capacities.append(_number(own, "capacity", where) if own else capacity)
    return Topology(
        tuple(ids),
        np.array(positions),
        np.array(server_m, dtype=float),
        np.array(candidates, dtype=np.int64),
        np.array(capacities),
    )


def _number(text: str | None, column: str, where: str) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise ValueError(f"{where}: {column} = {text!r}: must be a number") from None
