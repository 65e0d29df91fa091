"""Data files and hub data sets, good and bad."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from app_kit import digits
from app_kit.npz import read_images
from app_kit.sources import load_public_images, open_source
from tests.app_kit.files import Arrays, arrays, as_jpeg, write

HUB = "some/images"


READERS: dict[str, Callable[[str], object]] = {
    "dataset": lambda path: open_source(path, 0),
    "public-data": lambda path: load_public_images(path),
    "data": read_images,
}


@pytest.mark.parametrize("colour", [False, True])
def test_arrays_are_read_as_they_are(tmp_path: Path, colour: bool) -> None:
    """Images by index, labels, writers and the number of classes."""
    fields = arrays(colour=colour)
    source = open_source(write(tmp_path / "d.npz", fields), 0)
    index = np.array([5, 0, 5, 39])
    np.testing.assert_array_equal(source.train_images(index), fields["x_train"][index])
    np.testing.assert_array_equal(source.test_images(index[:2]), fields["x_test"][index[:2]])
    np.testing.assert_array_equal(source.train_labels, fields["y_train"])
    np.testing.assert_array_equal(source.test_labels, fields["y_test"])
    assert source.writers is not None
    np.testing.assert_array_equal(source.writers, fields["writer_train"])
    assert source.classes == 4
    assert source.train_labels.dtype == np.int64


def test_jpeg_files_are_decoded_one_by_one(tmp_path: Path) -> None:
    """PIL is the oracle; grey files come out as colour."""
    fields = as_jpeg(arrays(colour=True))
    source = open_source(write(tmp_path / "d.npz", fields), 0)
    for i in (0, 7, 39):
        start, end = fields["offsets_train"][i : i + 2]
        expected = Image.open(io.BytesIO(fields["jpeg_train"][start:end].tobytes()))
        np.testing.assert_array_equal(source.train_images(np.array([i]))[0], np.asarray(expected))
    grey = open_source(write(tmp_path / "g.npz", as_jpeg(arrays())), 0)
    assert grey.test_images(np.array([0, 1])).shape == (2, 8, 8, 3)
    assert len(grey.test_labels) == 12


def changed(fields: Arrays, **changes: Any) -> Arrays:
    result = {**fields, **changes}
    return {name: values for name, values in result.items() if values is not None}


def bad_fields(kind: str) -> Arrays:
    good, jpeg = arrays(), as_jpeg(arrays())
    offsets = jpeg["offsets_train"]
    labels = good["y_train"]
    cases: dict[str, Arrays] = {
        "no images": changed(good, x_train=None),
        "no test images": changed(good, x_test=None),
        "images without colour axis of 3": changed(good, x_train=np.zeros((40, 8, 8, 4), np.uint8)),
        "flat images": changed(good, x_train=np.zeros((40, 64), np.uint8)),
        "float images": changed(good, x_train=good["x_train"] / 255),
        "int64 images": changed(good, x_test=good["x_test"].astype(np.int64)),
        "no image at all": changed(good, x_train=good["x_train"][:0], y_train=labels[:0]),
        "no labels": changed(good, y_train=None),
        "too few labels": changed(good, y_train=labels[:-1]),
        "labels in a column": changed(good, y_train=labels[:, None]),
        "float labels": changed(good, y_train=labels.astype(float)),
        "negative label": changed(good, y_train=np.where(labels == 3, -1, labels)),
        "label beyond the classes": changed(good, y_train=np.where(labels == 3, 9, labels)),
        "test label beyond the classes": changed(good, y_test=np.full(12, 4)),
        "too few writers": changed(good, writer_train=good["writer_train"][:-1]),
        "jpeg without offsets": changed(jpeg, offsets_train=None),
        "jpeg shorter than its offsets": changed(jpeg, jpeg_train=jpeg["jpeg_train"][:-5]),
        "jpeg not bytes": changed(jpeg, jpeg_train=jpeg["jpeg_train"].astype(np.int32)),
        "no offsets at all": changed(jpeg, offsets_train=offsets[:0], y_train=labels[:0]),
        "one offset": changed(jpeg, offsets_test=np.array([0]), y_test=labels[:0]),
        "float offsets": changed(jpeg, offsets_train=offsets.astype(float)),
        "falling offsets": changed(jpeg, offsets_train=offsets[::-1].copy()),
        "negative offsets": changed(jpeg, offsets_train=offsets - 10),
    }
    return cases[kind]


KINDS = [
    "no images",
    "no test images",
    "images without colour axis of 3",
    "flat images",
    "float images",
    "int64 images",
    "no image at all",
    "no labels",
    "too few labels",
    "labels in a column",
    "float labels",
    "negative label",
    "label beyond the classes",
    "test label beyond the classes",
    "too few writers",
    "jpeg without offsets",
    "jpeg shorter than its offsets",
    "jpeg not bytes",
    "no offsets at all",
    "one offset",
    "float offsets",
    "falling offsets",
    "negative offsets",
]


@pytest.mark.parametrize("kind", KINDS)
def test_bad_arrays_are_refused(tmp_path: Path, kind: str) -> None:
    """One line that names key and file and what is allowed."""
    path = write(tmp_path / "d.npz", bad_fields(kind))
    with pytest.raises(ValueError, match="dataset = ") as error:
        open_source(path, 0)
    message = str(error.value)
    assert message.startswith(f"dataset = {path!r}: ")
    assert "must" in message or "needs" in message
    assert "\n" not in message


def test_a_label_outside_the_classes_is_named(tmp_path: Path) -> None:
    """The label, the part, and the range."""
    path = write(tmp_path / "d.npz", bad_fields("label beyond the classes"))
    with pytest.raises(ValueError, match=r"y_train has the label 9; with 4 classes .* 0 to 3"):
        open_source(path, 0)


def unreadable(kind: str, path: Path) -> None:
    np.savez_compressed(path, **arrays())  # type: ignore[arg-type]
    content = path.read_bytes()
    middle = len(content) // 2
    replacements = {
        "truncated": content[:-30],
        "half": content[:middle],
        "flipped bytes": content[: middle - 99] + bytes(200) + content[middle + 101 :],
        "text": b"x_train,y_train\n1,2\n",
        "no bytes": b"",
        "pickle": pickle.dumps({"x_train": 3}),
    }
    if kind in replacements:
        path.write_bytes(replacements[kind])
    elif kind == "a single array":
        with path.open("wb") as file:
            np.save(file, np.zeros((3, 8, 8), np.uint8))
    else:
        np.savez(path, x_train=np.array([None, {}]))


@pytest.mark.parametrize(
    "kind",
    [
        "truncated",
        "half",
        "flipped bytes",
        "text",
        "no bytes",
        "pickle",
        "a single array",
        "objects",
    ],
)
@pytest.mark.parametrize("key", ["dataset", "public-data", "data"])
def test_unreadable_files_are_refused(tmp_path: Path, kind: str, key: str) -> None:
    """Truncated, corrupt, not an archive: one message, whoever reads."""
    path = tmp_path / "d.npz"
    unreadable(kind, path)
    with pytest.raises(ValueError, match=r"not a readable \.npz file") as error:
        READERS[key](str(path))
    assert str(error.value).startswith(f"{key} = {str(path)!r}: ")


def test_missing_files_are_named(tmp_path: Path) -> None:
    """Key, value and what is wrong."""
    path = str(tmp_path / "absent.npz")
    with pytest.raises(ValueError, match=r"^dataset = .*absent\.npz': no such file"):
        open_source(path, 0)
    with pytest.raises(ValueError, match=r"^public-data = .*absent\.npz': no such file"):
        load_public_images(path)
    with pytest.raises(ValueError, match=r"^data = .*absent\.npz': no such file"):
        read_images(path)
    with pytest.raises(ValueError, match=r"^dataset = 'nonsense': no such file"):
        open_source("nonsense", 0)


def test_a_broken_jpeg_is_named(tmp_path: Path) -> None:
    """Bytes that are no image are found when they are decoded."""
    fields = as_jpeg(arrays())
    fields["jpeg_train"] = np.zeros_like(fields["jpeg_train"])
    source = open_source(write(tmp_path / "d.npz", fields), 0)
    with pytest.raises(ValueError, match=r"dataset = .*cannot be decoded"):
        source.train_images(np.array([0]))


def test_read_images(tmp_path: Path) -> None:
    """``x`` with or without ``y``."""
    x, y = arrays()["x_test"], arrays()["y_test"].astype(np.uint8)
    images, labels = read_images(write(tmp_path / "a.npz", {"x": x, "y": y}))
    np.testing.assert_array_equal(images, x)
    np.testing.assert_array_equal(labels, y)
    assert labels is not None
    assert labels.dtype == np.int64
    assert read_images(write(tmp_path / "b.npz", {"x": x}))[1] is None
    bads: list[Arrays] = [
        {"y": y},
        {"x": x / 255, "y": y},
        {"x": x, "y": y[:-1]},
        {"x": x, "y": y / 2},
    ]
    for bad in bads:
        with pytest.raises(ValueError, match="data = "):
            read_images(write(tmp_path / "c.npz", bad))


def test_public_images(tmp_path: Path) -> None:
    """None, the digits' public part, or all training images of a file without labels."""
    assert load_public_images("none") is None
    public = load_public_images("digits")
    assert public is not None
    np.testing.assert_array_equal(public, digits.load()[0][: digits.PUBLIC_IMAGES])
    x = arrays()["x_train"]
    images = load_public_images(write(tmp_path / "p.npz", {"x_train": x}))
    np.testing.assert_array_equal(images, x)


