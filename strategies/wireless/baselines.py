"""The methods the proposed clustering is compared with (wireless CFL paper, Section 5).

* ``random_clustering``: grouped by geographic proximity, a random head in each group.
* ``kmeans_clustering``: the same groups, with the medoid as head (a stronger baseline, not the
  paper's).
* ``similarity_clustering``: devices with similar gradients together, a random head in each group.
* ``fedavg_value``: Eq. 16 when every device reports to the server alone.
* ``shapefl_search``: greedy association, and open, close and swap moves on the heads, each trial
  evaluated from scratch, as published for similarity-and-distance clustering (ShapeFL).

Deviations: the paper gives no number of groups (the smallest feasible is used) and no capacities
for its baselines (they are kept here, so that all methods face the same constraints).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from strategies.wireless.problem import (
    Clustering,
    ClusteringProblem,
    FloatArray,
    IntArray,
    cluster_sums,
    objective,
)
from strategies.wireless.starts import repair_capacity, spread_heads

ASSIGNMENT_LIMIT = 2000


def random_clustering(problem: ClusteringProblem, rng: np.random.Generator) -> Clustering:
    """Groups by proximity, random heads."""
    return _grouped(problem, problem.positions_m, rng)


def kmeans_clustering(problem: ClusteringProblem, rng: np.random.Generator) -> Clustering:
    """Groups by proximity, medoids as heads."""
    return with_medoids(problem, _grouped(problem, problem.positions_m, rng))


def similarity_clustering(problem: ClusteringProblem, rng: np.random.Generator) -> Clustering:
    """Groups of devices with similar gradients, random heads."""
    return _grouped(problem, np.asarray(problem.unit_gradients, dtype=float), rng)


def fedavg_value(problem: ClusteringProblem) -> float:
    """Eq. 16 of FedAvg: all distances to the server, every device its own cluster."""
    squares = np.einsum("ij,ij->i", problem.unit_gradients, problem.unit_gradients)
    distance = problem.server_distances_m().sum() * problem.distance_weight
    return float(distance + problem.alpha * squares.mean())


def with_medoids(problem: ClusteringProblem, clustering: Clustering) -> Clustering:
    """The same clusters, each led by the able candidate of least total distance."""
    heads, capacity = clustering.heads.copy(), problem.capacity_of_device()
    to_server = problem.server_distances_m()
    for cluster in range(len(heads)):
        members = np.flatnonzero(clustering.labels == cluster)
        able = members[capacity[members] >= len(members)]
        total = problem.distances_m(able, members).sum(axis=1) + to_server[able]
        heads[cluster] = able[total.argmin()]
    return Clustering(clustering.labels, heads)


def _grouped(
    problem: ClusteringProblem, features: FloatArray, rng: np.random.Generator
) -> Clustering:
    """k-means in ``features``, one random head a group, then the nearest group that has room."""
    from sklearn.cluster import KMeans

    count = problem.smallest_head_count
    seed = int(rng.integers(2**31))
    fitted = KMeans(count, n_init=4, random_state=seed).fit(features)
    free = np.zeros(problem.devices, dtype=bool)
    free[problem.candidates] = True
    picked = []
    for group, centre in enumerate(fitted.cluster_centers_):
        members = np.flatnonzero((fitted.labels_ == group) & free)
        if len(members) == 0:
            others = np.flatnonzero(free)
            distance = np.linalg.norm(features[others] - centre, axis=1)
            members = others[[distance.argmin()]]
        picked.append(int(rng.choice(members)))
        free[picked[-1]] = False
    heads = repair_capacity(problem, np.array(picked))
    labels = np.full(problem.devices, -1, dtype=np.int64)
    labels[heads] = np.arange(count)
    waiting = np.flatnonzero(labels < 0)
    room = problem.capacity_of_device()[heads] - 1
    cost = cdist(features[waiting], fitted.cluster_centers_)
    labels[waiting] = _fill(cost, room)
    return Clustering(labels, heads)


def _fill(cost: FloatArray, room: IntArray) -> IntArray:
    """(W,) group of each waiting device: least total cost, or greedily for many devices."""
    if len(cost) <= ASSIGNMENT_LIMIT:
        slots = np.repeat(np.arange(len(room)), np.minimum(room, len(cost)))
        _, column = linear_sum_assignment(cost[:, slots])
        return np.asarray(slots[column])
    labels, room = np.full(len(cost), -1, dtype=np.int64), room.copy()
    while (labels < 0).any():
        waiting, able = np.flatnonzero(labels < 0), np.flatnonzero(room > 0)
        choice = cost[np.ix_(waiting, able)].argmin(axis=1)
        order = np.argsort(cost[waiting, able[choice]], kind="stable")
        for group in np.unique(choice):
            taken = waiting[order[choice[order] == group]][: room[able[group]]]
            labels[taken] = able[group]
            room[able[group]] -= len(taken)
    return labels


def shapefl_search(problem: ClusteringProblem, seconds: float) -> Clustering:
    """Open, close and swap heads while a trial, associated greedily from scratch, is better."""
    deadline = time.perf_counter() + seconds
    best = _greedy_by_objective(problem, spread_heads(problem, problem.smallest_head_count))
    value, improved = objective(problem, best), True
    while improved and time.perf_counter() < deadline:
        improved = False
        for heads in _moves(problem, best.heads):
            if time.perf_counter() > deadline:
                break
            if problem.capacity_of_device()[heads].sum() < problem.devices:
                continue
            trial = _greedy_by_objective(problem, heads)
            if objective(problem, trial) < value - 1e-12:
                best, value, improved = trial, objective(problem, trial), True
                break
    return best


def _moves(problem: ClusteringProblem, heads: IntArray) -> Iterator[IntArray]:
    others = np.setdiff1d(problem.candidates, heads)
    for other in others:
        yield np.append(heads, other)
    if len(heads) > 1:
        for slot in range(len(heads)):
            yield np.delete(heads, slot)
    for slot in range(len(heads)):
        for other in others:
            yield np.append(np.delete(heads, slot), other)


def _greedy_by_objective(problem: ClusteringProblem, heads: IntArray) -> Clustering:
    """Every device in turn joins the head with room that raises Eq. 16 least."""
    gradients = np.asarray(problem.unit_gradients, dtype=float)
    labels = np.full(problem.devices, -1, dtype=np.int64)
    labels[heads] = np.arange(len(heads))
    sums = cluster_sums(gradients[heads], np.arange(len(heads)), len(heads))
    counts, room = np.ones(len(heads), dtype=np.int64), problem.capacity_of_device()[heads]
    distance = problem.distance_weight * problem.distances_m(np.arange(problem.devices), heads)
    for device in np.flatnonzero(labels < 0):
        joined = sums + gradients[device]
        after = problem.cluster_weights(counts + 1, len(heads)) * (joined**2).sum(axis=1)
        before = problem.cluster_weights(counts, len(heads)) * (sums**2).sum(axis=1)
        change = np.where(counts < room, distance[device] + after - before, np.inf)
        cluster = int(change.argmin())
        labels[device] = cluster
        sums[cluster] = joined[cluster]
        counts[cluster] += 1
    return Clustering(labels, np.asarray(heads, dtype=np.int64))
