"""Drawn instances, and brute-force oracles written from the paper's equations."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from strategies.wireless.problem import Clustering, ClusteringProblem

Draw = Callable[..., ClusteringProblem]


def draw_problem(seed: int, devices: int | None = None, **fixed: object) -> ClusteringProblem:
    """A feasible instance: unequal capacities, some candidates, any alpha and weighting."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(4, 8)) if devices is None else devices
    gradients = rng.normal(size=(count, 4)) + 0.5
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    if seed % 5 == 0:
        gradients[0] = 0.0
    number = int(rng.integers(2, count + 1))
    capacities = rng.integers(1, 2 + count // 2, number)
    while capacities.sum() < count:
        capacities[rng.integers(number)] += 1
    values: dict[str, object] = {
        "positions_m": 100 * rng.normal(size=(count, 2)),
        "server_m": np.array([rng.choice([0.0, 50.0, 1000.0]), 0.0]),
        "unit_gradients": gradients,
        "candidates": np.sort(rng.choice(count, number, replace=False)),
        "capacities": capacities,
        "alpha": float(rng.choice([0.0, 0.3, 0.7, 1.0])),
        "weighting": str(rng.choice(["paper", "size"])),
    }
    return ClusteringProblem(**(values | fixed))  # type: ignore[arg-type]


def value_by_loops(problem: ClusteringProblem, labels: list[int], heads: list[int]) -> float:
    """Eq. 16 from Eq. 6 and the double sum of Eq. 15, one pair at a time."""
    place, gradients = problem.positions_m, problem.unit_gradients
    distance = sum(np.linalg.norm(place[u] - place[heads[k]]) for u, k in enumerate(labels))
    distance += sum(np.linalg.norm(place[h] - problem.server_m) for h in heads)
    reference = sum(np.linalg.norm(p - problem.server_m) for p in place)
    similarity = 0.0
    for cluster in range(len(heads)):
        members = [u for u, k in enumerate(labels) if k == cluster]
        pairs = sum(float(gradients[u] @ gradients[v]) for u in members for v in members)
        share = 1 / len(heads)
        if problem.weighting == "size":
            share = len(members) / len(labels)
        similarity += share * pairs / len(members) ** 2
    return float((1 - problem.alpha) * distance / reference + problem.alpha * similarity)


def brute_force(problem: ClusteringProblem, heads: list[int]) -> float:
    """The best value over all associations with these heads."""
    capacity = dict(zip(problem.candidates.tolist(), problem.capacities.tolist(), strict=True))
    free = [u for u in range(problem.devices) if u not in heads]
    best = np.inf
    for choice in itertools.product(range(len(heads)), repeat=len(free)):
        counts = [1 + choice.count(k) for k in range(len(heads))]
        if any(n > capacity[h] for n, h in zip(counts, heads, strict=True)):
            continue
        labels = [0] * problem.devices
        for cluster, head in enumerate(heads):
            labels[head] = cluster
        for device, cluster in zip(free, choice, strict=True):
            labels[device] = cluster
        best = min(best, value_by_loops(problem, labels, heads))
    return best


def brute_force_heads(problem: ClusteringProblem) -> float:
    """The best value over all head sets and associations."""
    candidates = problem.candidates.tolist()
    return min(
        brute_force(problem, list(heads))
        for size in range(1, len(candidates) + 1)
        for heads in itertools.combinations(candidates, size)
    )


def feasible_start(problem: ClusteringProblem, seed: int) -> Clustering:
    """Random heads that suffice, and a random association within their capacities."""
    rng = np.random.default_rng(seed)
    capacity = problem.capacity_of_device()
    order = rng.permutation(problem.candidates)
    needed = int(np.searchsorted(np.cumsum(capacity[order]), problem.devices)) + 1
    count = int(rng.integers(needed, len(order) + 1))
    heads = order[:count]
    slots = rng.permutation(np.repeat(np.arange(count), capacity[heads] - 1))
    labels = np.full(problem.devices, -1, dtype=np.int64)
    labels[heads] = np.arange(count)
    free = np.flatnonzero(labels < 0)
    labels[free] = slots[: len(free)]
    return Clustering(labels, heads)
