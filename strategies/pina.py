"""PINA (arXiv:2604.20596): differentially private clustered FL with private initialisation.

Two initialisations come before the rounds of ``ClusteredStrategy``:

``secure-kmeans`` (default, sound, not in the paper): one secure sum of all embeddings gives their
mean, L more are private Lloyd steps (``strategies.clustering.secure_kmeans``). All cluster models
start identical. In the first ``prototype_rounds`` training rounds a client takes its nearest
prototype, later the model of lowest loss, with hysteresis towards its prototype.

``lora-sketch`` (the paper, Section 3.2; no finite epsilon): clients answer once with a sparse
sketch of their update of the LoRA vector B; k-means centroids become the clusters' B.

``random``: cluster models start from the arrays that are given (or from perturbations of one
model), clients choose by loss.
"""

from collections.abc import Iterable
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.common import log
from numpy.typing import NDArray

from strategies import planned, wire
from strategies.aggregation import SMALLEST_COUNT
from strategies.clustered import ClusteredStrategy
from strategies.clustering import secure_kmeans
from strategies.clustering.sketch import LORA_SKETCH_WARNING, cluster_sketches
from strategies.privacy.clipping import sketch_threshold
from strategies.randomness import stream
from strategies.release import Slots

INITS = ("secure-kmeans", "lora-sketch", "random")
SKETCH_VALUES = 4
"""n of Eq. 5: the two largest and the two smallest values."""


