"""The run configuration: defaults, presets, and one clear message for every bad value."""

import dataclasses
import math
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_kit.run_config import Scalar, key_of, read_preset
from pina_app.config import PRESETS, PinaConfig, from_run_config

PRESET_NAMES = sorted(file.stem for file in PRESETS.glob("*.toml"))


def test_defaults_from_an_empty_run_config() -> None:
    """No key is needed, and the app's own key is passed over."""
    assert from_run_config({}) == from_run_config({"app": "pina"}) == PinaConfig()


def test_a_list_of_one_number_needs_no_quotes() -> None:
    """``rotations=0`` on a command line is a number to TOML."""
    config = from_run_config({"rotations": 0, "rotation-shares": 1.5, "clusters": 1})
    assert (config.rotation_list, config.share_list) == ([0], [1.5])


# (key, value, what the message must say is allowed)
OUT_OF_RANGE: list[tuple[str, Scalar, str]] = [
    ("epsilon", 0.0, "> 0 or 'none'"),
    ("epsilon", -1.0, "> 0 or 'none'"),
    ("noise-multiplier", 0.0, "> 0 or 'none'"),
    ("init-noise-multiplier", -0.5, "> 0 or 'none'"),
    ("q", 0.0, "in (0, 1]"),
    ("q", -0.1, "in (0, 1]"),
    ("q", 1.0000001, "in (0, 1]"),
    ("init-q", 0.0, "in (0, 1]"),
    ("init-q", 2.0, "in (0, 1]"),
    ("clusters", 0, "in [1, clients = 50]"),
    ("clusters", -2, "in [1, clients = 50]"),
    ("clusters", 51, "in [1, clients = 50]"),
    ("rounds", 0, ">= 1"),
    ("rounds", -3, ">= 1"),
    ("clients", 0, ">= 1"),
    ("clients-per-node", 0, ">= 1"),
    ("epochs", 0, ">= 1"),
    ("batch-size", 0, ">= 1"),
    ("images-per-client", -1, ">= 0"),
    ("augmented-copies", -1, ">= 0"),
    ("test-images", -1, ">= 0"),
    ("image-size", -1, ">= 0"),
    ("equal-norm-rounds", -1, ">= 0"),
    ("embedding-size", -1, ">= 0"),
    ("init-rounds", 1, ">= 2"),
    ("init-rounds", -1, "or 0"),
    ("whitening-damping", 0.0, "> 0"),
    ("clip", 0.0, "> 0"),
    ("clip", -1.0, "> 0"),
    ("learning-rate", 0.0, "> 0"),
    ("dirichlet-alpha", 0.0, "> 0"),
    ("round-timeout-s", 0.0, "> 0"),
    ("prototype-weight", -0.1, ">= 0"),
    ("server-momentum", 1.0, "in [0, 1)"),
    ("server-momentum", -0.1, "in [0, 1)"),
    ("init-share", 0.0, "in (0, 1) or 'none'"),
    ("init-share", 1.0, "in (0, 1) or 'none'"),
    ("max-participations", 0, ">= 1 or 'none'"),
    ("noise-cohort-size", 0, ">= 1 or 'none'"),
    ("seed", -1, ">= 0 or 'none'"),
    ("methods", "", "pina"),
    ("methods", "pina,pina", "without repetition"),
    ("methods", "pina,other", "oracle"),
    ("rotation-shares", "9", "a number > 0 for each rotation"),
    ("rotation-shares", "9,0", "a number > 0 for each rotation"),
    ("rotation-shares", "9,x", "a number > 0 for each rotation"),
    ("held-out", 1.0, "in [0, 1)"),
    ("proximal-mu", -1.0, ">= 0"),
    ("smallest-share", 1.5, "in [0, 1]"),
    ("rotations", "0,45", "0, 90, 180, 270"),
    ("rotations", "0,0", "0, 90, 180, 270"),
    ("rotations", "", "0, 90, 180, 270"),
    ("partitioner", "random", "dirichlet"),
    ("trainable", "all", "lora+head"),
    ("device", "tpu", "cuda"),
    ("init", "kmeans", "secure-kmeans"),
    ("init", "kmeans", "auto"),
    ("rescale", "half", "count"),
    ("skip", "never", "energy"),
    ("release", "sketch", "slots"),
    ("release", "sketch", "coded"),
    ("epsilon-for", "me", "outside"),
    ("secure-sum", "secagg", "trusted"),
]


