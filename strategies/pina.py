"""PINA (arXiv:2604.20596): differentially private clustered FL with private initialisation.

An initialisation comes before the rounds of ``ClusteredStrategy``:

``secure-kmeans`` (default, sound, not in the paper): one secure sum of all embeddings gives their
mean, L more are private Lloyd steps (``strategies.clustering.secure_kmeans``). All cluster models
start identical. In training a client chooses by loss and prototype (``strategies.assignment``), so
at first by the prototype alone.

``spectral`` (sound, not in the paper): the same from fewer releases, for few clients; the first one
gives mean and covariance of the embeddings (``strategies.clustering.spectral``).

``server-points``: the same by the initialisation of FedDP-KMeans, for comparison; it needs
embeddings of public data (``strategies.clustering.server_points``).

``discriminant``: the same after class means and the scatter within clients are taken out, for large
crowds and labelled images (``strategies.clustering.discriminant``); ``private-whitening`` where
there are no public images (``strategies.clustering.private_whitening``).

``random``: cluster models start from the arrays that are given (or from perturbations of one
model), clients choose by loss.

The paper's own initialisation, for which no epsilon holds: ``strategies.sketched_pina``.
"""

from dataclasses import replace
from logging import INFO
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord
from flwr.common import log
from numpy.typing import NDArray

from strategies import planned, wire
from strategies.clustered import ClusteredStrategy
from strategies.clustering import initialisation
from strategies.clustering.frame import Frame
from strategies.coded import shares_of
from strategies.prototype_search import PrototypeSearch
from strategies.randomness import stream

INITS = (*initialisation.FIRST_PHASES, "random")


class PINA(ClusteredStrategy):
    """PINA on C clusters.

    Parameters
    ----------
    init : str
        One of ``INITS``.
    embedding_size : int
        m, numbers in a client's embedding; for all that find prototypes.
    server_points : (P, m) array, optional
        Embeddings of public pseudo-clients; for "server-points".
    classes : int
        Number of classes, for "discriminant" and "private-whitening".
    **clustered
        See ``ClusteredStrategy``. ``plan.init`` must hold the releases of the initialisation.

    Raises
    ------
    ValueError
        If ``init`` is unknown, or plan, ``server_points`` or ``classes`` do not fit it.
    """

    def __init__(
        self,
        *,
        init: str = "secure-kmeans",
        embedding_size: int = 64,
        server_points: NDArray[np.floating] | None = None,
        classes: int = 0,
        **clustered: Any,
    ) -> None:
        if init not in INITS:
            raise ValueError(
                f"init = {init!r}: must be one of {INITS} (the paper's sketches: "
                "strategies.sketched_pina.SketchedPINA)"
            )
        super().__init__(assignment="loss", **clustered)
        if (self.plan.init is None) != (init == "random"):
            raise ValueError(f"init = {init!r}: the plan has {self.plan.init} as initialisation")
        self.init = init
        self.search: PrototypeSearch | None = None
        if self.plan.init is None:
            return
        self.search = PrototypeSearch(
            init,
            clusters=self.clusters,
            releases=self.plan.init.releases,
            embedding_size=embedding_size,
            classes=classes,
            points=server_points,
        )
        self.perturbation = 0.0  # prototypes tell the clusters apart
        loss, images = self.clusters > 1, self.search.labelled
        needs = wire.needs_content(loss=loss, embedding=True, images=images)
        self.roster.query = wire.add_needs(self.roster.query, needs)

    @classmethod
    def planned(
        cls,
        *,
        clients: int,
        rounds: int,
        epsilon: float | None,
        seed: int | None = None,
        clusters: int = 2,
        embedding_size: int = 0,
        init: str = "secure-kmeans",
        init_rounds: int = 5,
        **settings: Any,
    ) -> Self:
        """PINA from few numbers; ``settings`` as for ``strategies.planned.parts``.

        Parameters
        ----------
        clients, rounds, epsilon, seed
            As for ``ClusteredStrategy.planned``.
        clusters : int
            C.
        embedding_size : int
            m, if the clients' app has an ``embedding`` of so many numbers: the first
            ``init_rounds`` of the rounds find the clusters. 0: they start at random.
        init : {"secure-kmeans", "spectral"}
            How they are found; with few clients "spectral" and ``init_rounds = 2``.
        """
        if embedding_size < 0:
            raise ValueError(f"embedding_size = {embedding_size}: must be >= 0")
        if embedding_size == 0:
            log(INFO, "pina: embedding_size = 0, so there is nothing to find clusters by before "
                "training; they start at random and clients choose by loss")  # fmt: skip
            init_rounds = 0
        settings.setdefault("init_share", initialisation.DEFAULT_SHARES.get(init))
        common = planned.parts(
            "pina",
            clients=clients,
            clusters=clusters,
            rounds=rounds,
            epsilon=epsilon,
            init_rounds=init_rounds,
            **settings,
        )
        return cls(
            init=init if embedding_size else "random",
            embedding_size=embedding_size,
            seed=seed,
            **common,
        )

    @property
    def init_rounds(self) -> int:
        """Rounds that find prototypes."""
        return 0 if self.search is None else self.search.releases

    def request(self, current_round: int) -> wire.RoundRequest:
        """Initialisation first, then training."""
        training = super().request(current_round)
        if self.search is None or current_round > self.init_rounds:
            return training
        phase = initialisation.phase_of(self.init, current_round)
        layout = self.search.layout(phase)
        return replace(
            training,
            phase=phase,
            round=current_round,
            clusters=layout.clusters,
            width=layout.width,
            threshold=layout.threshold,
            kappa=layout.kappa,
            release="slots",
        )

    def prototypes(self) -> NDArray[np.float64] | None:
        """The current prototypes (projected points of the server before their histogram)."""
        return None if self.search is None else self.search.prototypes

    def frame(self) -> Frame | None:
        """Class means, whitener and axes of "discriminant" and "private-whitening"."""
        return None if self.search is None else self.search.frame

    def shares(self) -> NDArray[np.float64]:
        """Those of the initialisation's noisy counts; even ones if it has none."""
        counts = None if self.search is None else self.search.counts
        return super().shares() if counts is None else shares_of(counts)

    def use(
        self,
        request: wire.RoundRequest,
        sums: NDArray[np.float64],
        counts: NDArray[np.float64] | None,
        noise_std: float,
    ) -> None:
        """Improve the prototypes, or train."""
        if request.phase == "train":
            super().use(request, sums, counts, noise_std)
            return
        assert self.search is not None
        cohort = self.stage(request.phase).cohort
        rng = stream(self.seed, "prototypes", request.round)
        self.search.use(request.round, sums, counts, cohort, noise_std, rng)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """The base's state, and what the search has found."""
        return super().state() | ({} if self.search is None else self.search.state())

    def load_state(self, state: dict[str, NDArray[np.generic]]) -> ArrayRecord:
        """Restore ``state()``."""
        arrays = super().load_state(state)
        if self.search is not None:
            self.search.load_state(state)
        return arrays