def test_digits_parts_are_disjoint_and_complete() -> None:
    """Public, training and test images share no position of the shuffled digits."""
    images, labels = digits.load()
    source = open_source("digits", 3)
    train = source.train_images(np.arange(len(source.train_labels)))
    test = source.test_images(np.arange(len(source.test_labels)))
    assert len(test) == digits.TEST_IMAGES
    assert len(train) + len(test) + digits.PUBLIC_IMAGES == len(images) == 1797
    assert source.classes == 10

    def keys(some: NDArray[np.uint8], their: NDArray[np.int64]) -> list[bytes]:
        return [i.tobytes() + bytes([y]) for i, y in zip(some, their, strict=True)]

    rest = slice(digits.PUBLIC_IMAGES, None)
    together = keys(train, source.train_labels) + keys(test, source.test_labels)
    assert sorted(together) == sorted(keys(images[rest], labels[rest]))
    other = open_source("digits", 4)
    assert not np.array_equal(other.test_labels, source.test_labels)


def test_real_files(shared_data: Path) -> None:
    """The formats of the shared data."""
    cifar = open_source(str(shared_data / "cifar10_jpegbytes.npz"), 0)
    assert (len(cifar.train_labels), len(cifar.test_labels), cifar.classes) == (50_000, 10_000, 10)
    assert cifar.train_images(np.array([0, 49_999])).shape == (2, 32, 32, 3)
    writers = open_source(str(shared_data / "mnist_writers.npz"), 0)
    assert writers.writers is not None
    assert len(np.unique(writers.writers)) == 539
    public = load_public_images(str(shared_data / "public_natural_2000.npz"))
    assert public is not None
    assert public.shape == (2000, 32, 32, 3)