@pytest.mark.parametrize(("key", "value", "allowed"), OUT_OF_RANGE)
def test_a_value_out_of_range_names_key_value_and_what_is_allowed(
    key: str, value: Scalar, allowed: str
) -> None:
    """All in one line."""
    with pytest.raises(ValueError, match="must be") as error:
        from_run_config({key: value})
    message = str(error.value)
    assert message.startswith(f"{key} = {value!r}: must be ")
    assert allowed in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("q", 1.0),
        ("clusters", 50),
        ("rounds", 1),
        ("init-rounds", 2),
        ("init-rounds", 0),
        ("prototype-weight", 0.0),
        ("server-momentum", 0.0),
        ("max-participations", 1),
        ("noise-cohort-size", 1),
        ("seed", 0),
        ("epsilon", 1e-3),
    ],
)
def test_the_ends_of_the_ranges_are_allowed(key: str, value: Scalar) -> None:
    """The messages state the ranges exactly."""
    config = from_run_config({key: value})
    assert config.to_run_config()[key] == value


WRONG_TYPES: list[tuple[str, Any, str]] = [
    ("rounds", 1.0, "int"),
    ("rounds", "40", "int"),
    ("rounds", True, "int"),
    ("clip", "1", "float"),
    ("clip", True, "float"),
    ("epsilon", "two", "float or 'none'"),
    ("seed", 0.0, "int or 'none'"),
    ("private", 1, "bool"),
    ("private", "true", "bool"),
    ("dataset", True, "str"),
    ("rounds", "none", "int"),
    ("clip", "none", "float"),
]


@pytest.mark.parametrize(("key", "value", "kind"), WRONG_TYPES)
def test_a_wrong_type_names_key_value_and_type(key: str, value: Any, kind: str) -> None:
    """A bool is no integer, "none" only stands where a value may be absent."""
    with pytest.raises(ValueError, match="must be of type") as error:
        from_run_config({key: value})
    assert str(error.value) == f"{key} = {value!r}: must be of type {kind}"


FLOATS = [
    f.name
    for f in dataclasses.fields(PinaConfig)
    if float in (typing.get_args(f.type) or (f.type,))  # optional floats and floats
]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", FLOATS)
def test_nan_and_infinity_are_refused(field: str, value: float) -> None:
    """TOML has both; no float setting may be either."""
    with pytest.raises(ValueError, match="must be finite") as error:
        from_run_config({key_of(field): value})
    assert str(error.value).startswith(f"{key_of(field)} = {value!r}: ")


def test_nan_and_infinity_cover_all_float_fields() -> None:
    """The list above is not empty by accident."""
    assert {"clip", "q", "epsilon", "noise_multiplier", "learning_rate"} <= set(FLOATS)


@pytest.mark.parametrize("key", ["epsilonn", "init_rounds", "Q", "", "epsilon "])
def test_an_unknown_key_is_named_with_the_known_ones(key: str) -> None:
    """Keys are kebab-case."""
    with pytest.raises(ValueError, match="unknown key") as error:
        from_run_config({key: 3})
    message = str(error.value)
    assert message.startswith(f"{key} = 3: unknown key; known keys: ")
    for known in PinaConfig().to_run_config():
        assert known in message


def test_an_unknown_preset_is_named_with_the_known_ones() -> None:
    """The file names without extension."""
    with pytest.raises(ValueError, match="preset = 'mnist'") as error:
        from_run_config({"preset": "mnist"})
    assert all(name in str(error.value) for name in PRESET_NAMES)
    with pytest.raises(ValueError, match="preset"):
        from_run_config({"preset": 3})
    with pytest.raises(ValueError, match="preset"):
        read_preset(PRESETS, "../config")


COMBINATIONS: list[tuple[dict[str, Scalar], str]] = [
    ({"epsilon": "none"}, "epsilon = 'none': a private run needs epsilon or noise-multiplier"),
    ({"simulation": False}, "seed = 0: must be 'none' with simulation = false"),
    ({"classes": 10}, "classes = 10: needs simulation = false"),
    (
        {"simulation": False, "seed": "none", "methods": "oracle"},
        "methods = 'oracle': needs simulation = true",
    ),
    ({"methods": "oracle", "clusters": 3}, "clusters = 3: the oracle method needs one cluster"),
    ({"model": "vit_tiny_patch16_224"}, "weights = 'digits'"),
    ({"dataset": "a.npz", "public-data": "none"}, "weights = 'digits'"),
    (
        {"dataset": "a.npz", "public-data": "none", "model": "vit_tiny_patch16_224"},
        "weights = 'digits'",
    ),
    ({"weights": "pretrained"}, "weights = 'pretrained': model = 'digits-vit' has none"),
    ({"dataset": "a.npz", "weights": "none"}, "public-data = 'digits': dataset = 'a.npz' needs"),
    ({"partitioner": "natural"}, "partitioner = 'natural': the digits have no writers"),
    ({"init": "lora-sketch", "trainable": "head"}, "trainable = 'head': init = 'lora-sketch'"),
]


