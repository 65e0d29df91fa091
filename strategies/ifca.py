"""IFCA (Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, arXiv:2006.04088), model averaging.

Every round all C cluster models go to the sampled clients. A client takes the model with the lowest
loss on its data, trains it, and the server averages, for each cluster, the models of those who took
it. This is ``ClusteredStrategy`` with assignment by loss.

Deviations from the paper: updates are clipped, summed securely and noised (without privacy the
clipping threshold is so large that it does nothing); a cluster's sum is divided by a noisy count of
its clients, every client weighs the same; clients are Poisson-sampled. The paper starts from
random models, several times over, and keeps the best run; here a run is one start, from C models
of the caller or from random perturbations of a single one, since repeated starts would each cost
privacy. The loss is what the client's ``loss`` or evaluate function says, which may use data that
training does not.
"""

from typing import Any, Self

from strategies import planned
from strategies.clustered import ClusteredStrategy


class IFCA(ClusteredStrategy):
    """IFCA on C clusters.

    Parameters
    ----------
    **clustered
        See ``ClusteredStrategy``; ``perturbation`` is how far the cluster models start from each
        other (relative to the size of an array) if ``start`` gets a single model.
    """

    def __init__(self, **clustered: Any) -> None:
        super().__init__(assignment="loss", **clustered)

    @classmethod
    def planned(
        cls,
        *,
        clients: int,
        rounds: int,
        epsilon: float | None,
        seed: int | None = None,
        clusters: int = 2,
        perturbation: float = 0.1,
        **settings: Any,
    ) -> Self:
        """IFCA from few numbers; ``settings`` as for ``strategies.planned.parts``.

        Parameters
        ----------
        clients, rounds, epsilon, seed
            As for ``ClusteredStrategy.planned``.
        clusters : int
            C.
        """
        common = planned.parts(
            "ifca", clients=clients, clusters=clusters, rounds=rounds, epsilon=epsilon, **settings
        )
        return cls(seed=seed, perturbation=perturbation, **common)
