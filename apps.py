"""Flower entry point: dispatches to the app that the run-config key ``app`` names.

Flower reads the two components as plain assignments. Each process must run the code of the bundle
that was submitted; a local SuperLink started inside a checkout makes workers import from there.
"""

from collections.abc import Mapping
from copy import copy
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import strategies
from app_kit.run_config import Scalar
from strategies.wire import QUERY_CLIENTS

APPS = {"pina": "pina_app", "wireless": "wireless_cfl_app"}

_HERE = Path(__file__).resolve().parent
_FOUND = Path(strategies.__file__).resolve().parent.parent
if _FOUND != _HERE:
    raise ImportError(
        f"this app lies in {_HERE}, but `strategies` was imported from {_FOUND}. The local "
        "SuperLink was probably started inside a checkout: stop it (flower-superlink) and use "
        "`python -m pina_app run`, or start it from another directory"
    )

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the ServerApp of the chosen app."""
    _component(context, "server_app")(grid, _own(context))


@client_app.query(QUERY_CLIENTS)
def query(message: Message, context: Context) -> Message:
    """Pass the query on to the chosen app."""
    return _component(context, "client_app")(message, _own(context))  # type: ignore[no-any-return]


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Pass the request on to the chosen app."""
    return _component(context, "client_app")(message, _own(context))  # type: ignore[no-any-return]


def _component(context: Context, module: str) -> Any:
    name = str(context.run_config.get("app"))
    if name not in APPS:
        raise ValueError(f"app = {name!r}: must be one of {', '.join(APPS)}")
    return import_module(f"{APPS[name]}.{module}").app


def _own(context: Context) -> Context:
    """The context with the chosen app's settings; Flower forbids changing the given one."""
    own = copy(context)  # shallow: the node's state stays the same object
    own.run_config = own_settings(str(context.run_config["app"]), context.run_config)
    return own


def own_settings(name: str, run_config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The run config without the keys that only other apps have.

    Raises
    ------
    ValueError
        If such a key was changed: it would do nothing.
    """
    own, *others = sorted(APPS, key=lambda app: app != name)
    known = defaults(own)
    foreign = {key: value for app in others for key, value in defaults(app).items()}
    kept = {}
    for key, value in run_config.items():
        if key == "app" or key in known or key not in foreign:
            kept[key] = value
        elif value != foreign[key]:
            raise ValueError(f"{key} = {value!r}: app = {name!r} has no such setting")
    return kept


@cache
def defaults(name: str) -> dict[str, Scalar]:
    """Settings of an app, as ``pyproject.toml`` lists them."""
    config = import_module(f"{APPS[name]}.config").from_run_config({})
    return config.to_run_config()  # type: ignore[no-any-return]
