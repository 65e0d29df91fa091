"""The simulated federation: who has which images."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app_kit.partition import partition
from app_kit.source import Source
from pina_app.config import PinaConfig
from pina_app.datasets import augment, load_federation, rotate
from tests.app_kit.files import arrays, write

CONFIG = PinaConfig(dataset="test.npz", public_data="none", weights="none", clients=10)


def numbered(count: int, classes: int = 4, writers: int | None = None) -> Source:
    """A source whose image i is filled with i (mod 256) and whose label is random."""
    rng = np.random.default_rng(0)

    def images(index: NDArray[np.intp]) -> NDArray[np.uint8]:
        return np.repeat(index.astype(np.uint8), 64).reshape(-1, 8, 8)

    return Source(
        images,
        rng.permutation(np.arange(count) % classes),
        images,
        np.arange(8) % classes,
        None if writers is None else rng.permutation(np.arange(count) % writers),
        classes,
    )


def configured(**changes: Any) -> PinaConfig:
    return dataclasses.replace(CONFIG, **changes)


def assert_disjoint(parts: list[NDArray[np.intp]], count: int) -> None:
    """Every image belongs to at most one client, and every client has one."""
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < count
    assert min(len(part) for part in parts) >= 1


@given(
    clients=st.integers(2, 25),
    per_client=st.integers(0, 8),
    partitioner=st.sampled_from(["iid", "dirichlet", "natural"]),
    seed=st.integers(0, 99),
)
def test_every_image_has_at_most_one_owner(
    clients: int, per_client: int, partitioner: str, seed: int
) -> None:
    """For every partitioner; ``images-per-client`` caps (iid: fixes) what a client has."""
    source = numbered(200, writers=25)
    config = configured(
        clients=clients,
        clusters=1,
        images_per_client=per_client,
        partitioner=partitioner,
        seed=seed,
        dirichlet_alpha=5.0,
    )
    parts = partition(config, source)
    assert len(parts) == clients
    assert_disjoint(parts, 200)
    if per_client:
        assert max(len(part) for part in parts) <= per_client
        if partitioner == "iid":
            assert {len(part) for part in parts} == {per_client}
    elif partitioner == "iid":
        assert sum(len(part) for part in parts) == 200
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    elif partitioner == "dirichlet":
        assert sum(len(part) for part in parts) == 200


@pytest.mark.parametrize("partitioner", ["iid", "dirichlet", "natural"])
def test_partition_follows_the_seed(partitioner: str) -> None:
    """Same seed, same split; another seed, another, unless the writers decide."""
    source = numbered(300, writers=12)

    def split(seed: int | None) -> list[list[int]]:
        config = configured(partitioner=partitioner, seed=seed)
        return [part.tolist() for part in partition(config, source)]

    assert split(1) == split(1)
    assert (split(1) == split(2)) == (partitioner == "natural")
    assert split(None) == split(0)


def test_iid_splits_do_not_follow_the_order_of_the_file() -> None:
    """A file sorted by class must not give clients of one class."""
    source = dataclasses.replace(numbered(400), train_labels=np.arange(400) // 100)
    parts = partition(configured(images_per_client=20), source)
    assert min(len(np.unique(source.train_labels[part])) for part in parts) >= 3


def test_dirichlet_alpha_controls_how_uneven_the_labels_are() -> None:
    """Towards one class a client for small alpha, towards equal shares for large."""
    source = numbered(2000)

    def largest_share(alpha: float) -> float:
        parts = partition(configured(partitioner="dirichlet", dirichlet_alpha=alpha), source)
        shares = [
            max(Counter(source.train_labels[part].tolist()).values()) / len(part) for part in parts
        ]
        return float(np.mean(shares))

    assert largest_share(0.1) > 0.6
    assert largest_share(1000.0) < 0.35


def test_natural_clients_are_writers() -> None:
    """A client's images are all the images of one writer, and no two clients share one."""
    source = numbered(300, writers=12)
    assert source.writers is not None
    parts = partition(configured(partitioner="natural", clients=12), source)
    owners = [np.unique(source.writers[part]) for part in parts]
    assert all(len(owner) == 1 for owner in owners)
    assert sorted(int(owner[0]) for owner in owners) == list(range(12))
    for part, owner in zip(parts, owners, strict=True):
        assert len(part) == np.sum(source.writers == owner[0])