@pytest.mark.parametrize(("values", "message"), COMBINATIONS)
def test_a_broken_combination_names_key_and_remedy(values: dict[str, Scalar], message: str) -> None:
    """One line that starts with the key."""
    with pytest.raises(ValueError, match=" = ") as error:
        from_run_config(values)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_private_false_needs_neither_epsilon_nor_noise() -> None:
    """The rule on epsilon is about private runs."""
    assert from_run_config({"private": False, "epsilon": "none"}).epsilon is None


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_presets_load_and_survive_the_way_to_disk_and_back(name: str) -> None:
    """What a preset says is what the configuration holds, also after a resume."""
    values = read_preset(PRESETS, name)
    config = from_run_config({**PinaConfig().to_run_config(), "preset": name})
    resolved = config.to_run_config()
    assert {key: resolved[key] for key in values} == values
    assert resolved["preset"] == name
    assert from_run_config(resolved) == config


def test_the_papers_presets_carry_the_papers_settings() -> None:
    """5,000 clients (2,840 writers), E = 10, batch 50, lr 0.01, ViT-Small at 224 px."""
    assert {"cifar10", "fashion_mnist", "femnist", "cifar10_small", "demo"} <= set(PRESET_NAMES)
    for name, clients, hub in (
        ("cifar10", 5000, "uoft-cs/cifar10"),
        ("fashion_mnist", 5000, "zalando-datasets/fashion_mnist"),
        ("femnist", 2840, "flwrlabs/femnist"),
    ):
        config = from_run_config({"preset": name})
        assert (config.clients, config.dataset) == (clients, hub)
        assert (config.epochs, config.batch_size, config.learning_rate) == (10, 50, 0.01)
        assert (config.image_size, config.weights) == (224, "pretrained")
        assert config.model.startswith("vit_small")
        assert config.noise_cohort_size == 10_000
    assert from_run_config({"preset": "femnist"}).partitioner == "natural"
    small = from_run_config({"preset": "cifar10_small"})
    assert (small.clients, small.images_per_client, small.image_size) == (1000, 10, 98)


def test_given_values_win_over_the_preset() -> None:
    """A preset fills only what was left at its default."""
    values = {**PinaConfig().to_run_config(), "preset": "cifar10", "rounds": 7}
    config = from_run_config(values)
    assert (config.rounds, config.clients) == (7, 5000)


FIELD_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "clients": st.integers(10, 99),
        "clients_per_node": st.integers(1, 120),
        "clusters": st.integers(1, 10),
        "q": st.floats(0, 1, exclude_min=True),
        "epsilon": st.none() | st.floats(0, 50, exclude_min=True),
        "noise_multiplier": st.just(1.5),
        "max_participations": st.none() | st.integers(1, 9),
        "noise_cohort_size": st.none() | st.integers(1, 9),
        "seed": st.none() | st.integers(0, 9),
        "private": st.booleans(),
    },
)


@given(FIELD_VALUES)
def test_run_config_round_trip(values: dict[str, Any]) -> None:
    """To run config and back, also through TOML's lack of a null, for whatever is valid."""
    if values.get("private", True):
        values.setdefault("noise_multiplier", 1.5)
    config = PinaConfig(**values)
    run_config = config.to_run_config()
    assert all(isinstance(value, bool | int | float | str) for value in run_config.values())
    assert from_run_config(run_config) == config
    # Nodes: as few as host all clients.
    assert config.nodes * config.clients_per_node >= config.clients
    assert (config.nodes - 1) * config.clients_per_node < config.clients


def test_integers_stand_for_floats() -> None:
    """``epsilon=8`` on a command line."""
    config = from_run_config({"epsilon": 8, "q": 1})
    assert isinstance(config.epsilon, float)
    assert isinstance(config.q, float)


def test_lists_and_seeds() -> None:
    """Spaces are allowed; a missing seed still gives a fixed partition."""
    config = PinaConfig(methods="pina, fedavg", rotations="0, 90", seed=None)
    assert config.method_list == ["pina", "fedavg"]
    assert config.rotation_list == [0, 90]
    assert config.partition_seed == 0
    assert PinaConfig(seed=5).partition_seed == 5


def test_a_configuration_cannot_change() -> None:
    """Whoever holds one may rely on it."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        PinaConfig().rounds = 3  # type: ignore[misc]
