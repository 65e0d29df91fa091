"""Reports from run records: a text table, plots and a static page.

``python -m strategies.report DIR`` rewrites the report of a run, also while the run goes on;
with ``--compare OUT.html`` several runs meet on one page.
"""

import argparse
import dataclasses
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strategies import run_record, traffic
from strategies.checkpoint import write_atomically
from strategies.report_columns import Row, as_text, columns
from strategies.report_map import network_maps
from strategies.report_page import Content, page, sentences
from strategies.report_plots import charts, png

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
PLOTS = ("accuracy", "ari", "epsilon", "energy")
LEAD = (
    "dataset",
    "devices",
    "alpha",
    "tau1",
    "tau2",
    "clients",
    "clusters",
    "q",
    "rounds",
    "init",
    "public-data",
    "private",
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
    config = _printable(config)
    done = {row["method"] for row in summary}
    running = [name for name in dict.fromkeys(li["method"] for li in lines) if name not in done]
    unfinished = [_so_far([li for li in lines if li["method"] == m], config) for m in running]
    return Run(run_dir, _printable(run_dir.resolve().name), config, lines, summary + unfinished)


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
    return [_printable(entry) for entry in entries]


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


def _printable(value: Any) -> Any:
    """The same with control characters, which terminals obey and XML forbids, as spaces."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else " " for c in value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
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


def table(summary: Sequence[Row]) -> str:
    """The results for a terminal, and the sentences that belong to them."""
    shown = columns(summary)
    rows = [[column.heading[line] for column in shown] for line in (0, 1)]
    rows += [[column.cell(row) for column in shown] for row in summary]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(2, ["-" * width for width in widths])
    text = [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*text, "", *sentences(summary)])


def write_report(run_dir: Path) -> str:
    """Write accuracy.png, energy.png, ... and report.html; return the text table.

    Raises
    ------
    ReportError
        If the run cannot be read.
    """
    run = read_run(run_dir)
    drawn = {chart.key: png(chart) for chart in charts(run.lines)}
    for key in PLOTS:
        (run_dir / f"{key}.png").unlink(missing_ok=True)
        if key in drawn:
            write_atomically(run_dir / f"{key}.png", drawn[key])
    settings = [f"{key} = {_setting(run.config[key])}" for key in LEAD if key in run.config]
    results = [
        f"{row['method']} {as_text(row.get('accuracy_mean'), '.1f', 100)} %" for row in run.summary
    ]
    unfinished = not run.summary or any(row.get("finished") is False for row in run.summary)
    lead = [
        "This run is not finished; the report shows what has been recorded so far."
        if unfinished
        else "This run is finished.",
        f"Settings: {', '.join(settings)}." if settings else "",
        f"Mean accuracy: {', '.join(results)}." if results else "",
    ]
    document = _page(f"Run {run.name}", " ".join(filter(None, lead)), [run], run)
    write_atomically(run_dir / "report.html", document.encode())
    return table(run.summary)


def write_comparison(run_dirs: Sequence[Path], out: Path) -> str:
    """Write one page about several runs; methods are named run/method. Return the text table."""
    runs = [read_run(path) for path in run_dirs]
    if len({run.name for run in runs}) < len(runs):
        runs = [
            dataclasses.replace(run, name=_printable(str(path)))
            for run, path in zip(runs, run_dirs, strict=True)
        ]
    merged = Run(Path(), "", {}, [], [])
    for run in runs:
        for target, source in ((merged.lines, run.lines), (merged.summary, run.summary)):
            target += [{**entry, "method": f"{run.name}/{entry['method']}"} for entry in source]
    names = ", ".join(run.name for run in runs)
    document = _page(f"Comparison of {len(runs)} runs", f"The runs: {names}.", runs, merged)
    write_atomically(out, document.encode())
    return table(merged.summary)


def _page(title: str, lead: str, runs: Sequence[Run], shown: Run) -> str:
    return page(
        Content(
            title=title,
            lead=lead,
            summary=shown.summary,
            charts=charts(shown.lines),
            maps=[found for run in runs for found in network_maps(run.path, run.name)],
            settings={
                run.name: {key: _setting(value) for key, value in run.config.items()}
                for run in runs
            },
        )
    )


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m strategies.report", description=__doc__)
    parser.add_argument("run_dirs", metavar="DIR", nargs="+", type=Path, help="runs/<id>")
    parser.add_argument("--compare", metavar="OUT.html", type=Path, help="page about all DIRs")
    options = parser.parse_args(arguments)
    run_dirs = list(dict.fromkeys(options.run_dirs))
    try:
        for run_dir in run_dirs:
            print(f"{write_report(run_dir)}\n\npage: {run_dir / 'report.html'}\n")
        if options.compare is not None:
            print(f"{write_comparison(run_dirs, options.compare)}\n\npage: {options.compare}")
    except ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}; choose another place", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