@pytest.mark.parametrize(
    ("changes", "count", "writers", "message"),
    [
        (
            {"images_per_client": 31},
            300,
            None,
            "images-per-client = 31: 10 clients need 310 images",
        ),
        ({}, 9, None, "clients = 10: the data set has 9 images"),
        ({"partitioner": "dirichlet"}, 9, None, "clients = 10: the data set has 9 images"),
        ({"partitioner": "natural"}, 300, 9, "clients = 10: test.npz has 9 writers"),
        ({"partitioner": "natural"}, 300, None, "partitioner = 'natural': test.npz does not name"),
    ],
)
def test_too_little_data_is_refused(
    changes: dict[str, Any], count: int, writers: int | None, message: str
) -> None:
    """The message counts both sides."""
    with pytest.raises(ValueError, match=" = ") as error:
        partition(configured(**changes), numbered(count, writers=writers))
    assert str(error.value).startswith(message)


# --- rotations and augmentation --------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 4, 4, 3)])
def test_rotation_moves_pixels_counter_clockwise(shape: tuple[int, ...]) -> None:
    """Pixel by pixel: 90 degrees take (row i, column j) of the result from (j, W - 1 - i)."""
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    _, height, width = shape[:3]
    turned = rotate(images, 90)
    assert turned.shape == (shape[0], width, height, *shape[3:])
    for i in range(width):
        for j in range(height):
            np.testing.assert_array_equal(turned[:, i, j], images[:, j, width - 1 - i])
    np.testing.assert_array_equal(rotate(images, 0), images)
    np.testing.assert_array_equal(rotate(images, 180), images[:, ::-1, ::-1])
    np.testing.assert_array_equal(rotate(rotate(images, 270), 90), images)
    assert turned.flags["C_CONTIGUOUS"]


@pytest.mark.parametrize("shape", [(4, 16, 16), (3, 16, 16, 3)])
def test_augmented_versions_are_shifts_and_flips(shape: tuple[int, ...]) -> None:
    """Every version is one of all possible crops of the padded image, perhaps flipped."""
    images = np.random.default_rng(0).integers(1, 256, shape, dtype=np.uint8)
    versions = augment(images, 5, client=3).reshape(5, *shape)
    np.testing.assert_array_equal(versions[0], images)
    pad = 16 // 8
    seen = set()
    for version in versions[1:]:
        for image, result in zip(images, version, strict=True):
            padded = np.zeros((20, 20, *shape[3:]), dtype=np.uint8)
            padded[pad : pad + 16, pad : pad + 16] = image
            matches = [
                (top, left, flip)
                for top in range(2 * pad + 1)
                for left in range(2 * pad + 1)
                for flip in (1, -1)
                if np.array_equal(padded[top : top + 16, left : left + 16][:, ::flip], result)
            ]
            assert len(matches) == 1
            seen.add(matches[0])
    assert len({flip for *_, flip in seen}) == 2
    assert len({(top, left) for top, left, _ in seen}) >= 3


@pytest.mark.parametrize("copies", [0, 1])
def test_without_copies_images_stay_as_they_are(copies: int) -> None:
    """0 and 1 both mean no augmentation."""
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8), dtype=np.uint8)
    np.testing.assert_array_equal(augment(images, copies, 0), images)


def test_augmentation_is_fixed_by_the_client() -> None:
    """So that features can be computed once; clients differ."""
    images = np.random.default_rng(0).integers(0, 256, (6, 16, 16), dtype=np.uint8)
    first = augment(images, 5, client=1)
    np.testing.assert_array_equal(augment(images, 5, client=1), first)
    assert not np.array_equal(augment(images, 5, client=2), first)
    assert first.shape == (30, 16, 16)
    assert first.dtype == np.uint8


