"""PINA with the initialisation that its paper prints (arXiv:2604.20596, Section 3.2).

Clients answer once with a sparse sketch of their update of the LoRA vector B; k-means centroids of
the sketches become the clusters' B (``strategies.clustering.sketch``, which also says why no finite
epsilon covers it). Training is that of ``ClusteredStrategy``, by loss.
"""

from collections.abc import Iterable
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.common import log
from numpy.typing import NDArray

from strategies import wire
from strategies.clustered import ClusteredStrategy
from strategies.clustering.sketch import LORA_SKETCH_WARNING, cluster_sketches
from strategies.privacy.clipping import sketch_threshold
from strategies.privacy.ledger import Release
from strategies.randomness import stream

SKETCH_VALUES = 4
"""n of Eq. 5: the two largest and the two smallest values."""


class SketchedPINA(ClusteredStrategy):
    """PINA that starts from unprotected sketches.

    Parameters
    ----------
    sketch_array : str
        Name of the trainable array that a sketch describes.
    **clustered
        See ``ClusteredStrategy``. ``plan.init`` must hold T_in rounds.

    Raises
    ------
    ValueError
        If the plan has no initialisation, or claims an epsilon.
    """

    def __init__(self, *, sketch_array: str = "lora_B", **clustered: Any) -> None:
        super().__init__(assignment="loss", **clustered)
        if self.plan.init is None:
            raise ValueError("plan: needs an initialisation, whose rounds ask for the sketches")
        if self.plan.epsilon_outside is not None or self.plan.epsilon_server is not None:
            raise ValueError("plan: claims an epsilon, and none covers sketches; claim None")
        self.perturbation = 0.0  # sketches tell the clusters apart
        self.sketch_array = sketch_array
        self._sketches: list[NDArray[np.float64]] = []
        self._sketched = np.zeros(self.clients, dtype=bool)

    @property
    def init_rounds(self) -> int:
        """T_in."""
        return self.stage("sketch").releases

    def request(self, current_round: int) -> wire.RoundRequest:
        """Sketches first, then training."""
        training = super().request(current_round)
        if current_round > self.init_rounds:
            return training
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

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sketches come one by one; in training the secure sums of the base."""
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

    def _release(self, request: wire.RoundRequest) -> Release:
        release = super()._release(request)
        if request.phase != "sketch":
            return release
        std = self.stage("sketch").actual_multiplier * request.threshold
        return replace(release, sensitivity=request.threshold, noise_std=std)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """The base's state, and the sketches."""
        state = super().state() | {"sketched": self._sketched}
        return state | ({"sketches": np.array(self._sketches)} if self._sketches else {})

    def load_state(self, state: dict[str, NDArray[np.generic]]) -> ArrayRecord:
        """Restore ``state()``."""
        arrays = super().load_state(state)
        self._sketched = np.array(state["sketched"], dtype=bool)
        self._sketches = list(np.array(state.get("sketches", []), dtype=np.float64))
        return arrays
