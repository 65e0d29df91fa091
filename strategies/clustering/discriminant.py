"""Initialisation in the directions that tell clients apart best, for large crowds (our deviation).

A client's mean feature differs from another's by its cluster, but also by which classes its few
images show and by chance. Two releases remove what is not cluster, as in Fisher's discriminant
analysis; Lloyd steps (``secure_kmeans``) follow in the few directions that are left. With x_j the
whitened feature (m,) of image j, y_j its class, n images, R = 1.25 sqrt(m)::

    1  classes   [mean_j onehot(y_j) (x) clip(x_j, R) / R ; mean_j onehot(y_j)] / sqrt 2
                 -> noisy mean M_c of every class
    2  scatter   r_j = x_j - M[y_j],  y = clip(sqrt(n) mean_j r_j, R) / R
                 [y ; svec(y y') ; svec(clip(W_k, R_W)) / R_W] / sqrt 3
                 W_k: covariance of a client's own r_j, over R^2
    -> total scatter T of the y, mean scatter W within clients, widened to
       W+ + (edge + .03 mean eigenvalue) I, edge = s sqrt(2 m), s the noise on its numbers
    -> the leading C - 1 eigenvectors of W^-1/2 T W^-1/2

Since y is sqrt(n) times a mean, its covariance inside a cluster is that of one r_j: W is in the
right units, whatever n. The norms of the parts are at most 1, so both releases have sensitivity 1.
R_W is PUBLIC: the Frobenius norm that W_k has for ``TYPICAL_IMAGES`` standard normal images, so
that no quantile of the clients is needed. Everything after a release is post-processing.

``frame.Frame`` holds what clients need to compute their embedding from then on. Without public
statistics another release comes between the two (``private_whitening``), whose whitener T the frame
holds: then r_j = T (x_j - M[y_j]).
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from strategies.clustering.frame import Frame
from strategies.clustering.secure_kmeans import RADIUS
from strategies.clustering.spectral import moments_size, smat, svec
from strategies.release import Slots

TYPICAL_IMAGES = 10
RIDGE = 0.03
SMALLEST_CLASS = 0.01
"""A class with less than this share of the images gets no mean of its own."""
PHASES = ("classes", "scatter")


def classes_layout(dimensions: int, classes: int) -> Slots:
    """Layout of the first release."""
    return Slots(1, classes * (dimensions + 1), threshold=1.0)


def scatter_layout(dimensions: int) -> Slots:
    """Layout of ``scatter``, and of ``whitening``."""
    size = dimensions + 2 * (moments_size(dimensions) - dimensions)
    return Slots(1, size, threshold=1.0)


def class_sums(
    features: NDArray[np.floating], labels: NDArray[np.integer], classes: int
) -> NDArray[np.float64]:
    """A client's part of the first release, (classes * (m + 1),) with norm at most 1.

    Parameters
    ----------
    features : (n, m) array
        Whitened.
    labels : (n,) integer array
    classes : int

    Raises
    ------
    ValueError
        If a label is not in [0, classes).
    """
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(f"labels must be 0 to {classes - 1}")
    m = features.shape[1]
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    rows = features / np.maximum(norms, RADIUS * np.sqrt(m))
    sums = np.zeros((classes, m + 1))
    np.add.at(sums, labels, np.hstack([rows, np.ones((len(rows), 1))]))
    sums /= max(1, len(rows)) * np.sqrt(2)
    return np.concatenate([sums[:, :m].ravel(), sums[:, m]])


def read_class_sums(
    total: NDArray[np.floating], dimensions: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums (classes, m), over R, and counts (classes,) in a (noisy) sum of ``class_sums``."""
    classes = total.size // (dimensions + 1)
    sums = np.asarray(total[: classes * dimensions], np.float64).reshape(classes, dimensions)
    return sums, np.asarray(total[classes * dimensions :], np.float64)


def read_class_means(total: NDArray[np.floating], dimensions: int) -> NDArray[np.float64]:
    """M (classes, m) from a (noisy) sum of ``class_sums``; zero for a class that is too rare."""
    sums, counts = read_class_sums(total, dimensions)
    common = counts > SMALLEST_CLASS * max(counts.sum(), 0.0)
    safe = np.where(common & (counts > 0), counts, np.inf)
    return np.asarray(RADIUS * np.sqrt(dimensions) * sums / safe[:, None], dtype=np.float64)


def read_classes(total: NDArray[np.floating], dimensions: int) -> Frame:
    """The frame after ``classes``: noisy class means as they are."""
    return Frame.of_classes(read_class_means(total, dimensions))


def within_bound(dimensions: int) -> float:
    """R_W, in the units of y y': a public constant."""
    m = dimensions
    return float(np.sqrt(m + m * (m + 1) / (TYPICAL_IMAGES - 1)) / (RADIUS**2 * m))


