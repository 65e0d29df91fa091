"""The server's side of the initialisations that find prototypes: from release to release.

``strategies.clustering.initialisation`` says in which phases each of them proceeds, and what a
client answers. Here is what the server makes of the noisy sums: prototypes, the frame in which
clients embed their images from then on ("discriminant" and "private-whitening"), and in the end the
noisy sizes of the clusters. All of it is post-processing of releases.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.aggregation import SMALLEST_COUNT
from strategies.clustering import (
    discriminant,
    initialisation,
    private_whitening,
    secure_kmeans,
    server_points,
    spectral,
)
from strategies.clustering.frame import Frame
from strategies.release import Slots


class PrototypeSearch:
    """Prototypes of C clusters, better with every release.

    Parameters
    ----------
    init : str
        One of ``initialisation.FIRST_PHASES``.
    clusters, releases : int
        C, and the planned releases, after which more prototypes than C are merged.
    embedding_size : int
        m, numbers in a client's embedding.
    classes : int
        Number of classes, for those that need labels.
    points : (P, m) array, optional
        Embeddings of public pseudo-clients; for "server-points".

    Attributes
    ----------
    prototypes : (P, m) or (C, m) array, or None
        The current ones; None before the first release that places some.
    counts : (C,) array or None
        Noisy numbers of clients, where the last release gave some.
    frame : Frame or None
        How clients embed their images, if not as usual.

    Raises
    ------
    ValueError
        If there are too few releases, or ``points`` or ``classes`` are not what ``init`` needs.
    """

    def __init__(
        self,
        init: str,
        *,
        clusters: int,
        releases: int,
        embedding_size: int,
        classes: int = 0,
        points: NDArray[np.floating] | None = None,
    ) -> None:
        fewest = initialisation.fewest_rounds(init, clusters)
        if releases < fewest:
            raise ValueError(
                f"init_releases = {releases}: {init} with {clusters} clusters needs at least "
                f"{fewest}"
            )
        shape = None if points is None else points.shape
        fitting = shape is not None and shape[1:] == (embedding_size,) and shape[0] >= clusters
        if init == "server-points" and not fitting:
            raise ValueError(
                f"server_points of shape {shape}: init = 'server-points' needs at least "
                f"clusters = {clusters} embeddings of {embedding_size} numbers"
            )
        self.labelled = init in initialisation.LABELLED
        if self.labelled and not (classes >= 2 and clusters <= embedding_size):
            raise ValueError(
                f"classes = {classes}, clusters = {clusters}: init = {init!r} needs "
                f"classes >= 2 and clusters <= embedding_size = {embedding_size}"
            )
        self.init = init
        self.clusters = clusters
        self.releases = releases
        self.embedding_size = embedding_size
        self.classes = classes
        self._points = points
        self.prototypes: NDArray[np.float64] | None = None
        self.counts: NDArray[np.float64] | None = None
        self.frame: Frame | None = None

    def layout(self, phase: str) -> Slots:
        """Layout of a phase's release."""
        count = initialisation.number_of_prototypes(self.init, self.clusters)
        if phase == "histogram":
            assert self._points is not None
            count = len(self._points)
        size = self.embedding_size
        if phase == "lloyd" and self.labelled:
            size = max(1, self.clusters - 1)
        return initialisation.phase_layout(phase, size, count, self.classes)

    def use(
        self,
        release: int,
        sums: NDArray[np.float64],
        counts: NDArray[np.float64] | None,
        cohort: float,
        noise_std: float,
        rng: np.random.Generator,
    ) -> None:
        """Improve the prototypes, or what comes before them.

        Parameters
        ----------
        release : int
            Which one, from 1.
        sums, counts : (P, width) and (P,) arrays
            What ``layout`` decodes from the noisy sum.
        cohort : float
            Expected number of clients in it.
        noise_std : float
            Standard deviation of the noise on its numbers.
        rng : numpy Generator
            For drawn prototypes and the starts of k-means.
        """
        phase = initialisation.phase_of(self.init, release)
        total = sums[0]
        if phase == "mean":
            count = secure_kmeans.number_of_prototypes(self.clusters)
            self.prototypes = secure_kmeans.draw_prototypes(total / cohort, count, rng)
        elif phase == "moments":
            self.prototypes = self._from_moments(total, cohort, rng)
        elif phase in ("classes", "whitening"):
            self.frame = self._first_frame(phase, total, cohort, noise_std)
        elif phase == "scatter":
            assert self.frame is not None
            self.frame, excess = discriminant.read_frame(
                total, cohort, noise_std, self.frame, self.clusters
            )
            self.prototypes = discriminant.first_prototypes(
                excess, self.frame.radius, self.clusters, rng
            )
        elif phase == "histogram":
            self._merge(sums[:, 0], rng)
        else:
            self._lloyd_step(sums, counts, cohort)
            if release == self.releases:
                assert counts is not None
                self._merge(counts, rng)

    def _from_moments(
        self, total: NDArray[np.float64], cohort: float, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        mean, second_moment = spectral.read_moments(total, cohort, self.embedding_size)
        if self.init == "spectral":
            return spectral.place_prototypes(mean, second_moment, self.clusters, rng)
        assert self._points is not None
        return server_points.project(self._points, second_moment, self.clusters)

    def _first_frame(
        self, phase: str, total: NDArray[np.float64], cohort: float, noise_std: float
    ) -> Frame:
        if phase == "whitening":
            assert self.frame is not None
            return private_whitening.read_whitener(total, cohort, noise_std, self.frame)
        if self.init == "private-whitening":
            return private_whitening.read_classes(total, noise_std, self.embedding_size)
        return discriminant.read_classes(total, self.embedding_size)

    def _lloyd_step(
        self, sums: NDArray[np.float64], counts: NDArray[np.float64] | None, cohort: float
    ) -> None:
        assert self.prototypes is not None
        assert counts is not None
        smallest = SMALLEST_COUNT * cohort * self.clusters / len(self.prototypes)
        self.prototypes = secure_kmeans.lloyd_step(self.prototypes, sums, counts, smallest)

    def _merge(self, counts: NDArray[np.float64], rng: np.random.Generator) -> None:
        assert self.prototypes is not None
        self.prototypes, self.counts = secure_kmeans.merge_prototypes(
            self.prototypes, counts, self.clusters, rng
        )

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What was found so far, as named arrays."""
        state: dict[str, NDArray[np.generic]] = {}
        if self.prototypes is not None:
            state["prototypes"] = self.prototypes
        if self.counts is not None:
            state["prototype-counts"] = self.counts
        return state if self.frame is None else state | self.frame.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore ``state()``."""
        if "prototypes" in state:
            self.prototypes = np.array(state["prototypes"], dtype=np.float64)
        if "prototype-counts" in state:
            self.counts = np.array(state["prototype-counts"], dtype=np.float64)
        self.frame = Frame.in_state(state)
