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

``lora-sketch`` (the paper, Section 3.2; no finite epsilon): clients answer once with a sparse
sketch of their update of the LoRA vector B; k-means centroids become the clusters' B.

``random``: cluster models start from the arrays that are given (or from perturbations of one
model), clients choose by loss.
"""

from collections.abc import Iterable, Mapping
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
from strategies.clustering import (
    discriminant,
    initialisation,
    private_whitening,
    secure_kmeans,
    server_points,
    spectral,
)
from strategies.clustering.frame import Frame
from strategies.clustering.sketch import LORA_SKETCH_WARNING, cluster_sketches
from strategies.coded import shares_of
from strategies.privacy.clipping import sketch_threshold
from strategies.randomness import stream

INITS = (*initialisation.FIRST_PHASES, "lora-sketch", "random")
SKETCH_VALUES = 4
"""n of Eq. 5: the two largest and the two smallest values."""
_FRAME = "frame-"


def frame_in(state: Mapping[str, NDArray[Any]]) -> Frame | None:
    """The frame of "discriminant" in a checkpoint, if there is one."""
    arrays = {k.removeprefix(_FRAME): v for k, v in state.items() if k.startswith(_FRAME)}
    return Frame.of(arrays) if arrays else None


class PINA(ClusteredStrategy):
    """PINA on C clusters.

    Parameters
    ----------
    init : str
        One of ``INITS``.
    embedding_size : int
        m, numbers in a client's embedding; for all that find prototypes.
    sketch_array : str
        Name of the trainable array that the sketch describes; for "lora-sketch".
    server_points : (P, m) array, optional
        Embeddings of public pseudo-clients; for "server-points".
    classes : int
        Number of classes, for "discriminant" and "private-whitening".
    **clustered
        See ``ClusteredStrategy``. ``plan.init`` must hold the releases of the initialisation.
    """

    def __init__(
        self,
        *,
        init: str = "secure-kmeans",
        embedding_size: int = 64,
        sketch_array: str = "lora_B",
        server_points: NDArray[np.floating] | None = None,
        classes: int = 0,
        **clustered: Any,
    ) -> None:
        if init not in INITS:
            raise ValueError(f"init = {init!r}: must be one of {INITS}")
        super().__init__(assignment="loss", **clustered)
        if (self.plan.init is None) != (init == "random"):
            raise ValueError(f"init = {init!r}: the plan has {self.plan.init} as initialisation")
        prototyped = init in initialisation.FIRST_PHASES
        fewest = initialisation.fewest_rounds(init, self.clusters) if prototyped else 0
        if self.plan.init and self.plan.init.releases < fewest:
            raise ValueError(
                f"init_releases = {self.plan.init.releases}: {init} with {self.clusters} clusters "
                f"needs at least {fewest}"
            )
        if init == "server-points" and (
            server_points is None
            or server_points.shape[1:] != (embedding_size,)
            or len(server_points) < self.clusters
        ):
            shape = None if server_points is None else server_points.shape
            raise ValueError(
                f"server_points of shape {shape}: init = 'server-points' needs at least "
                f"clusters = {self.clusters} embeddings of {embedding_size} numbers"
            )
        labelled = init in initialisation.LABELLED
        if labelled and not (classes >= 2 and self.clusters <= embedding_size):
            raise ValueError(
                f"classes = {classes}, clusters = {self.clusters}: init = {init!r} needs "
                f"classes >= 2 and clusters <= embedding_size = {embedding_size}"
            )
        if init != "random":
            self.perturbation = 0.0  # prototypes (or sketches) tell the clusters apart
        needs = wire.needs_content(loss=self.clusters > 1, embedding=prototyped, images=labelled)
        self.roster.query = wire.add_needs(self.roster.query, needs)
        self.init = init
        self.embedding_size = embedding_size
        self.sketch_array = sketch_array
        self.classes = classes
        self._server_points = server_points
        self._frame: Frame | None = None
        self._prototypes: NDArray[np.float64] | None = None
        self._counts: NDArray[np.float64] | None = None
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
        """G rounds that find prototypes, T_in of "lora-sketch"."""
        return 0 if self.plan.init is None else self.plan.init.releases

    def request(self, current_round: int) -> wire.RoundRequest:
        """Initialisation first, then training."""
        training = super().request(current_round)
        if current_round > self.init_rounds:
            return training
        if self.init == "lora-sketch":
            width = self.models[0][self.sketch_array].size
            return replace(
                training,
                phase="sketch",
                round=current_round,
                width=width,
                threshold=sketch_threshold(self.aggregation.threshold, SKETCH_VALUES, width),
                noise_multiplier=self.stage("sketch").noise_multiplier,
                release="slots",
            )
        phase = initialisation.phase_of(self.init, current_round)
        count = initialisation.number_of_prototypes(self.init, self.clusters)
        if phase == "histogram":
            assert self._server_points is not None
            count = len(self._server_points)
        size = self.embedding_size
        if phase == "lloyd" and self.init in initialisation.LABELLED:
            size = max(1, self.clusters - 1)
        layout = initialisation.phase_layout(phase, size, count, self.classes)
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
        return self._prototypes

    def frame(self) -> Frame | None:
        """Class means, whitener and axes of "discriminant" and "private-whitening"."""
        return self._frame

    def shares(self) -> NDArray[np.float64]:
        """Those of the initialisation's noisy counts; even ones if it has none."""
        return super().shares() if self._counts is None else shares_of(self._counts)

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
        if request.phase in ("mean", "moments"):
            self._prototypes = self._first_prototypes(request.phase, sums[0], cohort, rng)
            return
        if request.phase == "classes":
            size = self.embedding_size
            if self.init == "private-whitening":
                self._frame = private_whitening.read_classes(sums[0], noise_std, size)
            else:
                self._frame = discriminant.read_classes(sums[0], size)
            return
        if request.phase == "whitening":
            assert self._frame is not None
            self._frame = private_whitening.read_whitener(sums[0], cohort, noise_std, self._frame)
            return
        if request.phase == "scatter":
            assert self._frame is not None
            self._frame, excess = discriminant.read_frame(
                sums[0], cohort, noise_std, self._frame, self.clusters
            )
            self._prototypes = discriminant.first_prototypes(
                excess, self._frame.radius, self.clusters, rng
            )
            return
        assert self._prototypes is not None
        if request.phase == "histogram":
            self._prototypes, self._counts = secure_kmeans.merge_prototypes(
                self._prototypes, sums[:, 0], self.clusters, rng
            )
            return
        assert counts is not None
        smallest = SMALLEST_COUNT * cohort * self.clusters / len(self._prototypes)
        self._prototypes = secure_kmeans.lloyd_step(self._prototypes, sums, counts, smallest)
        if self.round == self.init_rounds:
            self._prototypes, self._counts = secure_kmeans.merge_prototypes(
                self._prototypes, counts, self.clusters, rng
            )

    def _first_prototypes(
        self, phase: str, total: NDArray[np.float64], cohort: float, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Where the first release puts the prototypes."""
        if phase == "mean":
            count = secure_kmeans.number_of_prototypes(self.clusters)
            return secure_kmeans.draw_prototypes(total / cohort, count, rng)
        mean, second_moment = spectral.read_moments(total, cohort, self.embedding_size)
        if self.init == "spectral":
            return spectral.place_prototypes(mean, second_moment, self.clusters, rng)
        assert self._server_points is not None
        return server_points.project(self._server_points, second_moment, self.clusters)

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

    def state(self) -> dict[str, NDArray[np.generic]]:
        """The base's state, prototypes and sketches."""
        state = super().state()
        state["sketched"] = self._sketched
        if self._prototypes is not None:
            state["prototypes"] = self._prototypes
        if self._counts is not None:
            state["prototype-counts"] = self._counts
        if self._frame is not None:
            state |= {f"{_FRAME}{name}": a for name, a in self._frame.arrays().items()}
        if self._sketches:
            state["sketches"] = np.array(self._sketches)
        return state

    def load_state(self, state: dict[str, NDArray[np.generic]]) -> ArrayRecord:
        """Restore ``state()``."""
        arrays = super().load_state(state)
        self._sketched = np.array(state["sketched"], dtype=bool)
        if "prototypes" in state:
            self._prototypes = np.array(state["prototypes"], dtype=np.float64)
        if "prototype-counts" in state:
            self._counts = np.array(state["prototype-counts"], dtype=np.float64)
        frame = frame_in(state)
        self._frame = frame if frame is not None else self._frame
        self._sketches = list(np.array(state.get("sketches", []), dtype=np.float64))
        return arrays
