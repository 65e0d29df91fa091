"""Fisher's directions from two releases: norms, formulas against plain loops, what they find."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import adjusted_rand_score

from strategies.assignment import nearest_prototype
from strategies.clustering import discriminant
from strategies.clustering.frame import Frame
from strategies.clustering.secure_kmeans import RADIUS

M, CLASSES = 6, 4
R = RADIUS * np.sqrt(M)
Images = tuple[NDArray[np.float64], NDArray[np.int64]]


def crowd(clients: int, clusters: int, seed: int = 0, images: int = 8) -> tuple[list[Images], list]:
    """Clients whose images differ by class (much), by cluster (little), by chance unevenly.

    A cluster moves the coordinates of the last axes, where chance is small.
    """
    rng = np.random.default_rng(seed)
    class_means = 1.5 * rng.standard_normal((CLASSES, M))
    moves = np.zeros((clusters, M))
    moves[:, -2:] = 0.35 * rng.standard_normal((clusters, 2)) * np.sqrt(clusters)
    scale = np.array([1.5, 1.2, 1.0, 0.8, 0.2, 0.2])
    groups = np.arange(clients) % clusters
    found = []
    for group in groups:
        labels = rng.integers(0, CLASSES, images)
        noise = scale * rng.standard_normal((images, M))
        found.append((class_means[labels] + moves[group] + noise, labels))
    return found, list(groups)


def prepared(clients: list[Images], clusters: int) -> tuple[Frame, NDArray[np.float64]]:
    """Both releases without noise."""
    total = sum(discriminant.class_sums(x, y, CLASSES) for x, y in clients)
    before = discriminant.read_classes(np.asarray(total), M)
    second = sum(discriminant.scatter(x, y, before) for x, y in clients)
    return discriminant.read_frame(np.asarray(second), len(clients), 0.0, before, clusters)


@given(st.integers(0, 6), st.floats(0.01, 1e6), st.integers(0, 10**6), st.booleans())
def test_no_client_contributes_more_than_one(
    images: int, size: float, seed: int, same_class: bool
) -> None:
    """Whatever its images: the norm of both contributions is at most 1."""
    rng = np.random.default_rng(seed)
    features = size * rng.standard_normal((images, M))
    labels = np.zeros(images, int) if same_class else rng.integers(0, CLASSES, images)
    first = discriminant.class_sums(features, labels, CLASSES)
    assert len(first) == discriminant.classes_layout(M, CLASSES).width
    assert np.linalg.norm(first) <= 1 + 1e-12
    if images:
        whitener = rng.choice([0.0, 1.0, 1e3]) * rng.standard_normal((M, M) if size > 1 else ())
        frame = Frame.of_classes(rng.standard_normal((CLASSES, M)), whitener)
        second = discriminant.scatter(features, labels, frame)
        assert len(second) == discriminant.scatter_layout(M).width
        assert np.linalg.norm(second) <= 1 + 1e-12
    assert discriminant.classes_layout(M, CLASSES).sensitivity == 1.0
    assert discriminant.scatter_layout(M).sensitivity == 1.0


def test_the_bounds_are_reached() -> None:
    """The sensitivity is no smaller than claimed: large images of one class, and none other."""
    features = np.full((3, M), 1e3)
    labels = np.zeros(3, int)
    assert np.linalg.norm(discriminant.class_sums(features, labels, CLASSES)) == pytest.approx(1)
    spread = np.vstack([features, -features[:1]])
    labels = np.zeros(4, int)
    frame = Frame.of_classes(np.zeros((1, M)))
    assert np.linalg.norm(discriminant.scatter(spread, labels, frame)) > 0.99


def test_class_means_are_those_of_a_plain_loop() -> None:
    """Without noise, mean over clients of a class's clipped images, weighted 1 / n."""
    clients, _ = crowd(30, 2)
    total = sum(discriminant.class_sums(x, y, CLASSES) for x, y in clients)
    found = discriminant.read_class_means(np.asarray(total), M)
    for label in range(CLASSES):
        weighted, weight = np.zeros(M), 0.0
        for x, y in clients:
            for row in x[y == label]:
                weighted += row * min(1.0, R / np.linalg.norm(row)) / len(x)
                weight += 1 / len(x)
        np.testing.assert_allclose(found[label], weighted / weight, atol=1e-10)


def test_a_class_that_nobody_has_gets_no_mean() -> None:
    """Nor one whose noisy count is negative."""
    total = np.zeros(CLASSES * (M + 1))
    total[: CLASSES * M] = 5.0
    total[CLASSES * M :] = [30.0, 0.05, -2.0, 10.0]
    means = discriminant.read_class_means(total, M)
    assert not means[1].any()
    assert not means[2].any()
    assert np.isfinite(means).all()


