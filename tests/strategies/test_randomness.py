"""Streams: repeatable by seed, purpose and index; unrepeatable without a seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.randomness import noise_stream, stream
from tests.strategies import drawn

INDICES = st.tuples(st.integers(0, 2000), st.integers(0, 2000))
NAMES = st.sampled_from(["cohort-train", "cohort-init", "noise-train", "noise-init", "batches"])


@drawn
@given(st.integers(0, 2**32 - 1), NAMES, INDICES)
def test_a_stream_is_a_function_of_its_coordinates(
    seed: int, purpose: str, index: tuple[int, int]
) -> None:
    """Drawn anew it is the same; another stream in between changes nothing."""
    first = stream(seed, purpose, *index).random(4)
    stream(seed, purpose, 5).random(100)
    np.testing.assert_array_equal(stream(seed, purpose, *index).random(4), first)


@drawn
@given(st.lists(st.tuples(st.integers(0, 999), NAMES, INDICES), min_size=2, unique=True))
def test_different_coordinates_differ(keys: list[tuple[int, str, tuple[int, int]]]) -> None:
    """Seed, name, round and client each select another stream (64-bit draws: no collisions)."""
    draws = [int(stream(seed, name, *index).integers(2**63)) for seed, name, index in keys]
    assert len(set(draws)) == len(keys)


def test_neighbouring_streams_are_uncorrelated() -> None:
    """Consecutive rounds' normals: their correlation is N(0, 1 / n), within 4 sigma."""
    draws = np.array(
        [stream(0, "noise-train", number).standard_normal(50) for number in range(400)]
    )
    product = draws[1:] * draws[:-1]
    assert abs(product.mean()) * np.sqrt(product.size) < 4
    assert abs(draws.mean()) * np.sqrt(draws.size) < 4


def test_a_stream_does_not_depend_on_the_process() -> None:
    """Python's salted hash() would; the number was printed by another process."""
    assert stream(3, "noise-train", 7).random() == 0.19140327691695802


def test_no_seed_no_repetition() -> None:
    """Each call is seeded anew (two equal 64-bit draws: probability 2^-63 a pair)."""
    draws = {int(stream(None, "cohort-train", 1).integers(2**63)) for _ in range(50)}
    assert len(draws) == 50


def test_privacy_noise_without_a_seed_has_no_generator() -> None:
    """None means the operating system's randomness itself, not a generator seeded by it."""
    assert noise_stream(None, "noise-train", 1) is None
    seeded = noise_stream(4, "noise-train", 1)
    assert seeded is not None
    assert seeded.random() == stream(4, "noise-train", 1).random()


def test_negative_seeds_are_refused() -> None:
    """NumPy's own refusal."""
    with pytest.raises(ValueError, match="negative"):
        stream(-1, "noise-train")
