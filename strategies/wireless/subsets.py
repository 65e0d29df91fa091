"""All subsets of a few devices as bit masks: sums, costs and the cluster each one would make."""

from __future__ import annotations

import numpy as np

from strategies.wireless.problem import (
    Clustering,
    ClusteringProblem,
    FloatArray,
    IntArray,
    RealArray,
)


def bound_for_head_count(problem: ClusteringProblem, heads: int) -> float:
    """A value that no clustering with ``heads`` or more heads can beat; grows with ``heads``.

    The heads cost at least their smallest distances to the server; and at least 2 K - U clusters
    are single devices, whose squared length is 1 unless their gradient is zero.
    """
    to_server = np.sort(problem.server_distances_m()[problem.candidates])[:heads].sum()
    bound = float(problem.distance_weight * to_server)
    if problem.weighting == "paper":
        zeros = int((problem.unit_gradients == 0).all(axis=1).sum())
        bound += problem.alpha * max(0, 2 * heads - problem.devices - zeros) / heads
    return bound


def costs_for_heads(
    problem: ClusteringProblem, heads: IntArray, free: IntArray
) -> list[FloatArray]:
    """A head's (2^F,) costs of serving each subset of the free devices; inf over capacity."""
    gradients = problem.unit_gradients.astype(float)
    squares, counts = squared_sums(gradients[free]), popcount(len(free)) + 1
    weights = problem.cluster_weights(counts, len(heads))
    room = problem.capacity_of_device()[heads]
    costs = []
    for head, capacity in zip(heads, room, strict=True):
        along = subset_sums(gradients[free] @ gradients[head])
        total = squares + 2 * along + gradients[head] @ gradients[head]
        distance = subset_sums(problem.distances_m(np.array([head]), free)[0])
        cost = weights * total + problem.distance_weight * distance
        cost[counts > capacity] = np.inf
        costs.append(cost)
    return costs


def best_head_distance(problem: ClusteringProblem, counts: IntArray) -> FloatArray:
    """(2^U,) weighted distance of each subset under its best candidate; inf if none can."""
    best = np.full(1 << problem.devices, np.inf)
    to_server = problem.server_distances_m()
    masks = np.arange(1 << problem.devices)
    for candidate, capacity in zip(problem.candidates, problem.capacities, strict=True):
        row = problem.distances_m(np.array([candidate]), np.arange(problem.devices))[0]
        total = subset_sums(row) + to_server[candidate]
        allowed = ((masks >> candidate) & 1 == 1) & (counts <= capacity)
        np.minimum(best, np.where(allowed, total, np.inf), out=best)
    possible = np.isfinite(best)
    best[possible] *= problem.distance_weight
    return best


def with_best_heads(problem: ClusteringProblem, parts: IntArray) -> Clustering:
    """Lead every part by its candidate of least distance (a free choice at beta = 0)."""
    labels, heads = np.zeros(problem.devices, dtype=np.int64), np.zeros(len(parts), dtype=np.int64)
    capacity, to_server = problem.capacity_of_device(), problem.server_distances_m()
    for cluster, mask in enumerate(parts):
        group = members(int(mask))
        options = group[capacity[group] >= len(group)]
        total = problem.distances_m(options, group).sum(axis=1) + to_server[options]
        labels[group], heads[cluster] = cluster, options[total.argmin()]
    return Clustering(labels, heads)


def subset_sums(values: FloatArray) -> FloatArray:
    """(2^n,) sum of the values in each subset; bit i stands for ``values[i]``."""
    out = np.zeros(1)
    for value in values:
        out = np.concatenate([out, out + value])
    return out


def squared_sums(rows: RealArray) -> FloatArray:
    """(2^n,) squared length of the sum of each subset of the rows."""
    rows = rows.astype(float)
    gram, out = rows @ rows.T, np.zeros(1)
    for i in range(len(rows)):
        out = np.concatenate([out, out + gram[i, i] + 2 * subset_sums(gram[i, :i])])
    return out


def popcount(bits: int) -> IntArray:
    return subset_sums(np.ones(bits)).astype(np.int64)


def submasks(mask: int) -> IntArray:
    """All subsets of a bit mask, in increasing order."""
    bits = [1 << i for i in range(mask.bit_length()) if mask >> i & 1]
    return np.asarray(subset_sums(np.array(bits, dtype=float)), dtype=np.int64)


def members(mask: int) -> IntArray:
    return np.array([i for i in range(mask.bit_length()) if mask >> i & 1], dtype=np.int64)
