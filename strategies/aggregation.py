"""From a noisy sum to updates of the cluster models: divide, rescale, leave out pure noise.

Deviation from PINA: the divisor is the expected cohort ``q K``, or a noisy count, never the
realised cohort ``|K_t|``, which would itself leak. All of it is post-processing of one release.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from strategies.clustering.normality import (
    RESCALES,
    equalise_norms,
    exceeds_noise,
    normality,
    scale_by_normality,
)
from strategies.release import CONTRAST, RELEASES, Coded, Layout, Slots

SKIPS = ("energy", "none")
SMALLEST_COUNT = 0.05
"""A noisy count below this share of the expected cohort is not trusted as a divisor."""


def not_coded(rescale: str, server_momentum: float) -> str:
    """Why these settings exclude ``release = "coded"``; empty if they do not."""
    if rescale != "count":
        return f"rescale = {rescale!r}: must be 'count'"
    if server_momentum > 0:
        return f"server-momentum = {server_momentum}: must be 0"
    return ""


@dataclasses.dataclass(frozen=True)
class Aggregation:
    """How a noisy sum becomes an update of the cluster models.

    Attributes
    ----------
    threshold : float
        S > 0, clipping threshold.
    rescale : str
        One of ``RESCALES``; see ``strategies.clustering.normality``.
    skip : {"energy", "none"}
        Whether a cluster whose sum is no larger than its noise is left unchanged.
    kappa : float
        Weight of the counters for ``rescale = "count"``.
    equal_norm_rounds : int
        T_no: first training rounds in which the ``normality`` variants use Eq. 8 instead.
    server_momentum : float
        In [0, 1).
    release : {"slots", "coded"}
        Layout of the training release. "coded" updates models in ``strategies.coded`` instead of
        ``updates``: it needs ``rescale = "count"`` (it divides by the noisy counts of the
        initialisation) and no server momentum, and shrinks where ``skip`` would leave out.
    contrast : float
        a > 0 of "coded".
    """

    threshold: float
    rescale: str = "count"
    skip: str = "energy"
    kappa: float = 0.1
    equal_norm_rounds: int = 0
    server_momentum: float = 0.0
    release: str = "slots"
    contrast: float = CONTRAST

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        if not self.threshold > 0:
            raise ValueError(f"threshold = {self.threshold}: must be > 0")
        if self.rescale not in RESCALES:
            raise ValueError(f"rescale = {self.rescale!r}: must be one of {RESCALES}")
        if self.skip not in SKIPS:
            raise ValueError(f"skip = {self.skip!r}: must be one of {SKIPS}")
        if not self.kappa > 0:
            raise ValueError(f"kappa = {self.kappa}: must be > 0")
        if not 0 <= self.server_momentum < 1:
            raise ValueError(f"server_momentum = {self.server_momentum}: must be in [0, 1)")
        if self.release not in RELEASES:
            raise ValueError(f"release = {self.release!r}: must be one of {RELEASES}")
        if not self.contrast > 0:
            raise ValueError(f"contrast = {self.contrast}: must be > 0")
        reason = not_coded(self.rescale, self.server_momentum)
        if self.release == "coded" and reason:
            raise ValueError(f"release = 'coded': {reason}")

    @property
    def counters(self) -> float:
        """Kappa of the training release; counters only where the division needs them."""
        return self.kappa if self.rescale == "count" and self.release == "slots" else 0.0

    def layout(self, clusters: int, width: int) -> Layout:
        """Layout of the training release."""
        if self.release == "coded":
            return Coded(clusters, width, self.threshold, self.contrast)
        return Slots(clusters, width, self.threshold, self.counters)

    def updates(
        self,
        sums: NDArray[np.float64],
        counts: NDArray[np.float64] | None,
        cohort: float,
        noise_std: float,
        training_round: int,
    ) -> tuple[NDArray[np.float64], list[int]]:
        """Updates (C, D) of the cluster models, and which clusters were skipped.

        Parameters
        ----------
        sums : (C, D) array
            Noisy sums of clipped updates.
        counts : (C,) array or None
            Noisy counts, with ``rescale = "count"``.
        cohort : float
            Expected number of clients, q K.
        noise_std : float
            Standard deviation of the noise on every number of ``sums``.
        training_round : int
            From 1.
        """
        if counts is not None:
            updates = sums / np.maximum(counts, SMALLEST_COUNT * cohort)[:, None]
        else:
            updates = sums / cohort
        if self.rescale.startswith("normality"):
            if training_round <= self.equal_norm_rounds:
                updates = equalise_norms(updates)
            else:
                statistics = np.array([normality(row) for row in updates])
                updates = scale_by_normality(updates, statistics, self.rescale)
        skipped = []
        if self.skip == "energy":
            skipped = [c for c, row in enumerate(sums) if not exceeds_noise(row, noise_std)]
            updates = updates.copy()
            updates[skipped] = 0.0
        return updates, skipped
