"""How a client's update is laid out in the vector that the secure sum adds.

PINA sends an update for every cluster, zeros for those not chosen, so that the vector does not
tell the choice. ``Slots`` is the plain layout: one slot a cluster, then one counter a cluster.
The counter carries ``kappa * S`` and lets the server divide by a noisy count; the L2 sensitivity
of the whole vector is ``S * sqrt(1 + kappa^2)``. A secret-shared sum hides everything else.

``Coded`` (a deviation from PINA) sends ``[1 ; a v_c] (x) u`` instead, where v_c are the vertices of
a regular simplex. The sum over all clients, which every cluster profits from, then has the noise
of a single model, and only what tells the clusters apart is noisier; ``strategies.coded`` is the
server's side. It has no counters.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from strategies.privacy.clipping import clip_l2
from strategies.privacy.mechanisms import to_grid

RELEASES = ("slots", "coded")
CONTRAST = 0.5
"""a: weight of the contrasts between clusters relative to the common part, unless given."""


@dataclasses.dataclass(frozen=True)
class Slots:
    """One slot and one counter for every cluster.

    Attributes
    ----------
    clusters : int
        C >= 1.
    width : int
        D, numbers in one update.
    threshold : float
        S > 0: updates are clipped to this L2 norm (Eq. 7).
    kappa : float
        Weight of the counters relative to S; 0 sends none.
    """

    clusters: int
    width: int
    threshold: float
    kappa: float = 0.0

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.clusters * (self.width + (self.kappa > 0))

    @property
    def sensitivity(self) -> float:
        """L2 norm that one client's vector cannot exceed."""
        return self.threshold * float(np.sqrt(1 + self.kappa**2))

    def encode(
        self, updates: NDArray[np.floating], clusters: NDArray[np.integer]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Sum of the clipped contributions of several clients, on the integer grid.

        Parameters
        ----------
        updates : (n, D) array
            One unclipped update a client. A row that is not finite contributes zeros.
        clusters : (n,) integer array
            Cluster that each client chose, in [0, C).

        Returns
        -------
        total : (size,) int64 array
        usable : (n,) bool array
            False where the update was not finite. For the client's own log: it must not be sent
            in a private run.
        """
        usable = np.isfinite(updates).all(axis=-1)
        total = np.zeros(self.size, dtype=np.int64)
        slots = total[: self.clusters * self.width].reshape(self.clusters, self.width)
        counts = total[slots.size :]
        one = np.array([self.kappa * self.threshold])
        for update, cluster in zip(updates[usable], clusters[usable], strict=True):
            slots[cluster] += to_grid(clip_l2(update, self.threshold), self.sensitivity)
            if self.kappa > 0:
                counts[cluster] += to_grid(one, self.sensitivity)[0]
        return total, usable

    def decode(
        self, total: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Split a (noisy) sum into sums of updates (C, D) and counts (C,), None without kappa."""
        split = self.clusters * self.width
        sums = total[:split].reshape(self.clusters, self.width)
        counts = total[split:] / (self.kappa * self.threshold) if self.kappa > 0 else None
        return sums, counts


@dataclasses.dataclass(frozen=True)
class Coded:
    """The update once for all clusters, and once for each contrast between them.

    Attributes
    ----------
    clusters : int
        C >= 1; a single cluster has no contrasts, and the vector is the update.
    width : int
        D, numbers in one update.
    threshold : float
        S > 0: L2 norm of the whole vector, so updates are clipped to ``S / sqrt(1 + a^2)``.
    contrast : float
        a > 0: the smaller, the less the contrasts cost the common part, and the noisier they are.
    """

    clusters: int
    width: int
    threshold: float
    contrast: float = CONTRAST

    @property
    def size(self) -> int:
        """Length of the vector: D common numbers, then C - 1 contrasts of D numbers."""
        return self.clusters * self.width

    @property
    def sensitivity(self) -> float:
        """L2 norm that one client's vector cannot exceed."""
        return self.threshold

    def encode(
        self, updates: NDArray[np.floating], clusters: NDArray[np.integer]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Sum of the clipped contributions of several clients; as for ``Slots.encode``.

        Every number of a contribution is rounded towards zero, so its norm cannot grow.
        """
        usable = np.isfinite(updates).all(axis=-1)
        total = np.zeros((self.clusters, self.width), dtype=np.int64)
        codes = np.hstack([np.ones((self.clusters, 1)), self.contrast * simplex(self.clusters)])
        clip = self.threshold / float(np.linalg.norm(codes[0]))
        for update, cluster in zip(updates[usable], clusters[usable], strict=True):
            coded = np.outer(codes[cluster], clip_l2(update, clip))
            total += to_grid(coded, self.sensitivity)
        return total.ravel(), usable

    def decode(self, total: NDArray[np.float64]) -> tuple[NDArray[np.float64], None]:
        """Sums of updates (C, D) from a (noisy) sum; there are no counts.

        With T the common part and M the contrasts, cluster c has the sum
        ``T / C + (C - 1) / (C a) (v_c . M)``; the sums of all clusters add up to T.
        """
        parts = total.reshape(self.clusters, self.width)
        contrasts = simplex(self.clusters) @ parts[1:]
        weight = (self.clusters - 1) / (self.clusters * self.contrast)
        return parts[0] / self.clusters + weight * contrasts, None


Layout = Slots | Coded


def simplex(clusters: int) -> NDArray[np.float64]:
    """Vertices (C, C - 1) of a regular simplex: unit vectors with inner products -1 / (C - 1).

    The columns are Helmert's contrasts, so that clients and server compute the same numbers.
    """
    vertices = np.zeros((clusters, clusters - 1))
    for column in range(clusters - 1):
        count = column + 1
        vertices[:count, column] = 1.0
        vertices[count, column] = -count
        vertices[:, column] *= np.sqrt(clusters / ((clusters - 1) * count * (count + 1)))
    return vertices
