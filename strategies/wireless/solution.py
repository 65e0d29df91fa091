"""What every solver returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strategies.wireless.problem import Clustering, ClusteringProblem, check_clustering, objective

Status = Literal["optimal", "feasible"]


@dataclass(frozen=True)
class Solution:
    """A checked clustering, its value and what is known about it.

    ``status`` is "optimal" only when a finished exact method proved it; ``lower_bound`` then
    equals ``value``. ``seconds`` is wall-clock time.
    """

    clustering: Clustering
    value: float
    lower_bound: float
    status: Status
    seconds: float

    @property
    def gap(self) -> float:
        """(value - lower_bound) / value, in [0, 1]; 0 when proved."""
        return max(0.0, (self.value - self.lower_bound) / self.value) if self.value > 0 else 0.0


def make_solution(
    problem: ClusteringProblem,
    clustering: Clustering,
    *,
    proved: bool,
    seconds: float,
    lower_bound: float = 0.0,
) -> Solution:
    """Check C1-C5 and recompute the value from the assignment, whatever the solver reported."""
    check_clustering(problem, clustering)
    value = objective(problem, clustering)
    bound = value if proved else min(max(lower_bound, 0.0), value)
    return Solution(clustering, value, bound, "optimal" if proved else "feasible", seconds)