def residual(
    features: NDArray[np.floating], labels: NDArray[np.integer], frame: Frame
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """y (m,) with norm at most 1, and the client's covariance W_k (m, m), zero for one image."""
    m = features.shape[1]
    rows = frame.residuals(features, labels) / (RADIUS * np.sqrt(m))
    mean = rows.mean(axis=0)
    y = np.sqrt(len(rows)) * mean
    centred = rows - mean
    within = centred.T @ centred / max(1, len(rows) - 1)
    return y / max(1.0, float(np.linalg.norm(y))), within


def scatter(
    features: NDArray[np.floating], labels: NDArray[np.integer], frame: Frame
) -> NDArray[np.float64]:
    """A client's part of ``scatter`` and ``whitening``, norm at most 1; see ``residual``."""
    y, within = residual(features, labels, frame)
    bound = within_bound(len(y))
    within = within / max(bound, float(np.linalg.norm(within)))
    parts = [y, svec(np.outer(y, y)), svec(within)]
    return np.asarray(np.concatenate(parts) / np.sqrt(3), dtype=np.float64)


@dataclasses.dataclass(frozen=True)
class Scatter:
    """What the server reads from a (noisy) sum of ``scatter``, in the units of y.

    Attributes
    ----------
    mean : (m,) array
        Of the y.
    whiten : (m, m) array
        The inverse root of the widened scatter within clients.
    total : (m, m) array
        The scatter of the whitened y, ``whiten T whiten``.
    """

    mean: NDArray[np.float64]
    whiten: NDArray[np.float64]
    total: NDArray[np.float64]


def read_scatter(
    total: NDArray[np.floating], cohort: float, noise_std: float, dimensions: int
) -> Scatter:
    """Both scatters, from a (noisy) sum over ``cohort`` expected clients.

    ``noise_std`` is the standard deviation of the noise on its numbers.
    """
    m = dimensions
    scaled = np.asarray(total, dtype=np.float64) * (np.sqrt(3) / cohort)
    mean, second, within = np.split(scaled, [m, m + m * (m + 1) // 2])
    noise = noise_std * np.sqrt(3) / cohort * within_bound(m)
    values, vectors = np.linalg.eigh(within_bound(m) * smat(within, m))
    values = np.maximum(values, 0.0)
    widened = values + noise * np.sqrt(2 * m) + RIDGE * values.mean() + 1e-12
    whiten = (vectors / np.sqrt(widened)) @ vectors.T
    return Scatter(mean, whiten, whiten @ (smat(second, m) - np.outer(mean, mean)) @ whiten)


def read_frame(
    total: NDArray[np.floating], cohort: float, noise_std: float, before: Frame, clusters: int
) -> tuple[Frame, NDArray[np.float64]]:
    """The frame, and how many within-client variances its axes have beyond one, (C - 1,).

    Parameters
    ----------
    total, cohort, noise_std
        As for ``read_scatter``.
    before : Frame
        With which clients answered.
    clusters : int
    """
    found = read_scatter(total, cohort, noise_std, before.class_means.shape[1])
    spread, directions = np.linalg.eigh(found.total)
    leading = np.argsort(spread)[::-1][: max(1, clusters - 1)]
    excess = np.maximum(spread[leading] - np.median(spread), 1e-3)
    axes = directions[:, leading].T @ found.whiten
    radius = 2.0 * float(np.sqrt(np.sum(np.maximum(spread[leading], 1e-3))))
    folded = before.whiten(axes)
    frame = Frame(before.class_means, folded, axes @ found.mean, radius, np.array(1.0))
    return frame, np.asarray(excess, dtype=np.float64)


def first_prototypes(
    excess: NDArray[np.float64], radius: float, clusters: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Prototypes (C or 3C, r) in the unit ball: at either side, or drawn."""
    sizes = np.sqrt(excess) / radius
    if clusters <= 2:
        places = np.array([[1.0], [-1.0]])[:clusters]
    else:
        places = rng.standard_normal((number_of_prototypes(clusters), len(sizes)))
    prototypes = places * sizes
    prototypes /= np.maximum(1.0, np.linalg.norm(prototypes, axis=1, keepdims=True))
    return np.asarray(prototypes, dtype=np.float64)


def number_of_prototypes(clusters: int) -> int:
    """Prototypes in the Lloyd steps: C up to two clusters, 3C beyond, merged afterwards."""
    return clusters if clusters <= 2 else 3 * clusters


def embedding(
    features: NDArray[np.floating], labels: NDArray[np.integer], frame: Frame
) -> NDArray[np.float64]:
    """A client's embedding (r,) in a frame, with norm at most 1; zeros without images."""
    if len(features) == 0:
        return np.zeros(len(frame.axes))
    y, _ = residual(features, labels, frame)
    place = (frame.axes @ y - frame.centre) / frame.radius
    return np.asarray(place / max(1.0, float(np.linalg.norm(place))), dtype=np.float64)


def client_answer(
    phase: str,
    features: NDArray[np.floating],
    labels: NDArray[np.integer],
    frame: Frame | None,
    width: int,
) -> NDArray[np.float64]:
    """What one client contributes to a phase of images, (width,); NaN if it cannot."""
    try:
        if phase == "classes":
            return class_sums(features, labels, width // (features.shape[1] + 1))
        assert frame is not None
        return scatter(features, labels, frame)
    except (IndexError, ValueError):  # a label that the others do not have
        return np.full(width, np.nan)
