"""Annealing of one large clustering, block by block (U above a few hundred).

Every round cuts the clusters into blocks of ``CLUSTERS_A_BLOCK`` clusters that are neighbours in
the plane (in a randomly turned grid) or, more often as alpha grows, drawn at random. The blocks
are independent sub-problems and make their heat-bath steps side by side. No U x U matrix is held:
memory is O(U n) for blocks of n devices. Gradients longer than ``FACTOR_RANK`` are replaced, for
the choice of steps only, by their projection on ``FACTOR_RANK`` principal directions of a
Gaussian sketch plus their exact squared length; values are recomputed from the full gradients.
Within a round everything is in single precision.
"""

from __future__ import annotations

import numpy as np

from strategies.wireless.annealing import DISTANCE_FLOOR, Budget, weight_table
from strategies.wireless.heat_bath import Data, HeatBath, NoisePool
from strategies.wireless.problem import (
    Clustering,
    ClusteringProblem,
    FloatArray,
    IntArray,
    RealArray,
    objective,
)

# Above HOT a long search is in equilibrium; below COLD hardly a step is made (U = 1,000).
HOT, COLD = 0.03, 0.013
QUENCH_SHARE, QUENCH = 0.03, 0.002
CLUSTERS_A_BLOCK = 6
SWEEPS_A_ROUND = 2
FACTOR_RANK = 128


def anneal_blocks(
    problem: ClusteringProblem,
    start: Clustering,
    budget: Budget,
    rng: np.random.Generator,
    *,
    free_heads: bool = True,
    hot: float = HOT,
) -> Clustering:
    """The best clustering found from ``start`` (feasible), with the same number of heads."""
    noise = NoisePool(rng)
    rows, norms = principal_factor(problem.unit_gradients, rng)
    factor = _padded(rows), _padded(norms)
    labels, heads = start.labels.copy(), start.heads.copy()
    table = weight_table(problem, len(heads), problem.devices + 2)
    best, best_value, unit = start, np.inf, 0.0
    while (progress := budget.progress()) < 1:
        groups = _groups(problem, heads, rng)
        devices = _members(labels, groups)
        data = _block_data(problem, factor, devices)
        tables = np.tile(table[: devices.shape[1] + 2], (len(devices), 1))
        bath = HeatBath(data, *_local(labels, heads, groups, devices), tables, noise)
        unit = unit or bath.typical_change()
        cooling = _cooling(progress, hot)
        temperature = unit * cooling
        for _ in range(SWEEPS_A_ROUND):
            bath.sweep(temperature)
            if free_heads:
                bath.draw_heads(temperature if cooling > QUENCH else 0.0)
            budget.done += 1
            if budget.progress() >= 1:
                break
        _write_back(bath, groups, devices, labels, heads)
        value = float(bath.value.sum())
        del bath, data  # before the next round builds its own
        if value < best_value:
            best, best_value = Clustering(labels.copy(), heads.copy()), value
    return min(start, best, key=lambda clustering: objective(problem, clustering))


def _cooling(progress: float, hot: float) -> float:
    """Geometric from ``hot`` to ``COLD``, then almost a descent for the last of the budget."""
    annealed = progress / (1 - QUENCH_SHARE)
    return float(hot * (COLD / hot) ** annealed) if annealed < 1 else QUENCH


def principal_factor(rows: RealArray, rng: np.random.Generator) -> tuple[RealArray, FloatArray]:
    """(U, r) rows whose inner products approximate those of ``rows``, and the exact squared norms.

    Exact for r <= ``FACTOR_RANK``. Otherwise the rows are projected on the leading directions of a
    randomized range finder (two passes over the rows).
    """
    norms = np.einsum("ij,ij->i", rows, rows, dtype=float)
    if rows.shape[1] <= FACTOR_RANK:
        return rows, norms
    draw = rng.standard_normal((FACTOR_RANK, len(rows)), dtype=np.float32)
    basis, _ = np.linalg.qr((draw @ rows).T)
    return np.asarray(rows @ basis), norms


def _padded(rows: RealArray) -> RealArray:
    """The rows in single precision with a row of zeros behind: what index -1 is to find."""
    return np.concatenate([rows, np.zeros_like(rows[:1])]).astype(np.float32, copy=False)


def _groups(problem: ClusteringProblem, heads: IntArray, rng: np.random.Generator) -> IntArray:
    """(B, m) clusters of each block, -1 for padding."""
    count = len(heads)
    if rng.random() < problem.alpha**2:
        order = rng.permutation(count)
    else:
        angle = rng.random() * 2 * np.pi
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        x, y = (problem.positions_m[heads] @ turn).T
        strips = max(1, round(np.sqrt(count / CLUSTERS_A_BLOCK)))
        rank = np.empty(count)
        rank[np.argsort(x)] = np.arange(count)
        order = np.lexsort((y, np.floor(rank * strips / count + rng.random())))
    blocks = -(-count // CLUSTERS_A_BLOCK)
    padded = np.full(blocks * CLUSTERS_A_BLOCK, -1, dtype=np.int64)
    padded[:count] = order
    return padded.reshape(blocks, CLUSTERS_A_BLOCK)


def _members(labels: IntArray, groups: IntArray) -> IntArray:
    """(B, n) devices of each block, -1 for padding."""
    block_of = np.zeros(groups.max() + 1, dtype=np.int64)
    real = groups >= 0
    block_of[groups[real]] = np.nonzero(real)[0]
    block = block_of[labels]
    order = np.argsort(block, kind="stable")
    counts = np.bincount(block, minlength=len(groups))
    column = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    devices = np.full((len(groups), counts.max()), -1, dtype=np.int64)
    devices[block[order], column] = order
    return devices


def _block_data(
    problem: ClusteringProblem, factor: tuple[RealArray, RealArray], devices: IntArray
) -> Data:
    from strategies.wireless.heat_bath_steps import block_distances  # Numba: see HeatBath

    rows = factor[0][devices]
    gram = np.matmul(rows, rows.transpose(0, 2, 1))
    everyone = np.arange(devices.shape[1])
    gram[:, everyone, everyone] = factor[1][devices]
    place = (problem.positions_m - problem.server_m).astype(np.float32)[devices]
    weight = max(problem.distance_weight, DISTANCE_FLOOR / problem.distance_reference_m)
    distance = block_distances(place, np.float32(weight))
    to_server = weight * np.linalg.norm(place, axis=2)
    return Data(gram, distance, to_server, problem.capacity_of_device()[devices])


def _local(
    labels: IntArray, heads: IntArray, groups: IntArray, devices: IntArray
) -> tuple[IntArray, IntArray]:
    """Block labels and heads in block numbering."""
    local_cluster = np.zeros(len(heads), dtype=np.int64)
    block, slot = np.nonzero(groups >= 0)
    local_cluster[groups[block, slot]] = slot
    local_labels = np.where(devices >= 0, local_cluster[labels[devices]], -1)
    column_of = np.zeros(len(labels), dtype=np.int64)
    row, column = np.nonzero(devices >= 0)
    column_of[devices[row, column]] = column
    local_heads = np.where(groups >= 0, column_of[heads[groups]], -1)
    return local_labels, local_heads


def _write_back(
    bath: HeatBath, groups: IntArray, devices: IntArray, labels: IntArray, heads: IntArray
) -> None:
    """Change ``labels`` and ``heads`` in place to what the blocks have found."""
    row, column = np.nonzero(devices >= 0)
    labels[devices[row, column]] = groups[row, bath.labels[row, column]]
    block, slot = np.nonzero(groups >= 0)
    heads[groups[block, slot]] = devices[block, bath.heads[block, slot]]
