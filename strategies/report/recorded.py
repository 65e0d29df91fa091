"""What a run directory has recorded, checked and made printable, while the run goes on too."""

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strategies import run_record, traffic
from strategies.report.columns import Row

RADIO = ("uplink_j", "relay_j", "downlink_j", "delay_s")
NUMBERS = (
    *("accuracy_mean", "ari", "epsilon_outside", "epsilon_server", "epsilon_real_cohort"),
    *("delta", "noise_cohort_size", "rounds", "seconds"),
    *("clusters", "energy_j", *RADIO, "planning_j", "label_divergence"),
)
BYTES = (*traffic.PER_NODE, *traffic.TOTALS)
LATEST = (
    *("accuracy_mean", "accuracy_per_cluster", "ari"),
    *("epsilon_outside", "epsilon_real_cohort"),
)


class ReportError(ValueError):
    """A run directory that cannot be read; the message says what and how to mend it."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory's content; ``summary`` has a row a method, finished or not."""

    path: Path
    name: str
    config: dict[str, Any]
    lines: list[dict[str, Any]]
    summary: list[dict[str, Any]]


def read_run(run_dir: Path) -> Run:
    """Read a run directory; methods without a summary get the last values of their rounds.

    Raises
    ------
    ReportError
        If the directory is not that of a run, or a file in it is damaged.
    """
    if not run_dir.is_dir():
        raise ReportError(f"{run_dir}: no such directory; give a run's directory, as runs/<id>")
    rounds, config_path = run_dir / "rounds.jsonl", run_dir / "config.toml"
    summary_path = run_dir / "summary.json"
    if not rounds.is_file():
        raise ReportError(f"{run_dir}: has no rounds.jsonl; give the directory of a started run")
    lines = _read_json(rounds, "remove the damaged line")
    mend = "remove it to report from rounds.jsonl alone"
    summary = _read_json(summary_path, mend) if summary_path.exists() else []
    try:
        config = tomllib.loads(config_path.read_text("utf-8")) if config_path.exists() else {}
    except ValueError as error:
        raise ReportError(f"{config_path}: not TOML ({error}); mend or remove it") from None
    config = printable(config)
    done = {row["method"] for row in summary}
    running = [name for name in dict.fromkeys(li["method"] for li in lines) if name not in done]
    unfinished = [_so_far([li for li in lines if li["method"] == m], config) for m in running]
    return Run(run_dir, printable(run_dir.resolve().name), config, lines, summary + unfinished)


def _read_json(path: Path, mend: str) -> list[dict[str, Any]]:
    """Entries of rounds.jsonl or summary.json, checked."""
    try:
        if path.suffix == ".jsonl":
            entries = run_record.read(path)
        else:
            entries = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ReportError(f"{path}: not JSON at {error.doc[:60]!r} ({error.msg}); {mend}") from None
    except UnicodeDecodeError:
        raise ReportError(f"{path}: not UTF-8 text; {mend}") from None
    if not isinstance(entries, list):
        raise ReportError(f"{path}: not a list of results; {mend}")
    for number, entry in enumerate(entries, start=1):
        try:
            _check(entry, with_round=path.suffix == ".jsonl")
        except ValueError as error:
            raise ReportError(f"{path}: entry {number}: {error}; {mend}") from None
    return [printable(entry) for entry in entries]


def _check(entry: Any, with_round: bool) -> None:
    """Raise unless everything that will be printed has its type."""
    if not isinstance(entry, dict) or not isinstance(entry.get("method"), str):
        raise ValueError("not an object with a method")
    if with_round and type(entry.get("round")) is not int:
        raise ValueError("without a whole round")
    per_cluster, notes = entry.get("accuracy_per_cluster"), entry.get("notes")
    if not isinstance(per_cluster, list | None) or not isinstance(notes, list | None):
        raise ValueError("accuracy_per_cluster and notes must be lists or null")
    if not all(isinstance(entry.get(key), int | None) for key in BYTES):
        raise ValueError("bytes must be whole numbers or null")
    for value in [*(entry.get(key) for key in NUMBERS), *(per_cluster or [])]:
        try:
            float(0 if value is None else value)
        except (ValueError, TypeError):
            raise ValueError(f"{value!r} is not a number") from None


def printable(value: Any) -> Any:
    """The same with control characters, which terminals obey and XML forbids, as spaces."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else " " for c in value)
    if isinstance(value, list):
        return [printable(item) for item in value]
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    return value


def _so_far(lines: Sequence[Row], config: Mapping[str, Any]) -> dict[str, Any]:
    """A summary row of a method that has not finished."""
    row: dict[str, Any] = {"method": lines[0]["method"], "finished": False}
    for key in LATEST:
        row[key] = next((li[key] for li in reversed(lines) if li.get(key) is not None), None)
    cohort = config.get("noise-cohort-size")
    row["noise_cohort_size"] = cohort if isinstance(cohort, int) else None
    row["seeded"] = config.get("simulation") is True and config.get("seed", "none") != "none"
    row["private"] = config.get("private")
    row["public_data"] = config.get("public-data")
    if any(RADIO[0] in li for li in lines):
        spent = [li for li in lines if li.get("phase") == "train"]
        row |= {key: sum(float(li.get(key) or 0) for li in spent) for key in RADIO}
        row["energy_j"] = sum(row[key] for key in RADIO if key.endswith("_j"))
        row["private"] = False
    row |= traffic.of_run(lines)
    row["rounds"] = lines[-1]["round"]
    row["seconds"] = sum(float(li.get("seconds") or 0) for li in lines)
    return row
