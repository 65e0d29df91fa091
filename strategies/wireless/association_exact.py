"""Proved optima by dynamic programming over subsets of devices (Eq. 16 and 17, tiny instances).

Fixed heads: f_k(M) = min over S in M of f_{k-1}(M - S) + cost_k(S) for subsets M of the free
devices, one stage a head: O(K 3^(U - K)). Free heads: the same with the cost of S under its best
head, where S holds the highest device of M; one run for every number of heads, because Eq. 15
divides by it.

Deviation: the paper uses Gurobi; a proof needs no licence at these sizes.
"""

from __future__ import annotations

import numpy as np

from strategies.wireless.problem import Clustering, ClusteringProblem, FloatArray, IntArray
from strategies.wireless.subsets import (
    best_head_distance,
    bound_for_head_count,
    costs_for_heads,
    members,
    popcount,
    squared_sums,
    submasks,
    with_best_heads,
)

MAX_FREE_DEVICES = 16
MAX_JOINT_DEVICES = 15
LOW_BITS = 7


def associate_exactly(problem: ClusteringProblem, heads: IntArray) -> Clustering:
    """The optimal association for fixed heads (Eq. 17).

    Raises ``ValueError`` if more than ``MAX_FREE_DEVICES`` devices are not heads, and
    ``InfeasibleCapacityError`` before any work if the heads cannot serve all devices.
    """
    heads = np.asarray(heads, dtype=np.int64)
    problem.check_heads(heads)
    free = np.setdiff1d(np.arange(problem.devices), heads)
    if len(free) > MAX_FREE_DEVICES:
        raise ValueError(f"U - K = {len(free)}: must be at most {MAX_FREE_DEVICES} for subset DP")
    costs = costs_for_heads(problem, heads, free)
    everyone = (1 << len(free)) - 1
    stages = [costs[0]]
    for cost in costs[1:-1]:
        stages.append(subset_convolution(stages[-1], cost, len(free)))
    labels = np.zeros(problem.devices, dtype=np.int64)
    labels[heads] = np.arange(len(heads))
    mask = everyone
    for stage in range(len(heads) - 1, 0, -1):
        subsets = submasks(mask)
        best = int(subsets[(stages[stage - 1][mask ^ subsets] + costs[stage][subsets]).argmin()])
        labels[free[members(best)]] = stage
        mask ^= best
    return Clustering(labels, heads)


def solve_exactly(problem: ClusteringProblem) -> Clustering:
    """The optimal heads and association (Eq. 16).

    Raises ``ValueError`` above ``MAX_JOINT_DEVICES`` devices.
    """
    if problem.devices > MAX_JOINT_DEVICES:
        raise ValueError(f"U = {problem.devices}: must be at most {MAX_JOINT_DEVICES} for joint DP")
    squares, counts = squared_sums(problem.unit_gradients), popcount(problem.devices)
    distance = best_head_distance(problem, counts)
    depends_on_k = problem.weighting == "paper" and problem.alpha > 0
    best_value, best_parts = np.inf, np.zeros(0, dtype=np.int64)
    stages: list[FloatArray] = []
    for heads in range(problem.smallest_head_count, len(problem.candidates) + 1):
        if bound_for_head_count(problem, heads) >= best_value:
            break
        if depends_on_k or not stages:
            stages = [distance + problem.cluster_weights(counts, heads) * squares]
        while len(stages) < heads - 1:
            stages.append(_next_stage(stages[-1], stages[0], problem.devices))
        value, parts = _trace(stages, heads, problem.devices)
        if value < best_value:
            best_value, best_parts = value, parts
    return with_best_heads(problem, best_parts)


def subset_convolution(first: FloatArray, second: FloatArray, bits: int) -> FloatArray:
    """(2^bits,) h[M] = min over S in M of first[M - S] + second[S]. O(3^bits) time.

    The low bits are handled by one gather over all disjoint pairs, the high bits by a loop.
    """
    low = min(bits, LOW_BITS)
    size = 1 << low
    union = np.repeat(np.arange(size), 1 << popcount(low))
    part = np.concatenate([submasks(mask) for mask in range(size)])
    rest, starts = union ^ part, np.searchsorted(union, np.arange(size))
    first, second = first.reshape(-1, size), second.reshape(-1, size)
    out = np.empty_like(first)
    for high in range(len(first)):
        parts = submasks(high)
        pairs = np.full(len(union), np.inf)
        for chunk in np.array_split(parts, -(-len(parts) // 16)):
            sums = first[high ^ chunk][:, rest] + second[chunk][:, part]
            np.minimum(pairs, sums.min(axis=0), out=pairs)
        out[high] = np.minimum.reduceat(pairs, starts)
    return out.ravel()


def _next_stage(stage: FloatArray, cost: FloatArray, devices: int) -> FloatArray:
    """One more cluster; holding the set's highest device, it counts no partition twice."""
    out = np.full(1 << devices, np.inf)
    for top in range(devices):
        half = 1 << top
        out[half : 2 * half] = subset_convolution(stage[:half], cost[half : 2 * half], top)
    return out


def _trace(stages: list[FloatArray], heads: int, devices: int) -> tuple[float, IntArray]:
    """Value and clusters (bit masks) of the best partition of all devices into ``heads``."""
    cost, mask = stages[0], (1 << devices) - 1
    value, parts = 0.0, list[int]()
    for stage in range(heads - 2, -1, -1):
        top = 1 << (mask.bit_length() - 1)
        subsets = submasks(mask ^ top) | top
        sums = stages[stage][mask ^ subsets] + cost[subsets]
        choice = int(sums.argmin())
        if not parts:
            value = float(sums[choice])
        parts.append(int(subsets[choice]))
        mask ^= parts[-1]
    parts.append(mask)
    return (value if heads > 1 else float(cost[mask])), np.array(parts)
