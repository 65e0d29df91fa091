"""PINA in Flower's simulation engine: run, resume, plan, predict."""

import argparse
import contextlib
import sys
import tomllib
from datetime import datetime
from pathlib import Path

from pina_app.config import PinaConfig, Scalar, from_run_config, key_of, read_preset

PATH_KEYS = ("dataset", "public-data", "weights")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (ValueError, RuntimeError, OSError) as error:
        print("error:", *str(error).split(), file=sys.stderr)  # one line, whatever it holds
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pina_app", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a federation in Flower's simulation engine")
    run.add_argument(
        "--preset", default="none", help="settings to start from, see pina_app/presets"
    )
    run.add_argument("--data", type=Path, default=Path(), help="where relative data files lie")
    run.add_argument("--no-cache", action="store_true", help="compute frozen features anew")
    run.add_argument("--verbose", action="store_true", help="show Flower's whole log")
    run.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="overrides, e.g. epsilon=8")
    run.set_defaults(command=_run)

    resume = commands.add_parser("resume", help="go on from a run's last finished round")
    resume.add_argument("run_dir", type=Path)
    resume.add_argument("--verbose", action="store_true", help="show Flower's whole log")
    resume.set_defaults(command=_resume)

    plan = commands.add_parser("plan", help="noise and epsilon of a run, without running it")
    plan.add_argument("--preset", default="none", help="settings to start from")
    plan.add_argument("--epsilon", type=float)
    plan.add_argument("--delta", type=float, help="default: clients^-1.1")
    for field in ("clients", "rounds", "init_rounds", "max_participations", "clusters"):
        plan.add_argument(f"--{key_of(field)}", type=int)
    for field in ("q", "init_q", "init_share", "noise_multiplier", "init_noise_multiplier", "clip"):
        plan.add_argument(f"--{key_of(field)}", type=float)
    plan.add_argument(
        "--noise-cohort-size", type=int, help="simulated cohort (default: the real one)"
    )
    plan.add_argument("--epsilon-for", choices=("outside", "server"))
    plan.set_defaults(command=_plan)

    predict = commands.add_parser("predict", help="assign a new client to a cluster, and predict")
    predict.add_argument("run_dir", type=Path)
    predict.add_argument("images", type=Path, help=".npz with x (images) and perhaps y (labels)")
    predict.add_argument("--method", default="pina")
    predict.add_argument("--output", type=Path, help="write labels and cluster as .npz")
    predict.set_defaults(command=_predict)
    return parser


def resolve(preset: str, settings: list[str], data: Path) -> PinaConfig:
    """Configuration from a preset and ``KEY=VALUE`` overrides, with absolute paths."""
    values: dict[str, Scalar] = {} if preset == "none" else read_preset(preset)
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator:
            raise ValueError(f"{setting!r}: settings have the form KEY=VALUE")
        values[key] = _value(text)
    config_values = dict(values)
    for key in PATH_KEYS:
        file = data.expanduser() / str(values.get(key, ""))
        if key in values and file.is_file():
            config_values[key] = str(file.resolve())
    return from_run_config(config_values)


def _value(text: str) -> Scalar:
    """A TOML value; bare words are strings."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def _run(options: argparse.Namespace) -> int:
    no_cache = ["cache-dir=none"] if options.no_cache else []
    config = resolve(options.preset, [*options.settings, *no_cache], options.data)
    if config.run_dir == PinaConfig.run_dir:
        label = options.preset if options.preset != "none" else Path(config.dataset).stem
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{label}"
        run_dir = Path(config.run_dir) / name
    else:
        run_dir = Path(config.run_dir).expanduser()
    if (run_dir / "config.toml").exists():
        raise ValueError(
            f"run-dir = '{run_dir}': holds a run already; "
            f"`python -m pina_app resume {run_dir}` goes on with it"
        )
    return _submit(config, run_dir.resolve(), resume=False, verbose=options.verbose)


def _resume(options: argparse.Namespace) -> int:
    from pina_app.results import read_summary

    file = options.run_dir / "config.toml"
    if not file.is_file():
        raise ValueError(f"{options.run_dir}: not a run directory (it has no config.toml)")
    config = from_run_config(tomllib.loads(file.read_text(encoding="utf-8")))
    if {entry["method"] for entry in read_summary(options.run_dir)} >= set(config.method_list):
        again = f"python -m strategies.report {options.run_dir}"
        _say(f"{options.run_dir} is finished; `{again}` prints its table")
        return 0
    return _submit(config, options.run_dir.resolve(), resume=True, verbose=options.verbose)


def _submit(config: PinaConfig, run_dir: Path, *, resume: bool, verbose: bool) -> int:
    from dataclasses import replace

    from pina_app import preflight, results
    from pina_app.submit import app_root, follow, submit
    from strategies.checkpoint import RunDirectory

    app_root()
    _say("checking settings, data and weights ...")
    config = replace(config, run_dir=str(run_dir), resume=resume)
    for method, plan in preflight.check(config).items():
        _say(preflight.describe(config, method, plan))
    directory = RunDirectory(run_dir)  # refuses a directory that is in use
    results.write_config(run_dir, config)
    directory.close()
    _say("starting Flower; the first round takes about a minute ...")
    try:
        run_id = submit(run_dir / "config.toml", config.nodes)
    except RuntimeError:
        if not resume:  # nothing was started: take back what this command has written
            for name in ("config.toml", "lock"):
                (run_dir / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty: the user's
                run_dir.rmdir()
        raise
    status = follow(run_id, _say, verbose=verbose)
    report = run_dir / "report.html"
    _say(f"{status}; results in {run_dir}" + (f", see {report}" if report.exists() else ""))
    return 0 if status == "finished:completed" else 1


def _plan(options: argparse.Namespace) -> int:
    from pina_app import preflight
    from pina_app.methods import method_plan

    values: dict[str, Scalar] = {} if options.preset == "none" else read_preset(options.preset)
    values.setdefault("noise-cohort-size", "none")
    given = {key_of(key): value for key, value in vars(options).items() if value is not None}
    known = PinaConfig().to_run_config().keys()
    values.update({key: value for key, value in given.items() if key in known and key != "preset"})
    config = from_run_config(values)
    for method in config.method_list:
        _say(preflight.describe(config, method, method_plan(config, method)))
    return 0


def _predict(options: argparse.Namespace) -> int:
    from pina_app.predict import predict

    _say(predict(options.run_dir, options.images, options.method, options.output))
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
