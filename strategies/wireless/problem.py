"""The joint clustering problem and its objective (wireless CFL paper, Sections 2.2 and 4).

Equations: distance d(C) (Eq. 6), constraints C1-C5 (Eq. 7), representativeness c(C) (Eq. 15),
objective (Eq. 16), association (Eq. 17) and utility (Eq. 18).

Deviations from the print:

* Distances are divided by the total distance of FedAvg (every device to the server); in raw
  metres alpha would have to be 0.99999 to matter.
* Eq. 18 drops beta before the head-to-server distances; Eq. 16, which keeps it, is minimised
  here. ``utility_as_printed`` gives Eq. 18 for comparison.
* A head is a member of its own cluster, at distance 0, and counts in its capacity.
* ``weighting = "size"`` weights each cluster by its share of the devices instead of 1 / N_ch.
  With unit gradients that is the paper's own target (end of Section 3) up to a constant.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
RealArray = NDArray[np.floating]
IntArray = NDArray[np.int64]
Weighting = Literal["paper", "size"]

UNIT_TOLERANCE = 1e-3


class InfeasibleCapacityError(ValueError):
    """No choice of heads can serve all devices; ``shortfall`` devices are left over."""

    def __init__(self, devices: int, candidates: int, total_capacity: int) -> None:
        self.devices = devices
        self.candidates = candidates
        self.total_capacity = total_capacity
        self.shortfall = devices - total_capacity
        super().__init__(
            f"{devices} devices cannot be served: {candidates} candidate heads have a total "
            f"capacity of {total_capacity}, {self.shortfall} too few"
        )


@dataclass(frozen=True)
class ClusteringProblem:
    """One instance of Eq. 16.

    Parameters
    ----------
    positions_m : (U, 2) device coordinates in metres, finite and pairwise distinct.
    server_m : (2,) server coordinates in metres.
    unit_gradients : (U, p) rows of length 1, or 0 for a device whose gradient vanished.
    candidates : (N,) device indices that may become heads.
    capacities : (N,) devices each candidate can serve, itself included; a scalar holds for all.
    alpha : weight of c(C), in [0, 1]; beta = 1 - alpha weighs the distance.
    weighting : "paper" (1 / N_ch, Eq. 15) or "size" (C_n / U).
    distance_reference_m : divisor of distances; default: FedAvg's total distance to the server.

    Raises
    ------
    ValueError : naming the key, the offending value and what is allowed.
    InfeasibleCapacityError : the capacities of all candidates sum to less than U.
    """

    positions_m: FloatArray
    server_m: FloatArray
    unit_gradients: RealArray
    candidates: IntArray
    capacities: IntArray
    alpha: float = 0.5
    weighting: Weighting = "paper"
    distance_reference_m: float = field(default=float("nan"))

    def __post_init__(self) -> None:
        def put(key: str, value: object) -> None:
            object.__setattr__(self, key, value)

        put("positions_m", np.asarray(self.positions_m, dtype=float))
        put("server_m", np.asarray(self.server_m, dtype=float))
        put("unit_gradients", np.asarray(self.unit_gradients))
        put("candidates", np.asarray(self.candidates, dtype=np.int64))
        put("alpha", float(self.alpha))
        devices = len(self.positions_m)
        check_positions(self.positions_m)
        if self.server_m.shape != (2,) or not np.isfinite(self.server_m).all():
            raise ValueError(f"server_m = {self.server_m}: must be two finite coordinates")
        _check_gradients(self.unit_gradients, devices)
        _check_candidates(self.candidates, devices)
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"alpha = {self.alpha}: must lie in [0, 1]")
        if self.weighting not in ("paper", "size"):
            raise ValueError(f'weighting = {self.weighting!r}: must be "paper" or "size"')
        capacities = np.asarray(self.capacities)
        if capacities.ndim == 0:
            capacities = np.full(len(self.candidates), capacities)
        if capacities.shape != self.candidates.shape:
            raise ValueError(
                f"capacities has shape {capacities.shape}: must be {self.candidates.shape}"
            )
        if (capacities < 1).any() or (capacities != np.floor(capacities)).any():
            raise ValueError(f"capacities = {capacities.min()}: must be whole numbers >= 1")
        put("capacities", np.minimum(capacities, devices).astype(np.int64))
        if np.isnan(self.distance_reference_m):
            to_server = np.linalg.norm(self.positions_m - self.server_m, axis=1)
            put("distance_reference_m", float(to_server.sum()))
        if not 0.0 < self.distance_reference_m < np.inf:
            raise ValueError(
                f"distance_reference_m = {self.distance_reference_m}: must be > 0 and finite"
            )
        if self.capacities.sum() < devices:
            total = int(self.capacities.sum())
            raise InfeasibleCapacityError(devices, len(self.candidates), total)

    @property
    def devices(self) -> int:
        """U, the number of devices."""
        return len(self.positions_m)

    @property
    def distance_weight(self) -> float:
        """beta / distance_reference_m: objective per metre."""
        return (1.0 - self.alpha) / self.distance_reference_m

    @property
    def smallest_head_count(self) -> int:
        """The fewest heads whose capacities sum to at least U."""
        largest_first = np.cumsum(np.sort(self.capacities)[::-1])
        return int(np.searchsorted(largest_first, self.devices) + 1)

    def server_distances_m(self) -> FloatArray:
        """(U,) distance of each device to the server."""
        return np.asarray(np.linalg.norm(self.positions_m - self.server_m, axis=1))

    def distances_m(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """(len(rows), len(columns)) distances between two lists of devices."""
        offset = self.positions_m[rows][:, None, :] - self.positions_m[columns][None, :, :]
        return np.asarray(np.hypot(offset[..., 0], offset[..., 1]))

    def capacity_of_device(self) -> IntArray:
        """(U,) capacity of each device as a head; 0 for devices that are no candidates."""
        capacity = np.zeros(self.devices, dtype=np.int64)
        capacity[self.candidates] = self.capacities
        return capacity

    def cluster_weights(self, counts: IntArray, heads: int) -> FloatArray:
        """Factor of |sum of unit gradients|^2 in alpha * c(C), for clusters of the given sizes."""
        counts = np.maximum(counts, 1).astype(float)
        if self.weighting == "paper":
            return np.asarray(self.alpha / (heads * counts**2))
        return np.asarray(self.alpha / (self.devices * counts))

    def check_heads(self, heads: IntArray) -> None:
        """Raise ``ValueError`` unless ``heads`` are distinct candidates, and
        ``InfeasibleCapacityError`` if they cannot serve all devices."""
        heads = np.asarray(heads)
        if len(heads) == 0 or len(np.unique(heads)) != len(heads):
            raise ValueError(f"heads = {heads.tolist()}: must be distinct and at least one")
        if not np.isin(heads, self.candidates).all():
            raise ValueError(f"heads = {heads.tolist()}: must all be candidates")
        total = int(self.capacity_of_device()[heads].sum())
        if total < self.devices:
            raise InfeasibleCapacityError(self.devices, len(heads), total)


@dataclass(frozen=True)
class Clustering:
    """``labels`` (U,): each device's cluster, 0..K-1; ``heads`` (K,): each cluster's head."""

    labels: IntArray
    heads: IntArray


def check_positions(positions_m: FloatArray) -> None:
    """Raise ``ValueError`` unless the array is (U, 2), finite and without duplicates."""
    if positions_m.ndim != 2 or positions_m.shape[1] != 2 or len(positions_m) == 0:
        raise ValueError(f"positions_m has shape {positions_m.shape}: must be (U, 2) with U >= 1")
    if not np.isfinite(positions_m).all():
        row = int(np.flatnonzero(~np.isfinite(positions_m).all(axis=1))[0])
        raise ValueError(f"positions_m[{row}] = {positions_m[row]}: must be finite")
    _, first, count = np.unique(positions_m, axis=0, return_index=True, return_counts=True)
    if (count > 1).any():
        row = int(first[count > 1][0])
        raise ValueError(f"positions_m[{row}] = {positions_m[row]} occurs twice: must be distinct")


def _check_gradients(unit_gradients: RealArray, devices: int) -> None:
    if unit_gradients.ndim != 2 or len(unit_gradients) != devices:
        raise ValueError(f"unit_gradients has shape {unit_gradients.shape}: must be ({devices}, p)")
    squared = np.einsum("ij,ij->i", unit_gradients, unit_gradients)
    if not np.isfinite(squared).all():
        raise ValueError("unit_gradients holds NaN or infinity: must be finite")
    wrong = (np.abs(squared - 1.0) > UNIT_TOLERANCE) & (squared != 0.0)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"unit_gradients[{row}] has squared length {squared[row]}: must be 1 (or 0)"
        )


def _check_candidates(candidates: IntArray, devices: int) -> None:
    if candidates.ndim != 1 or len(candidates) == 0:
        raise ValueError("candidates is empty: at least one device must be a candidate head")
    if candidates.min() < 0 or candidates.max() >= devices:
        raise ValueError(f"candidates = {candidates.tolist()}: must lie in [0, {devices - 1}]")
    if len(np.unique(candidates)) != len(candidates):
        raise ValueError("candidates names a device twice: must be distinct")


def check_clustering(problem: ClusteringProblem, clustering: Clustering) -> None:
    """Raise ``ValueError`` unless C1-C5 hold, every cluster is non-empty and holds its head."""
    labels, heads = clustering.labels, clustering.heads
    problem.check_heads(heads)
    if labels.shape != (problem.devices,) or labels.min() < 0 or labels.max() >= len(heads):
        raise ValueError("labels: must give each device one of the clusters")
    if (labels[heads] != np.arange(len(heads))).any():
        raise ValueError("labels: every head must belong to its own cluster")
    counts = np.bincount(labels, minlength=len(heads))
    over = np.flatnonzero(counts > problem.capacity_of_device()[heads])
    if len(over):
        raise ValueError(
            f"cluster {over[0]} holds {counts[over[0]]} devices: more than its capacity"
        )


def total_distance_m(problem: ClusteringProblem, clustering: Clustering) -> float:
    """d(C), Eq. 6, in metres."""
    own_head = problem.positions_m[clustering.heads[clustering.labels]]
    to_head = np.linalg.norm(problem.positions_m - own_head, axis=1).sum()
    to_server = np.linalg.norm(
        problem.positions_m[clustering.heads] - problem.server_m, axis=1
    ).sum()
    return float(to_head + to_server)


def representativeness(problem: ClusteringProblem, clustering: Clustering) -> float:
    """c(C), Eq. 15 (pairs u = u' included), or its size-weighted form."""
    heads = len(clustering.heads)
    sums = cluster_sums(problem.unit_gradients, clustering.labels, heads)
    counts = np.bincount(clustering.labels, minlength=heads)
    squared_means = np.einsum("kd,kd->k", sums, sums) / counts**2
    weights = np.full(heads, 1 / heads) if problem.weighting == "paper" else counts / counts.sum()
    return float(weights @ squared_means)


def objective(problem: ClusteringProblem, clustering: Clustering) -> float:
    """Eq. 16, distance normalised: beta * d(C) / d_reference + alpha * c(C); smaller is better."""
    distance = total_distance_m(problem, clustering) / problem.distance_reference_m
    return (1 - problem.alpha) * distance + problem.alpha * representativeness(problem, clustering)


def utility_as_printed(problem: ClusteringProblem, clustering: Clustering) -> float:
    """Psi of Eq. 18: the same, but the head-to-server distances are not multiplied by beta."""
    to_server = np.linalg.norm(
        problem.positions_m[clustering.heads] - problem.server_m, axis=1
    ).sum()
    missing = problem.alpha * to_server / problem.distance_reference_m
    return objective(problem, clustering) + float(missing)


def cluster_sums(rows: RealArray, labels: IntArray, clusters: int) -> FloatArray:
    """(clusters, p) sums of the rows of each cluster, in float64."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(clusters))
    present = np.bincount(labels, minlength=clusters) > 0
    sums = np.zeros((clusters, rows.shape[1]))
    # reduceat would copy all rows in cluster order; by column blocks the copy stays small.
    for first in range(0, rows.shape[1], 64):
        block = rows[order, first : first + 64].astype(np.float64)
        sums[present, first : first + 64] = np.add.reduceat(block, starts[present], axis=0)
    return sums


def load_instance(path: str | Path) -> tuple[ClusteringProblem, IntArray]:
    """Read an instance ``.npz``; the second value is ``fixed_heads`` (empty: heads are free).

    Keys: positions_m, server_m, unit_gradients, candidates, capacity (a number or one a
    candidate), alpha; optional distance_reference_m, weighting, fixed_heads.
    """
    if Path(path).exists() and not is_zipfile(path):
        raise ValueError(f"{path}: is no .npz file; for a CSV of devices use the command 'plan'")
    with np.load(path, allow_pickle=False) as stored:
        required = ("positions_m", "server_m", "unit_gradients", "candidates", "capacity", "alpha")
        missing = [key for key in required if key not in stored]
        if missing:
            raise ValueError(f"{path} lacks the keys {missing}: must hold {list(required)}")
        problem = ClusteringProblem(
            positions_m=stored["positions_m"],
            server_m=stored["server_m"],
            unit_gradients=stored["unit_gradients"],
            candidates=stored["candidates"],
            capacities=stored["capacity"],
            alpha=float(stored["alpha"]),
        )
        if "distance_reference_m" in stored:
            problem = replace(problem, distance_reference_m=float(stored["distance_reference_m"]))
        if "weighting" in stored:
            problem = replace(problem, weighting=str(stored["weighting"]))  # type: ignore[arg-type]
        fixed = stored["fixed_heads"] if "fixed_heads" in stored else np.zeros(0)
    fixed_heads = np.asarray(fixed, dtype=np.int64)
    if len(fixed_heads):
        problem.check_heads(fixed_heads)
    return problem, fixed_heads