# --- Hugging Face ----------------------------------------------------------------------------


def fake_split(count: int, first: int, image: str, label: str, writers: bool) -> datasets.Dataset:
    """Images whose grey value is their number; label and writer follow from the number."""
    numbers = range(first, first + count)
    columns: dict[str, Any] = {
        image: [Image.fromarray(np.full((8, 8, 3), n, dtype=np.uint8)) for n in numbers],
        label: [n % 4 for n in numbers],
    }
    kinds: dict[str, Any] = {
        image: datasets.Image(),
        label: datasets.ClassLabel(names=["a", "b", "c", "d"]),
    }
    if writers:
        columns["writer_id"] = [f"f{n % 7:04d}" for n in numbers]
        kinds["writer_id"] = datasets.Value("string")
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def fake_hub(monkeypatch: pytest.MonkeyPatch, **splits: datasets.Dataset) -> list[str]:
    """Replace the hub; returns the list of names that are asked for."""
    asked: list[str] = []

    def load_dataset(name: str) -> datasets.DatasetDict:
        asked.append(name)
        return datasets.DatasetDict(splits)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def test_a_hub_data_set_like_cifar10(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are found by their type, parts by their name."""
    asked = fake_hub(
        monkeypatch,
        train=fake_split(30, 0, "img", "label", False),
        test=fake_split(10, 100, "img", "label", False),
    )
    source = open_source(HUB, 0)
    assert asked == ["some/images"]
    assert source.writers is None
    assert source.classes == 4
    np.testing.assert_array_equal(source.train_labels, np.arange(30) % 4)
    images = source.train_images(np.array([17, 3]))
    assert images.shape == (2, 8, 8, 3)
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images[:, 0, 0, 0], [17, 3])
    np.testing.assert_array_equal(
        source.test_images(np.arange(10))[:, 0, 0, 1], 100 + np.arange(10)
    )


def test_a_hub_data_set_like_femnist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a test split a fixed tenth is held back; writers stay with their images."""
    fake_hub(monkeypatch, train=fake_split(120, 0, "image", "character", True))
    source = open_source(HUB, 0)
    train = source.train_images(np.arange(len(source.train_labels)))[:, 0, 0, 0].astype(int)
    test = source.test_images(np.arange(len(source.test_labels)))[:, 0, 0, 0].astype(int)
    assert (len(train), len(test)) == (108, 12)
    assert sorted([*train, *test]) == list(range(120))
    np.testing.assert_array_equal(source.train_labels, train % 4)
    np.testing.assert_array_equal(source.test_labels, test % 4)
    assert source.writers is not None
    assert source.writers.tolist() == [f"f{n % 7:04d}" for n in train]
    again = open_source(HUB, 9)
    np.testing.assert_array_equal(again.train_labels, source.train_labels)


def test_public_images_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlabelled use of a data set's training images."""
    fake_hub(monkeypatch, train=fake_split(20, 0, "image", "label", False))
    images = load_public_images("some/images")
    assert images is not None
    np.testing.assert_array_equal(images[:, 0, 0, 0], np.arange(20))


def test_a_hub_data_set_without_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names what is missing."""
    fake_hub(monkeypatch, train=datasets.Dataset.from_dict({"text": ["a"] * 20}))
    with pytest.raises(ValueError, match="has no column of type Image"):
        open_source(HUB, 0)


@pytest.mark.parametrize("key", ["dataset", "public-data"])
def test_without_a_hub_the_error_says_what_to_download(key: str) -> None:
    """The test session is offline (HF_HUB_OFFLINE in conftest.py), so this never waits."""
    with pytest.raises(ValueError, match="hub") as error:
        READERS[key]("uoft-cs/cifar10")
    message = str(error.value)
    assert message.startswith(f"{key} = 'uoft-cs/cifar10': could not be had")
    assert "huggingface-cli download --repo-type dataset uoft-cs/cifar10" in message
    assert "~/.cache/huggingface" in message
    assert f"set {key} to a local .npz file" in message
    assert "\n" not in message
