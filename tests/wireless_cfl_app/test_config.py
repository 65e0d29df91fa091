"""Settings: ranges, combinations, presets."""

from typing import Any

import pytest

from app_kit.run_config import Scalar, read_preset
from wireless_cfl_app.config import PRESETS, WirelessConfig, from_run_config

PRESET_NAMES = sorted(file.stem for file in PRESETS.glob("*.toml"))


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("method", "best", "one of ('proposed', 'random', 'similarity', 'fedavg')"),
        ("devices", 0, ">= 1"),
        ("capacity", 0, ">= 1"),
        ("iterations", 0, ">= 1"),
        ("plan-sweeps", 0, ">= 1"),
        ("gradient-sketch", -1, ">= 0"),
        ("images-per-client", -1, ">= 0"),
        ("radius-m", 0.0, "> 0"),
        ("learning-rate", -0.1, "> 0"),
        ("dirichlet-alpha", 0.0, "> 0"),
        ("candidates", 101, "in [0, devices = 100] (0: all devices)"),
        ("alpha", 1.5, "in [0, 1]"),
        ("weighting", "none", "one of ('paper', 'size')"),
        ("band", "wide", "one of ('per-device', 'shared')"),
        ("directions", "down", "one of ('uplink', 'both')"),
        ("seed", -1, ">= 0 or 'none'"),
        ("classes", 1, ">= 2 or 'none'"),
        (
            "image-shape",
            "28x28",
            "HEIGHTxWIDTHxCHANNELS with 1 or 3 channels, as '28x28x1', or 'none'",
        ),
    ],
)
def test_a_value_out_of_range_is_named_with_what_is_allowed(
    key: str, value: Scalar, allowed: str
) -> None:
    with pytest.raises(ValueError, match="must be") as error:
        from_run_config({key: value})
    assert str(error.value) == f"{key} = {value!r}: must be {allowed}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 0.6}, "beta = 0.6: must be 1 - alpha = 0.5"),
        ({"tau1": 2, "tau2": 3}, "tau2 = 3: must be a multiple of tau1 = 2"),
        ({"iterations": 5}, "iterations = 5: must be a multiple of 2"),
        ({"iterations": 5, "method": "fedavg", "tau1": 3, "tau2": 3}, "must be a multiple of 3"),
        ({"bandwidth-hz": 0.0}, "bandwidth_hz = 0.0: must be > 0"),
        ({"noise-dbm-per-hz": "loud"}, "noise-dbm-per-hz = 'loud': must be of type float"),
        ({"partitioner": "iid"}, "partitioner = 'iid': unknown key"),
        ({"classes": 10}, "classes = 10: needs simulation = false"),
        ({"image-shape": "8x8x1"}, "image-shape = '8x8x1': needs simulation = false"),
        ({"simulation": False, "classes": 10}, "classes = 10, image-shape = None: give both"),
        ({"simulation": False}, "seed = 0: must be 'none' with simulation = false"),
        ({"simulation": False, "seed": "none"}, "positions = 'none': simulation = false needs"),
    ],
)
def test_combinations_that_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"must be|unknown key|needs|give both") as error:
        from_run_config(settings)
    assert message in str(error.value)


def test_beta_may_be_given_if_it_agrees_with_alpha() -> None:
    assert from_run_config({"alpha": 0.3, "beta": 0.7}).alpha == 0.3
    assert from_run_config({"iterations": 5, "method": "fedavg"}).iterations == 5


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_presets_survive_the_way_to_disk_and_back(name: str) -> None:
    values = read_preset(PRESETS, name)
    config = from_run_config({**WirelessConfig().to_run_config(), "preset": name})
    resolved = config.to_run_config()
    assert {key: resolved[key] for key in values} == values
    assert from_run_config(resolved) == config


def test_the_papers_numbers_are_the_defaults() -> None:
    """Section 5: 100 devices in 100 m, server at 1 km, 1 MHz, 10 mW, -173 dBm/Hz, tau 1 and 2."""
    assert {"digits", "fashion_mnist", "cifar10"} <= set(PRESET_NAMES)
    for name in ("fashion_mnist", "cifar10"):
        config = from_run_config({"preset": name})
        assert (config.devices, config.radius_m, config.server_x_m) == (100, 100.0, 1000.0)
        assert (config.bandwidth_hz, config.transmit_power_w) == (1e6, 0.01)
        assert (config.noise_dbm_per_hz, config.dirichlet_alpha) == (-173.0, 0.5)
        assert (config.tau1, config.tau2, config.iterations) == (1, 2, 200)
        assert (config.batch_size, config.learning_rate, config.alpha) == (32, 0.01, 0.5)
