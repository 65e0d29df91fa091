"""The entry point of both apps: settings, dispatch."""

import tomllib

import pytest
from flwr.app import Context, RecordDict

import apps
from app_kit.in_process_grid import InProcessGrid
from pina_app.config import PinaConfig
from tests.conftest import REPOSITORY
from wireless_cfl_app.config import WirelessConfig


def test_pyproject_holds_the_defaults_of_both_apps() -> None:
    """Flower refuses keys that are not in pyproject.toml; a shared key has one default."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    listed = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    assert listed.pop("app") == "pina"
    pina, wireless = PinaConfig().to_run_config(), WirelessConfig().to_run_config()
    assert listed == {**pina, **wireless} == {**wireless, **pina}
    # TOML's types count, too: Flower insists on the type of the default.
    defaults = {**pina, **wireless}
    assert {k: type(v) for k, v in listed.items()} == {k: type(v) for k, v in defaults.items()}


def test_an_app_gets_its_own_settings_only() -> None:
    both = {**PinaConfig().to_run_config(), **WirelessConfig().to_run_config()}
    given = {**both, "app": "wireless", "tau2": 4, "seed": 3}
    own = apps.own_settings("wireless", given)
    assert own == {**WirelessConfig().to_run_config(), "app": "wireless", "tau2": 4, "seed": 3}
    assert apps.own_settings("pina", {**both, "seed": 3}) == {
        **PinaConfig().to_run_config(),
        "seed": 3,
    }


@pytest.mark.parametrize(
    ("app", "key", "value"), [("pina", "tau2", 4), ("wireless", "epsilon", 8.0)]
)
def test_a_setting_of_the_other_app_is_refused(app: str, key: str, value: float) -> None:
    """It would do nothing."""
    both = {**PinaConfig().to_run_config(), **WirelessConfig().to_run_config()}
    with pytest.raises(ValueError, match=f"{key} = {value}: app = '{app}' has no such setting"):
        apps.own_settings(app, {**both, key: value})


def test_an_unknown_key_reaches_the_app_which_names_it() -> None:
    assert apps.own_settings("pina", {"epsilonn": 3}) == {"epsilonn": 3}


def test_an_unknown_app_is_refused() -> None:
    grid = InProcessGrid(apps.client_app, 1)
    context = Context(
        run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={"app": "other"}
    )
    with pytest.raises(ValueError, match="app = 'other': must be one of pina, wireless"):
        apps.server_app(grid, context)
