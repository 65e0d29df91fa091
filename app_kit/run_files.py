"""Files that every run directory has besides its record: resolved settings and summary."""

import json
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from app_kit.run_config import Scalar
from strategies.checkpoint import RunDirectory, write_atomically

CONFIG = "config.toml"
SUMMARY = "summary.json"
MAY_CHANGE = ("app", "resume", "run-dir", "preset", "round-timeout-s")
"""Settings that a resumed run of any app may change: its results do not depend on them."""


def write_config(path: Path, app: str, values: Mapping[str, Scalar]) -> None:
    """The resolved settings as TOML, which Flower takes as run config."""
    write_atomically(path / CONFIG, tomli_w.dumps({"app": app, **values}).encode())


def read_config(path: Path) -> dict[str, Any]:
    """Inverse of ``write_config``.

    Raises
    ------
    ValueError
        If the directory is not that of a run.
    """
    file = path / CONFIG
    if not file.is_file():
        raise ValueError(f"{path}: not a run directory (it has no {CONFIG})")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def check_same_run(
    directory: RunDirectory,
    app: str,
    values: Mapping[str, Scalar],
    may_change: Collection[str] = MAY_CHANGE,
) -> None:
    """Refuse to mix two runs in one directory.

    Raises
    ------
    ValueError
        If there are rounds already and ``resume`` is false, or the settings have changed: a run's
        results, and its privacy account, hold for its own settings only.
    """
    if not directory.rounds_path.exists() and not directory.ledger_path.exists():
        return
    if not values["resume"]:
        raise ValueError(
            f"run-dir = '{directory.path}': holds a run already; `python -m {app} resume "
            f"{directory.path}` goes on with it"
        )
    saved = read_config(directory.path)
    changed = [
        f"{key} = {value!r} (was {saved.get(key)!r})"
        for key, value in values.items()
        if saved.get(key) != value and key not in may_change
    ]
    if changed:
        raise ValueError(f"{directory.path}: cannot be resumed with {', '.join(changed)}")


def read_summary(path: Path) -> list[dict[str, Any]]:
    """Objects of the methods that have ended."""
    file = path / SUMMARY
    return list(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []


def put_summary(path: Path, entry: Mapping[str, Any]) -> None:
    """Add (or replace) one method's object in ``summary.json``."""
    others = [other for other in read_summary(path) if other["method"] != entry["method"]]
    content = json.dumps([*others, entry], indent=2) + "\n"
    write_atomically(path / SUMMARY, content.encode())
