"""Flower entry point: dispatches to the app that the run-config key ``app`` names.

Flower reads the two components as plain assignments. Each process must run the code of the bundle
that was submitted; a local SuperLink started inside a checkout makes workers import from there.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import strategies
from strategies.wire import QUERY_CLIENTS

APPS = {"pina": "pina_app"}

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
    _component(context, "server_app")(grid, context)


@client_app.query(QUERY_CLIENTS)
def query(message: Message, context: Context) -> Message:
    """Pass the query on to the chosen app."""
    return _component(context, "client_app")(message, context)  # type: ignore[no-any-return]


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Pass the request on to the chosen app."""
    return _component(context, "client_app")(message, context)  # type: ignore[no-any-return]


def _component(context: Context, module: str) -> Any:
    name = str(context.run_config.get("app"))
    if name not in APPS:
        raise ValueError(f"app = {name!r}: must be one of {', '.join(APPS)}")
    return import_module(f"{APPS[name]}.{module}").app
