"""RR-Cluster (Yang, Hu, Kim and Li, arXiv:2508.06183): a smallest cluster size, on top of IFCA.

Small clusters suffer most from noise that is the same for all. The server therefore lets clients
of large clusters move, at random, into clusters that are below a smallest size; the moved ones
bring updates of other data, and less relative noise.

Deviations: the paper's server knows who is in which cluster and moves exactly as many clients as
are missing. Who is where is private here, so the sizes are the noisy counts of the last round, the
moves are probabilities that go out with the request, and every client draws its own move. All of
that is post-processing of released counts; the choice of a slot costs no privacy.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from strategies import wire
from strategies.ifca import IFCA
from strategies.randomness import stream


def moves(
    counts: NDArray[np.float64], smallest: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Probability of leaving each cluster, and of each target for those who leave.

    Parameters
    ----------
    counts : (C,) array
        (Noisy) sizes.
    smallest : float
        Wanted size of every cluster.

    Returns
    -------
    leave, join : (C,) arrays
        ``join`` sums to one. In expectation every cluster reaches ``smallest``, if there are enough
        clients beyond it elsewhere; both are zero if no cluster is too small.
    """
    missing = np.maximum(smallest - np.maximum(counts, 0.0), 0.0)
    spare = np.maximum(counts - smallest, 0.0)
    nothing = np.zeros(len(counts))
    if not missing.sum() > 0 or not spare.sum() > 0:
        return nothing, nothing
    share = min(1.0, missing.sum() / spare.sum())
    leave = np.divide(share * spare, counts, out=nothing.copy(), where=spare > 0)
    return leave, missing / missing.sum()


def moved(
    request: wire.RoundRequest,
    clients: Sequence[int],
    chosen: NDArray[np.integer],
    seed: int | None,
) -> NDArray[np.integer]:
    """Clusters after the clients' random moves, if the request asks for any; runs on clients.

    Parameters
    ----------
    request : RoundRequest
    clients : n ints
    chosen : (n,) integer array
        What each client would train.
    seed : int or None
        For simulations; None draws from the operating system.
    """
    leave, join = np.array(request.leave or [0.0]), np.array(request.join or [0.0])
    if not join.sum() > 0:
        return chosen
    rngs = [stream(seed, "moves", request.round, client) for client in clients]
    return np.array(
        [
            rng.choice(len(join), p=join) if rng.random() < leave[cluster] else cluster
            for rng, cluster in zip(rngs, chosen, strict=True)
        ]
    )


class RRCluster(IFCA):
    """IFCA whose clusters have at least a share of the expected cohort.

    Parameters
    ----------
    smallest_share : float
        In [0, 1 / C]: wanted size of every cluster over the expected cohort; 0 is IFCA.
    **clustered
        See ``ClusteredStrategy``; needs ``aggregation.rescale = "count"``.
    """

    def __init__(self, *, smallest_share: float, **clustered: Any) -> None:
        super().__init__(**clustered)
        if not 0 <= smallest_share <= 1 / self.clusters:
            raise ValueError(
                f"smallest_share = {smallest_share}: must be in [0, 1 / C = {1 / self.clusters:g}]"
            )
        if self.aggregation.rescale != "count":
            raise ValueError(
                f"rescale = {self.aggregation.rescale!r}: RR-Cluster needs the counts of 'count'"
            )
        self.smallest_share = smallest_share
        self._counts = np.full(self.clusters, self.plan.train.cohort / self.clusters)

    def request(self, current_round: int) -> wire.RoundRequest:
        """Send the probabilities of moving along."""
        leave, join = moves(self._counts, self.smallest_share * self.plan.train.cohort)
        return replace(super().request(current_round), leave=list(leave), join=list(join))

    def use(
        self,
        request: wire.RoundRequest,
        sums: NDArray[np.float64],
        counts: NDArray[np.float64] | None,
        noise_std: float,
    ) -> None:
        """Train, and remember the sizes."""
        super().use(request, sums, counts, noise_std)
        assert counts is not None
        self._counts = counts

    def state(self) -> dict[str, NDArray[np.generic]]:
        """The base's state and the sizes."""
        return {**super().state(), "counts": self._counts}

    def load_state(self, state: dict[str, NDArray[np.generic]]) -> ArrayRecord:
        """Restore ``state()``."""
        arrays = super().load_state(state)
        self._counts = np.array(state["counts"], dtype=np.float64)
        return arrays
