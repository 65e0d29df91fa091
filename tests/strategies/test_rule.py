"""The rule: the measured cases of METHODS 6.2 and 6.4, and its edges."""

import pytest

from strategies.rule import choose_contrast, choose_init, choose_release, noise_of_release


@pytest.mark.parametrize(
    ("clients", "noise", "expected"),
    [
        (10_000, 10.58, "secure-kmeans"),  # the simulated cohort
        (5_000, 10.58, "secure-kmeans"),
        (1_000, 10.58, "spectral"),  # ARI mostly 0
        (1_000, 3.22, "spectral"),  # epsilon 8: it works, and spectral is a little better
        (2_000, 5.0, "secure-kmeans"),  # 400 exactly
        (1_999, 5.0, "spectral"),
        (3, 0.0, "secure-kmeans"),  # no noise
    ],
)
def test_init(clients: float, noise: float, expected: str) -> None:
    choice = choose_init(clients, noise)
    assert choice.value == expected
    assert ("at least" in choice.reason) == (expected == "secure-kmeans")


def test_more_than_two_clusters() -> None:
    """Discriminant, but for small crowds."""
    assert choose_init(10_000, 10.58, 4).value == "discriminant"
    assert choose_init(1_000, 10.58, 4).value == "spectral"


@pytest.mark.parametrize("clusters", [2, 4])
def test_without_public_statistics(clusters: int) -> None:
    """The whitener is released too, if the crowd is large; synthetic images know their units."""
    assert choose_init(10_000, 10.58, clusters, "synthetic").value == "discriminant"
    assert choose_init(10_000, 10.58, clusters, "none").value == "private-whitening"
    assert choose_init(1_000, 10.58, clusters, "none").value == "spectral"


@pytest.mark.parametrize(
    ("clients", "noise", "clusters", "expected"),
    [
        (10_000, 1.124, 2, "slots"),  # METHODS 6.2, simulated
        (1_000, 8.0, 2, "coded"),  # METHODS 6.4, epsilon 2, q 1, T 20: .7
        (1_000, 2.5, 2, "coded"),  # epsilon 8
        (3_000, 7.5, 2, "coded"),
        (1_000, 0.5, 2, "slots"),  # .0439
        (1_000, 0.5, 3, "coded"),  # .0537
        (10, 100.0, 1, "slots"),  # nothing to share
        (10, 0.0, 4, "slots"),
    ],
)
def test_release(clients: float, noise: float, clusters: int, expected: str) -> None:
    """D = 3,850, a linear head for ten classes."""
    assert choose_release(clients, noise, clusters, 3850).value == expected


def test_contrast() -> None:
    """Real cohorts of 1,000 at epsilon 2 and 8, 3,000 at 2, and the edge."""
    noises = [noise_of_release(n, z, 2, 3850) for n, z in ((1000, 8.0), (1000, 3.1), (3000, 7.5))]
    assert noises == pytest.approx([0.70, 0.27, 0.22], abs=0.005)
    assert [choose_contrast(noise) for noise in (*noises, 0.5)] == [0.35, 0.5, 0.5, 0.5]


def test_release_at_the_edge() -> None:
    """.05 itself is slots: 1 * sqrt(2 * 1250) / 1000."""
    assert choose_release(1000, 1.0, 2, 1250).value == "slots"
    assert choose_release(999, 1.0, 2, 1250).value == "coded"