def test_the_scatters_are_covariances() -> None:
    """W the mean of numpy's covariances, T that of the y; svec and its inverse drop out."""
    clients, _ = crowd(40, 2)
    means = np.random.default_rng(1).standard_normal((CLASSES, M))
    for x, y in clients[:5]:
        place, within = discriminant.residual(x, y, Frame.of_classes(means))
        rows = x - means[y]
        np.testing.assert_allclose(within, np.cov(rows, rowvar=False) / R**2, atol=1e-12)
        expected = np.sqrt(len(x)) * rows.mean(axis=0) / R
        expected /= max(1.0, float(np.linalg.norm(expected)))
        np.testing.assert_allclose(place, expected, atol=1e-12)
    one = [part[:1] for part in clients[0]]
    assert not discriminant.residual(*one, Frame.of_classes(means))[1].any()


@pytest.mark.parametrize("clusters", [2, 3])
def test_axes_are_fishers(clusters: int) -> None:
    """Between clusters, the found axes span what scikit-learn finds when it is told the clusters.

    2,000 clients: principal angles below 10 degrees. Plain principal axes miss by far.
    """
    clients, groups = crowd(2000, clusters)
    frame, excess = prepared(clients, clusters)
    assert frame.axes.shape == (clusters - 1, M)
    assert (excess > 0.5).all()
    y = np.stack([discriminant.residual(x, labels, frame)[0] for x, labels in clients])
    oracle = LinearDiscriminantAnalysis(solver="eigen").fit(y, groups).scalings_[:, : clusters - 1]
    bases = [np.linalg.qr(a)[0] for a in (frame.axes.T, oracle)]
    cosines = np.linalg.svd(bases[0].T @ bases[1])[1]
    assert cosines.min() > np.cos(np.radians(10))
    plain = np.linalg.eigh(np.cov(y, rowvar=False))[1][:, -(clusters - 1) :]
    assert np.linalg.svd(plain.T @ bases[1])[1].min() < 0.5


@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_prototypes_and_embeddings_find_the_clusters(clusters: int) -> None:
    """Embeddings lie in the unit ball; nearest prototypes are better than the usual ones."""
    clients, groups = crowd(600, clusters)
    frame, excess = prepared(clients, clusters)
    rng = np.random.default_rng(0)
    prototypes = discriminant.first_prototypes(excess, frame.radius, clusters, rng)
    assert prototypes.shape == (discriminant.number_of_prototypes(clusters), max(1, clusters - 1))
    embeddings = np.stack([discriminant.embedding(x, y, frame) for x, y in clients])
    assert np.linalg.norm(embeddings, axis=1).max() <= 1 + 1e-12
    assert abs(embeddings.mean()) < 0.05
    assert np.linalg.norm(embeddings, axis=1).mean() > 0.2
    if clusters == 2:
        assert adjusted_rand_score(groups, nearest_prototype(embeddings, prototypes)) > 0.9
    np.testing.assert_array_equal(
        discriminant.embedding(np.zeros((0, M)), np.zeros(0, int), frame),
        np.zeros(len(prototypes[0])),
    )


def test_noise_widens_what_clients_are_divided_by() -> None:
    """With noise in the release no axis is blown up by an eigenvalue that noise made tiny."""
    clients, _ = crowd(300, 2)
    total = sum(discriminant.class_sums(x, y, CLASSES) for x, y in clients)
    before = discriminant.read_classes(np.asarray(total), M)
    second = np.asarray(sum(discriminant.scatter(x, y, before) for x, y in clients))
    quiet, _ = discriminant.read_frame(second, 300, 0.0, before, 2)
    rng = np.random.default_rng(0)
    noisy = second + 60.0 * rng.standard_normal(second.size)
    loud, excess = discriminant.read_frame(noisy, 300, 60.0, before, 2)
    assert np.isfinite(loud.axes).all()
    assert np.isfinite(excess).all()
    assert np.linalg.norm(loud.axes) < 0.5 * np.linalg.norm(quiet.axes)


def test_labels_that_do_not_exist_spoil_only_that_client() -> None:
    """NaN, which the layout turns into zeros."""
    x, y = crowd(1, 1)[0][0]
    bad = y.copy()
    bad[0] = CLASSES
    frame = Frame.of_classes(np.zeros((CLASSES, M)))
    for phase, width in (
        ("classes", discriminant.classes_layout(M, CLASSES).width),
        ("scatter", discriminant.scatter_layout(M).width),
    ):
        good = discriminant.client_answer(phase, x, y, frame, width)
        assert good.shape == (width,)
        assert np.isfinite(good).all()
        assert np.isnan(discriminant.client_answer(phase, x, bad, frame, width)).all()


def test_a_frame_survives_its_arrays() -> None:
    frame, _ = prepared(crowd(50, 3)[0], 3)
    again = Frame.of(frame.arrays())
    for key, value in frame.arrays().items():
        np.testing.assert_array_equal(again.arrays()[key], value)
