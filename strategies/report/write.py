"""The files of a report, and the table for a terminal."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from strategies.checkpoint import write_atomically
from strategies.report.columns import Row, as_text, columns
from strategies.report.map import network_maps
from strategies.report.page import Content, page, sentences
from strategies.report.plots import charts, png
from strategies.report.recorded import Run, printable, read_run

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
            dataclasses.replace(run, name=printable(str(path)))
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
