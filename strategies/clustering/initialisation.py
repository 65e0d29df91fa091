"""The phases of the private initialisations: their order, their layouts, what a client answers.

``secure-kmeans``  mean, lloyd, lloyd, ...             (``secure_kmeans``)
``spectral``       moments, lloyd, ...                 (``spectral``)
``server-points``  moments, histogram, lloyd, ...      (``server_points``)
``discriminant``   classes, scatter, lloyd, ...        (``discriminant``)
``private-whitening``  classes, whitening, scatter, lloyd, ...  (``private_whitening``)

Every phase is one ``Slots`` release of a function of the client's embedding y alone, |y| <= 1; but
for those of ``LABELLED_PHASES``, which also need labels and the single images.
"""

import math

import numpy as np
from numpy.typing import NDArray

from strategies.assignment import nearest_prototype
from strategies.clustering import (
    discriminant,
    private_whitening,
    secure_kmeans,
    server_points,
    spectral,
)
from strategies.release import Slots

FIRST_PHASES = {
    "secure-kmeans": ("mean",),
    "spectral": ("moments",),
    "server-points": ("moments", "histogram"),
    "discriminant": discriminant.PHASES,
    "private-whitening": private_whitening.PHASES,
}
"""What comes before the Lloyd steps, for every initialisation that finds prototypes."""
LABELLED = ("discriminant", "private-whitening")
"""Initialisations for which a client needs features and labels of its single images."""
LABELLED_PHASES = frozenset({*discriminant.PHASES, *private_whitening.PHASES})
"""Their phases before the Lloyd steps."""
DEFAULT_ROUNDS = {
    "secure-kmeans": 7,
    "spectral": 2,
    "server-points": 3,
    "discriminant": 5,
    "private-whitening": 6,
    "lora-sketch": 7,
}
"""Releases (G, or T_in) where none are given; one Lloyd step is enough where
the first releases know the directions."""
DEFAULT_SHARES = {"spectral": 0.25, "server-points": 0.25}
"""Share of epsilon for the initialisation where ``default_init_share`` of the cohort, made for
``secure-kmeans``, is too much: .25 gives both releases z = 8 at epsilon 2 and K = 1,000."""


def fewest_rounds(init: str, clusters: int) -> int:
    """Releases without which an initialisation has no prototypes, or more than C of them."""
    merges = number_of_prototypes(init, clusters) > clusters
    return max(2, len(FIRST_PHASES[init]) + merges)


def phase_of(init: str, round_number: int) -> str:
    """Phase of a round (from 1) of an initialisation."""
    first = FIRST_PHASES[init]
    return first[round_number - 1] if round_number <= len(first) else "lloyd"


def number_of_prototypes(init: str, clusters: int) -> int:
    """Prototypes in the Lloyd steps of an initialisation; more than C are merged at the end."""
    if init == "server-points":
        return clusters
    if init == "spectral":
        return spectral.number_of_prototypes(clusters)
    if init in LABELLED:
        return discriminant.number_of_prototypes(clusters)
    return secure_kmeans.number_of_prototypes(clusters)


def phase_layout(phase: str, dimensions: int, prototypes: int, classes: int = 0) -> Slots:
    """Layout of a phase's release.

    Parameters
    ----------
    phase : {"mean", "moments", "histogram", "classes", "whitening", "scatter", "lloyd"}
    dimensions : int
        Numbers in the embedding; m.
    prototypes : int
        Prototypes among which clients choose; points of the server in "histogram".
    classes : int
        For "classes".
    """
    if phase == "mean":
        return secure_kmeans.mean_layout(dimensions)
    if phase == "moments":
        return spectral.moments_layout(dimensions)
    if phase == "histogram":
        return server_points.histogram_layout(prototypes)
    if phase == "classes":
        return discriminant.classes_layout(dimensions, classes)
    if phase in ("whitening", "scatter"):
        return discriminant.scatter_layout(dimensions)
    return secure_kmeans.lloyd_layout(prototypes, dimensions)


def embedding_size(phase: str, width: int, prototypes: NDArray[np.floating] | None) -> int:
    """m, the size of the embedding that a request's phase and width ask for."""
    if phase == "moments":  # width = m (m + 3) / 2
        return round((math.sqrt(9 + 8 * width) - 3) / 2)
    return width if prototypes is None else int(prototypes.shape[1])


def client_answers(
    phase: str, embeddings: NDArray[np.floating], prototypes: NDArray[np.floating] | None
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """What clients contribute to a release, and to which slot.

    Parameters
    ----------
    phase : {"mean", "moments", "histogram", "lloyd"}
    embeddings : (n, m) array
        A row that is not finite makes that client's contribution unusable.
    prototypes : (P, m) array or None
        None in "mean" and "moments".

    Returns
    -------
    contributions : (n, width) array
    slots : (n,) integer array
    """
    rows = np.asarray(embeddings, dtype=np.float64)
    nowhere = np.zeros(len(rows), dtype=np.intp)
    if phase == "mean" or prototypes is None:
        return (spectral.moments(rows) if phase == "moments" else rows), nowhere
    nearest = nearest_prototype(rows, prototypes)
    if phase == "histogram":
        finite = np.isfinite(rows).all(axis=1, keepdims=True)
        return np.where(finite, 1.0, np.nan), nearest
    return rows, nearest
