"""Annealing of one large clustering, block by block (U above a few hundred).

Every round cuts the clusters into blocks of ``CLUSTERS_A_BLOCK`` clusters that are neighbours in the plane
(in a randomly turned grid) or, more often as alpha grows, drawn at random. The blocks are independent
sub-problems and make their heat-bath steps side by side. No U x U matrix is held: memory is O(U n) for blocks
of n devices. Gradients longer than ``FACTOR_RANK`` are replaced, for the choice of steps only, by their
projection on ``FACTOR_RANK`` principal directions of a Gaussian sketch plus their exact squared length;
values are recomputed from the full gradients.
"""

from __future__ import annotations

import numpy as np

from .annealing import (
    COLD,
    DISTANCE_FLOOR,
    HOT,
    Budget,
    weight_table,
)
from .heat_bath import Data, HeatBath, NoisePool
from .problem import Clustering, ClusteringProblem, FloatArray, IntArray

CLUSTERS_A_BLOCK = 5
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
    cold: float = COLD,
    per_block=CLUSTERS_A_BLOCK,
    spr=SWEEPS_A_ROUND,
    prand=None,
) -> Clustering:
    """The clustering reached from ``start`` (feasible) with the same number of heads."""
    factor = problem.unit_gradients
    noise = NoisePool(rng)
    labels, heads = start.labels.copy(), start.heads.copy()
    table = weight_table(problem, len(heads), problem.devices + 2)
    best, best_value, unit = start, np.inf, None
    while (progress := budget.progress()) < 1:
        groups = _groups(problem, heads, rng, per_block, prand)
        devices = _members(labels, groups)
        bath = HeatBath(
            _block_data(problem, factor, devices),
            *_local(labels, heads, groups, devices),
            np.broadcast_to(table[: devices.shape[1] + 2], (len(devices), devices.shape[1] + 2)),
            noise,
        )
        if unit is None:
            unit = bath.typical_change()
        temperature = unit * hot * (cold / hot) ** progress
        for _ in range(spr):
            bath.sweep(temperature)
            if free_heads:
                bath.draw_heads(temperature)
            budget.done += 1
        _write_back(bath, groups, devices, labels, heads)
        value = float(bath.value.sum())
        if value < best_value:
            best, best_value = Clustering(labels.copy(), heads.copy()), value
    return best


def _groups(
    problem: ClusteringProblem, heads: IntArray, rng: np.random.Generator, per_block, prand
) -> IntArray:
    """(B, m) clusters of each block, -1 for padding."""
    count = len(heads)
    if rng.random() < (problem.alpha**2 if prand is None else prand):
        order = rng.permutation(count)
    else:
        angle = rng.random() * 2 * np.pi
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        x, y = (problem.positions_m[heads] @ turn).T
        strips = max(1, round(np.sqrt(count / per_block)))
        rank = np.empty(count)
        rank[np.argsort(x)] = np.arange(count)
        order = np.lexsort((y, np.floor(rank * strips / count + rng.random())))
    blocks = -(-count // per_block)
    padded = np.full(blocks * per_block, -1, dtype=np.int64)
    padded[:count] = order
    return padded.reshape(blocks, per_block)


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


def _block_data(problem: ClusteringProblem, factor: FloatArray, devices: IntArray) -> Data:
    real = devices >= 0
    rows = factor[devices].astype(float) * real[:, :, None]
    place = problem.positions_m[devices]
    weight = max(problem.distance_weight, DISTANCE_FLOOR / problem.distance_reference_m)
    offset = place[:, :, None, :] - place[:, None, :, :]
    both = real[:, :, None] & real[:, None, :]
    to_server = np.linalg.norm(place - problem.server_m, axis=2)
    return Data(
        rows @ rows.transpose(0, 2, 1),
        weight * np.hypot(offset[..., 0], offset[..., 1]) * both,
        weight * to_server,
        problem.capacity_of_device()[devices] * real,
    )


def _local(labels, heads, groups, devices):
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


def _write_back(bath, groups, devices, labels, heads) -> None:
    row, column = np.nonzero(devices >= 0)
    labels[devices[row, column]] = groups[row, bath.labels[row, column]]
    block, slot = np.nonzero(groups >= 0)
    heads[groups[block, slot]] = devices[block, bath.heads[block, slot]]
