"""Heads and feasible associations to start a search from (the paper leaves the start open)."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial import KDTree

from strategies.wireless.problem import Clustering, ClusteringProblem, IntArray

NEAREST_HEADS = 12


def random_heads(problem: ClusteringProblem, count: int, rng: np.random.Generator) -> IntArray:
    """(count,) distinct candidates, drawn uniformly, then exchanged until they can serve all."""
    picked = rng.permutation(len(problem.candidates))[:count]
    return repair_capacity(problem, problem.candidates[picked])


def spread_heads(problem: ClusteringProblem, count: int) -> IntArray:
    """(count,) distinct candidates, one near the middle of each of ``count`` parts of the area.

    The devices are halved recursively along the longer side (a balanced kd-tree).
    """
    centres = np.array([part.mean(axis=0) for part in _halve(problem.positions_m, count)])
    tree = KDTree(problem.positions_m[problem.candidates])
    near = min(len(problem.candidates), 32)
    _, order = tree.query(centres, k=near)
    order = order.reshape(count, -1)
    free = np.ones(len(problem.candidates), dtype=bool)
    picked = []
    for options in order:
        usable = options[free[options]]
        choice = usable[0] if len(usable) else np.flatnonzero(free)[0]
        free[choice] = False
        picked.append(choice)
    return repair_capacity(problem, problem.candidates[np.array(picked)])


def _halve(points: np.ndarray, parts: int) -> list[np.ndarray]:
    if parts == 1:
        return [points]
    axis = int(np.ptp(points, axis=0).argmax())
    left = parts // 2
    cut = min(max(len(points) * left // parts, left), len(points) - (parts - left))
    order = points[:, axis].argpartition(cut)
    return _halve(points[order[:cut]], left) + _halve(points[order[cut:]], parts - left)


def repair_capacity(problem: ClusteringProblem, heads: IntArray) -> IntArray:
    """Exchange the smallest heads for the largest unused candidates until all can be served."""
    capacity = problem.capacity_of_device()
    heads = heads.copy()
    unused = np.setdiff1d(problem.candidates, heads)
    unused = unused[np.argsort(-capacity[unused], kind="stable")]
    smallest = np.argsort(capacity[heads], kind="stable")
    for slot, device in zip(smallest, unused, strict=False):
        if capacity[heads].sum() >= problem.devices or capacity[device] <= capacity[heads[slot]]:
            break
        heads[slot] = device
    problem.check_heads(heads)
    return heads


def greedy_association(problem: ClusteringProblem, heads: IntArray) -> Clustering:
    """Nearest pairs first, as far as the capacities allow; every head joins itself."""
    problem.check_heads(heads)
    room = problem.capacity_of_device()[heads] - 1
    labels = np.full(problem.devices, -1, dtype=np.int64)
    labels[heads] = np.arange(len(heads))
    while (labels < 0).any():
        waiting, open_heads = np.flatnonzero(labels < 0), np.flatnonzero(room > 0)
        near = min(len(open_heads), NEAREST_HEADS)
        tree = KDTree(problem.positions_m[heads[open_heads]])
        found = tree.query(problem.positions_m[waiting], k=near)
        distance, option = (np.reshape(part, (len(waiting), near)) for part in found)
        for pair in distance.ravel().argsort(kind="stable"):
            device, cluster = waiting[pair // near], open_heads[option.flat[pair]]
            if labels[device] < 0 and room[cluster] > 0:
                labels[device] = cluster
                room[cluster] -= 1
    return Clustering(labels, np.asarray(heads, dtype=np.int64))


def transport_association(problem: ClusteringProblem, heads: IntArray) -> Clustering:
    """The association of least total distance (Eq. 17 at alpha = 0, exact): a transport problem.

    Solved as an assignment of devices to head slots: O(U * total capacity) memory.
    """
    problem.check_heads(heads)
    room = problem.capacity_of_device()[heads] - 1
    labels = np.full(problem.devices, -1, dtype=np.int64)
    labels[heads] = np.arange(len(heads))
    waiting = np.flatnonzero(labels < 0)
    slots = np.repeat(np.arange(len(heads)), np.minimum(room, len(waiting)))
    cost = problem.distances_m(waiting, heads)[:, slots]
    row, column = linear_sum_assignment(cost)
    labels[waiting[row]] = slots[column]
    return Clustering(labels, np.asarray(heads, dtype=np.int64))
