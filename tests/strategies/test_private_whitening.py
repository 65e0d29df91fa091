"""Whitening by a release of its own: scale and whitener against plain loops, what it finds."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from strategies.assignment import nearest_prototype
from strategies.clustering import discriminant, private_whitening
from strategies.clustering.frame import Frame
from strategies.clustering.public_statistics import without_public_data

M, CLASSES, IMAGES = 16, 3, 10
Images = tuple[NDArray[np.float64], NDArray[np.int64]]


def crowd(clients: int, seed: int = 0) -> tuple[list[Images], NDArray[np.integer]]:
    """Unit vectors (times sqrt m) around a common mean; most chance lies in four directions.

    Two clusters differ a little, in directions where chance is small.
    """
    rng = np.random.default_rng(seed)
    common = 4 * rng.standard_normal(M)
    class_means = 0.7 * rng.standard_normal((CLASSES, M))
    scale = np.concatenate([np.full(4, 3.0), np.full(M - 4, 0.3)])
    move = np.concatenate([np.zeros(4), 0.12 * rng.standard_normal(M - 4)])
    groups = np.arange(clients) % 2
    everyone = without_public_data(M, M)
    found = []
    for group in groups:
        labels = rng.integers(0, CLASSES, IMAGES)
        chance = scale * rng.standard_normal((IMAGES, M))
        features = common + class_means[labels] + (2 * group - 1) * move + chance
        found.append((everyone.whitened(17.0 * features), labels))
    return found, groups


def classes_of(clients: list[Images]) -> NDArray[np.float64]:
    return np.asarray(sum(discriminant.class_sums(x, y, CLASSES) for x, y in clients))


def scatter_of(clients: list[Images], frame: Frame) -> NDArray[np.float64]:
    return np.asarray(sum(discriminant.scatter(x, y, frame) for x, y in clients))


def test_the_scale_is_that_of_the_residuals() -> None:
    """Without noise: k (x - M) has mean square m, measured image by image."""
    clients, _ = crowd(200)
    frame = private_whitening.read_classes(classes_of(clients), 0.0, M)
    squares = [np.square(frame.residuals(x, y)).sum(axis=1).mean() for x, y in clients]
    assert np.mean(squares) == pytest.approx(M, rel=1e-6)
    assert frame.whitener.ndim == 0
    assert 1.5 < frame.whitener < 4.4  # most of the norm was the common mean


@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0])
def test_noise_on_the_class_means_is_accounted_for(noise: float) -> None:
    """What they leave is told without bias although they are noisy and shrunk: 200 draws, 4 %.

    Their own square, as if they were exact, would tell too little.
    """
    clients, _ = crowd(100)
    total, rng = classes_of(clients), np.random.default_rng(0)
    told, true, naive = [], [], []
    for _ in range(200):
        noisy = total + noise * rng.standard_normal(total.shape)
        frame = private_whitening.read_classes(noisy, noise, M)
        told.append(frame.whitener**-2.0)
        plain = Frame.of_classes(frame.class_means)
        true.append(np.mean([np.square(plain.residuals(x, y)).mean() for x, y in clients]))
        means, counts = discriminant.read_class_means(noisy, M), noisy[CLASSES * M :]
        naive.append(1 - counts / counts.sum() @ np.square(means).mean(axis=1))
    assert np.mean(told) == pytest.approx(np.mean(true), rel=0.04)
    assert np.mean(naive) < np.mean(told) - (0.04 if noise == 1.0 else 0.0)


def test_noise_that_says_more_than_all_is_bounded() -> None:
    """Nobody has any class; or means longer than any image: a finite scale and finite means."""
    longest = private_whitening.SMALLEST_REST**-0.5
    for total in (np.full(CLASSES * (M + 1), -50.0), np.full(CLASSES * (M + 1), 50.0)):
        for noise in (0.0, 1.0, 1e6):
            frame = private_whitening.read_classes(total, noise, M)
            assert np.isfinite(frame.class_means).all()
            assert 0 < frame.whitener <= longest * (1 + 1e-12)


def test_a_class_that_nobody_has_takes_the_mean_of_all() -> None:
    """Instead of a long vector of noise."""
    clients, _ = crowd(100)
    total = np.zeros(4 * (M + 1))
    sums = classes_of(clients)
    total[: CLASSES * M], total[4 * M : -1] = sums[: CLASSES * M], sums[CLASSES * M :]
    noisy = total + np.random.default_rng(0).standard_normal(total.shape)
    noisy[-1] = 0.01
    means = private_whitening.read_classes(noisy, 1.0, M).class_means
    rest = means[:CLASSES].mean(axis=0)
    assert np.linalg.norm(means[-1] - rest) < 0.2 * np.linalg.norm(rest)


def test_the_whitener_is_the_inverse_root_within_clients() -> None:
    """Without noise: up to the ridge residuals have equal variances, and the y mean square m."""
    clients, _ = crowd(1500)
    frame = private_whitening.read_classes(classes_of(clients), 0.0, M)
    total = scatter_of(clients, frame)
    white = private_whitening.read_whitener(total, len(clients), 0.0, frame)
    rows = [frame.residuals(x, y) for x, y in clients]
    within = np.mean([np.cov(r, rowvar=False) for r in rows], axis=0)
    values, vectors = np.linalg.eigh(within)
    expected = vectors / np.sqrt(values + discriminant.RIDGE * values.mean()) @ vectors.T
    unit = expected / np.linalg.norm(expected)
    # Clients' covariances are cut to R_W, which shrinks large ones more.
    np.testing.assert_allclose(white.whitener / np.linalg.norm(white.whitener), unit, atol=0.02)
    rows = [white.residuals(x, y) for x, y in clients]
    squares = [len(r) * np.square(r.mean(axis=0)).sum() for r in rows]
    assert np.mean(squares) == pytest.approx(M, rel=0.1)  # a few y are cut to norm 1
    after = np.linalg.eigvalsh(np.mean([np.cov(r, rowvar=False) for r in rows], axis=0))
    assert after.max() < 3 * after.min()
    assert values.max() > 50 * values.min()


def clusters_found(whitening: bool, noise: float, seed: int) -> float:
    """ARI of the nearest first prototypes, with noise on every release."""
    clients, groups = crowd(600, seed)
    rng = np.random.default_rng(seed)

    def released(total: NDArray[np.float64]) -> NDArray[np.float64]:
        return total + noise * rng.standard_normal(total.shape)

    total = released(classes_of(clients))
    frame = discriminant.read_classes(total, M)
    if whitening:
        frame = private_whitening.read_classes(total, noise, M)
        second = released(scatter_of(clients, frame))
        frame = private_whitening.read_whitener(second, len(clients), noise, frame)
    last = released(scatter_of(clients, frame))
    frame, excess = discriminant.read_frame(last, len(clients), noise, frame, 2)
    assert frame.whitener == 1.0  # the axes have it
    prototypes = discriminant.first_prototypes(excess, frame.radius, 2, rng)
    embeddings = np.stack([discriminant.embedding(x, y, frame) for x, y in clients])
    assert np.linalg.norm(embeddings, axis=1).max() <= 1 + 1e-12
    return float(adjusted_rand_score(groups, nearest_prototype(embeddings, prototypes)))


def test_it_finds_what_noise_hides_from_unwhitened_features() -> None:
    """The same noise on every release, five draws: ARI above .8 with, below .3 without."""
    noise = 600 / 400  # 400 clients over z, the fewest for which the rule chooses it
    with_it = [clusters_found(True, noise, seed) for seed in range(5)]
    without = [clusters_found(False, noise, seed) for seed in range(5)]
    assert np.median(with_it) > 0.8
    assert np.median(without) < 0.3


def test_axes_take_the_whitener_in() -> None:
    """Embedding by folded axes is that by whitened residuals: no matrix has to be sent any more."""
    clients, _ = crowd(100)
    frame = private_whitening.read_classes(classes_of(clients), 0.0, M)
    frame = private_whitening.read_whitener(scatter_of(clients, frame), 100, 0.0, frame)
    final, _ = discriminant.read_frame(scatter_of(clients, frame), 100, 0.0, frame, 3)
    found = discriminant.read_scatter(scatter_of(clients, frame), 100, 0.0, M)
    seen = 0
    for x, labels in clients:
        y, _ = discriminant.residual(x, labels, frame)
        if np.linalg.norm(y) > 1 - 1e-9:
            continue  # cut before it was projected, which the final embedding does not do
        seen += 1
        axes = final.axes @ np.linalg.inv(frame.whitener)
        place = axes @ (y - found.mean) / final.radius
        place /= max(1.0, float(np.linalg.norm(place)))
        np.testing.assert_allclose(discriminant.embedding(x, labels, final), place, atol=1e-9)
    assert seen > 50


def test_a_frame_survives_its_arrays() -> None:
    """With a whole matrix, and with one number."""
    matrix = np.random.default_rng(0).standard_normal((M, M))
    for whitener in (matrix, 2.5):
        frame = Frame.of_classes(np.ones((CLASSES, M)), whitener)
        again = Frame.of(frame.arrays())
        for key, value in frame.arrays().items():
            np.testing.assert_array_equal(again.arrays()[key], value)
            assert np.shape(again.arrays()[key]) == np.shape(value)
