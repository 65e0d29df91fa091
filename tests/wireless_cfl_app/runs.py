"""Whole runs of the wireless app in this process."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

import apps
from app_kit.in_process_grid import InProcessGrid
from app_kit.run_config import Scalar
from wireless_cfl_app.config import WirelessConfig, from_run_config

TINY: dict[str, Scalar] = {
    "devices": 12,
    "clients-per-node": 4,
    "capacity": 4,
    "images-per-client": 20,
    "test-images": 60,
    "iterations": 4,
    "plan-sweeps": 5,
}


def run_app(
    run_dir: Path,
    settings: Mapping[str, Scalar] | None = None,
    wrap: Callable[[Message, Context], Message] | None = None,
    fail: Callable[[Message], bool] = lambda message: False,
) -> InProcessGrid:
    """Run the app that `flwr run` would run; returns the grid with all replies."""
    values: dict[str, Scalar] = {
        **WirelessConfig().to_run_config(),
        **TINY,
        "app": "wireless",
        "run-dir": str(run_dir),
        **(settings or {}),
    }
    config = from_run_config(values)
    grid = InProcessGrid(wrap or apps.client_app, config.nodes, values, fail=fail)
    context = Context(run_id=7, node_id=0, node_config={}, state=RecordDict(), run_config=values)
    apps.server_app(grid, context)
    return grid


def summary(run_dir: Path) -> dict[str, Any]:
    """The summary of a run's one method."""
    (entry,) = json.loads((run_dir / "summary.json").read_text())
    return dict(entry)