# --- the whole federation --------------------------------------------------------------------


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("copies", [0, 3])
def test_a_federation_holds_the_rotated_images_of_its_clients(
    tmp_path: Path, colour: bool, copies: int
) -> None:
    """Each image is found again, turned back, in the file, with its label, at most once."""
    fields = arrays(train=40, test=12, colour=colour)
    config = configured(
        dataset=write(tmp_path / "d.npz", fields),
        clients=6,
        rotations="0,90,270",
        images_per_client=5,
        augmented_copies=copies,
        test_images=7,
    )
    federation = load_federation(config)
    angles = [0, 90, 270]
    per_client = 5 * max(1, copies)
    np.testing.assert_array_equal(federation.groups, [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(federation.offsets, per_client * np.arange(7))
    assert len(federation.images) == len(federation.labels) == 6 * per_client
    known = {image.tobytes(): index for index, image in enumerate(fields["x_train"])}
    used = []
    for client in range(6):
        start = federation.offsets[client]
        upright = rotate(federation.images[start : start + 5], 360 - angles[client % 3])
        index = [known[image.tobytes()] for image in upright]
        used.extend(index)
        labels = federation.labels[start : start + per_client]
        np.testing.assert_array_equal(labels, np.tile(fields["y_train"][index], max(1, copies)))
    assert len(set(used)) == 30
    assert federation.test_images.shape[:2] == (3, 7)
    known = {image.tobytes(): index for index, image in enumerate(fields["x_test"])}
    for images, angle in zip(federation.test_images, angles, strict=True):
        index = [known[image.tobytes()] for image in rotate(images, 360 - angle)]
        np.testing.assert_array_equal(federation.test_labels, fields["y_test"][index])


def test_test_images_are_all_by_default_and_never_more(tmp_path: Path) -> None:
    """0 means all; more than there are means all."""
    path = write(tmp_path / "d.npz", arrays(train=40, test=12))
    for wanted in (0, 100):
        federation = load_federation(configured(dataset=path, clients=4, test_images=wanted))
        assert federation.test_images.shape[1] == 12


def test_the_default_federation() -> None:
    """The digits: 50 clients of 20 images, half of them turned."""
    federation = load_federation(PinaConfig())
    assert np.diff(federation.offsets).tolist() == [20] * 50
    assert np.bincount(federation.groups).tolist() == [25, 25]
    assert federation.test_images.shape == (2, 347, 8, 8)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ("equal", [7, 7, 6]),
        ("1,1,2", [5, 5, 10]),
        ("8,1,1", [16, 2, 2]),
        ("1000,1,1", [18, 1, 1]),
    ],
)
def test_rotations_have_their_shares(
    shares: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes of the true clusters of 20 clients; nobody's rotation is left out."""
    monkeypatch.setattr("pina_app.datasets.open_source", lambda *_: numbered(100))
    config = configured(clients=20, rotations="0,90,180", rotation_shares=shares)
    assert Counter(load_federation(config).groups.tolist()) == dict(enumerate(expected))


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.99])
def test_held_out_images_are_a_share_of_each_client(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded, but one is left; alike for copies of an image, other images for another seed."""
    monkeypatch.setattr("pina_app.datasets.open_source", lambda *_: numbered(100))
    config = configured(images_per_client=10, held_out=share, augmented_copies=2)
    federation = load_federation(config)
    masks = federation.held_out.reshape(10, 2, 10)
    assert (masks.sum(axis=2) == min(round(10 * share), 9)).all()
    np.testing.assert_array_equal(masks[:, 0], masks[:, 1])
    other = load_federation(dataclasses.replace(config, seed=1))
    assert share == 0 or (other.held_out != federation.held_out).any()
