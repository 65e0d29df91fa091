"""What the ``run`` and ``resume`` commands of every app do."""

import argparse
import contextlib
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from app_kit.run_config import Scalar
from app_kit.run_files import CONFIG, write_config
from app_kit.submit import follow, submit
from strategies.checkpoint import RunDirectory

DEFAULT_RUN_DIR = "runs"


def add_run_and_resume(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    run: Callable[[argparse.Namespace], int],
    resume: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Add the two commands; returns the parser of ``run`` for options of an app's own."""
    first = commands.add_parser("run", help="run a federation in Flower's simulation engine")
    first.add_argument("--preset", default="none", help="settings to start from (presets/)")
    first.add_argument("--data", type=Path, default=Path(), help="where relative data files lie")
    first.add_argument("--verbose", action="store_true", help="show Flower's whole log")
    first.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="overrides of settings")
    first.set_defaults(command=run)
    second = commands.add_parser("resume", help="go on from a run's last finished round")
    second.add_argument("run_dir", type=Path)
    second.add_argument("--verbose", action="store_true", help="show Flower's whole log")
    second.set_defaults(command=resume)
    return first


def parse(parser: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    """Parse a command line whose KEY=VALUE settings may stand anywhere among the options.

    argparse itself takes the settings only in one piece.
    """
    options, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(options, "settings") or any(a.startswith("-") for a in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.settings = [*options.settings, *rest]
    return options


def execute(parser: argparse.ArgumentParser, arguments: list[str] | None) -> int:
    """Parse and run one command (``options.command``); returns the exit status.

    Bad input is one line on standard error, whatever the message holds.
    """
    options = parse(parser, arguments)
    try:
        return int(options.command(options))
    except (ValueError, RuntimeError, OSError) as error:
        print("error:", *str(error).split(), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def with_absolute_paths(
    values: dict[str, Scalar], keys: tuple[str, ...], data: Path
) -> dict[str, Scalar]:
    """The settings with files found under ``data``: Flower runs in a directory of its own."""
    found = dict(values)
    for key in keys:
        file = data.expanduser() / str(values.get(key, ""))
        if key in values and file.is_file():
            found[key] = str(file.resolve())
    return found


def new_run_dir(app: str, run_dir: str, label: str) -> Path:
    """Where a new run goes.

    Raises
    ------
    ValueError
        If that directory holds a run already.
    """
    path = Path(run_dir).expanduser()
    if run_dir == DEFAULT_RUN_DIR:
        path = path / f"{datetime.now():%Y%m%d-%H%M%S}-{label}"
    if (path / CONFIG).exists():
        raise ValueError(
            f"run-dir = '{path}': holds a run already; `python -m {app} resume {path}` goes on "
            "with it"
        )
    return path.resolve()


def submit_run(
    app: str,
    values: dict[str, Scalar],
    run_dir: Path,
    nodes: int,
    say: Callable[[str], None],
    *,
    verbose: bool,
) -> int:
    """Submit a checked run to Flower and follow it; returns the exit status.

    Raises
    ------
    RuntimeError
        If the directory is in use or Flower refuses the run; then nothing is left behind.
    """
    directory = RunDirectory(run_dir)  # refuses a directory that is in use
    write_config(run_dir, app.partition("_")[0], values)
    directory.close()
    say("starting Flower; the first round takes about a minute ...")
    try:
        run_id = submit(run_dir / CONFIG, nodes)
    except RuntimeError:
        if not values["resume"]:  # nothing was started: take back what was written
            for name in (CONFIG, "lock"):
                (run_dir / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty: the user's
                run_dir.rmdir()
        raise
    status = follow(run_id, say, f"python -m {app} resume {run_dir}", verbose=verbose)
    report = run_dir / "report.html"
    say(f"{status}; results in {run_dir}" + (f", see {report}" if report.exists() else ""))
    return 0 if status == "finished:completed" else 1