class PINA(ClusteredStrategy):
    """PINA on C clusters.

    Parameters
    ----------
    init : {"secure-kmeans", "lora-sketch", "random"}
    embedding_size : int
        m, numbers in a client's embedding; for "secure-kmeans".
    prototype_rounds : int
        Training rounds in which clients take their nearest prototype.
    sketch_array : str
        Name of the trainable array that the sketch describes; for "lora-sketch".
    **clustered
        See ``ClusteredStrategy``. ``plan.init`` must hold the releases of the initialisation.
    """

    def __init__(
        self,
        *,
        init: str = "secure-kmeans",
        embedding_size: int = 64,
        prototype_rounds: int = 10,
        sketch_array: str = "lora_B",
        **clustered: Any,
    ) -> None:
        if init not in INITS:
            raise ValueError(f"init = {init!r}: must be one of {INITS}")
        super().__init__(assignment="loss", **clustered)
        if (self.plan.init is None) != (init == "random"):
            raise ValueError(f"init = {init!r}: the plan has {self.plan.init} as initialisation")
        if init == "secure-kmeans" and self.plan.init and self.plan.init.releases < 2:
            raise ValueError(
                f"init_releases = {self.plan.init.releases}: secure-kmeans needs one for the mean "
                "and at least one Lloyd step (>= 2)"
            )
        if init != "random":
            self.perturbation = 0.0  # prototypes (or sketches) tell the clusters apart
        needs = wire.needs_content(loss=self.clusters > 1, embedding=init == "secure-kmeans")
        self.roster.query = wire.add_needs(self.roster.query, needs)
        self.init = init
        self.embedding_size = embedding_size
        self.prototype_rounds = prototype_rounds
        self.sketch_array = sketch_array
        self._prototypes: NDArray[np.float64] | None = None
        self._sketches: list[NDArray[np.float64]] = []
        self._sketched = np.zeros(self.clients, dtype=bool)

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
        init_rounds: int = 5,
        prototype_rounds: int = 10,
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
        """
        if embedding_size < 0:
            raise ValueError(f"embedding_size = {embedding_size}: must be >= 0")
        if embedding_size == 0:
            log(INFO, "pina: embedding_size = 0, so there is nothing to find clusters by before "
                "training; they start at random and clients choose by loss")  # fmt: skip
            init_rounds = 0
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
            init="secure-kmeans" if embedding_size else "random",
            embedding_size=embedding_size,
            prototype_rounds=prototype_rounds,
            seed=seed,
            **common,
        )

    @property
    def init_rounds(self) -> int:
        """G rounds of "secure-kmeans", T_in of "lora-sketch"."""
        return 0 if self.plan.init is None else self.plan.init.releases

    def request(self, current_round: int) -> wire.RoundRequest:
        """Initialisation first, then training with prototypes."""
        training = super().request(current_round)
        if current_round > self.init_rounds:
            early = training.round <= self.prototype_rounds
            use_prototype = self.init == "secure-kmeans" and early
            return replace(training, assignment="prototype" if use_prototype else "loss")
        if self.init == "lora-sketch":
            width = self.models[0][self.sketch_array].size
            return replace(
                training,
                phase="sketch",
                round=current_round,
                width=width,
                threshold=sketch_threshold(self.aggregation.threshold, SKETCH_VALUES, width),
                noise_multiplier=self.stage("sketch").noise_multiplier,
            )
        phase = "mean" if current_round == 1 else "lloyd"
        layout = self._init_layout(phase)
        return replace(
            training,
            phase=phase,
            round=current_round,
            clusters=layout.clusters,
            width=layout.width,
            threshold=layout.threshold,
            kappa=layout.kappa,
        )

    def prototypes(self) -> NDArray[np.float64] | None:
        """The current prototypes of "secure-kmeans"."""
        return self._prototypes

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
        rng = stream(self.seed, "prototypes", request.round)
        cohort = self.stage(request.phase).cohort
        if request.phase == "mean":
            mean = sums[0] / cohort
            count = secure_kmeans.number_of_prototypes(self.clusters)
            self._prototypes = secure_kmeans.draw_prototypes(mean, count, rng)
            return
        assert self._prototypes is not None
        assert counts is not None
        smallest = SMALLEST_COUNT * cohort * self.clusters / len(self._prototypes)
        self._prototypes = secure_kmeans.lloyd_step(self._prototypes, sums, counts, smallest)
        if self.round == self.init_rounds:
            self._prototypes = secure_kmeans.merge_prototypes(
                self._prototypes, counts, self.clusters, rng
            )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Secure sums, except for the sketches of the printed method, which come one by one."""
        if self._request is None or self._request.phase != "sketch":
            return super().aggregate_train(server_round, replies)
        if self.plan.private:
            self.ledger.record(self._release(self._request))
        arrived: dict[int, NDArray[np.float64]] = {}
        for reply in map(self.traffic.counted, replies):
            if not self._answered(reply):
                continue
            try:
                node = reply.metadata.src_node_id
                arrived[node] = wire.read_sketches(reply, self._request.width)
            except ValueError as error:
                log(WARNING, "round %d: %s; left out", self.round, error)
        # In the order of the clients, not of the replies: k-means depends on it.
        self._sketches += [row for node in self._asked for row in arrived.get(node, ())]
        if self.round == self.init_rounds:
            log(WARNING, LORA_SKETCH_WARNING)
            rng = stream(self.seed, "sketch-kmeans")
            self._start_from(cluster_sketches(np.array(self._sketches), self.clusters, rng))
        return wire.pack_models(self.models), None

    def _start_from(self, centroids: NDArray[np.float64]) -> None:
        for model, centroid in zip(self.models, centroids, strict=True):
            start = model[self.sketch_array]
            model[self.sketch_array] = (start + centroid.reshape(start.shape)).astype(np.float32)
        log(INFO, "cluster models start from %d sketches", len(self._sketches))

    def _sample(self, request: wire.RoundRequest) -> NDArray[np.intp]:
        cohort = super()._sample(request)
        if request.phase == "sketch":  # every client answers at most once
            cohort = cohort[~self._sketched[cohort]]
            self._sketched[cohort] = True
        return cohort

    def _init_layout(self, phase: str) -> Slots:
        if phase == "mean":
            return secure_kmeans.mean_layout(self.embedding_size)
        count = secure_kmeans.number_of_prototypes(self.clusters)
        return secure_kmeans.lloyd_layout(count, self.embedding_size)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """The base's state, prototypes and sketches."""
        state = super().state()
        state["sketched"] = self._sketched
        if self._prototypes is not None:
            state["prototypes"] = self._prototypes
        if self._sketches:
            state["sketches"] = np.array(self._sketches)
        return state

    def load_state(self, state: dict[str, NDArray[np.generic]]) -> ArrayRecord:
        """Restore ``state()``."""
        arrays = super().load_state(state)
        self._sketched = np.array(state["sketched"], dtype=bool)
        if "prototypes" in state:
            self._prototypes = np.array(state["prototypes"], dtype=np.float64)
        self._sketches = list(np.array(state.get("sketches", []), dtype=np.float64))
        return arrays
