"""PINA: run and resume in Flower's simulation engine, plan, predict, check a device's data."""

import argparse
import dataclasses
import sys
from pathlib import Path

from app_kit.check_data import add_check_data, describe_data
from app_kit.run_command import (
    add_run_and_resume,
    execute,
    new_run_dir,
    submit_run,
    with_absolute_paths,
)
from app_kit.run_config import Scalar, key_of, parse_settings, read_preset
from app_kit.run_files import read_config, read_summary
from app_kit.submit import app_root
from pina_app.config import INITS, PRESETS, PinaConfig, from_run_config
from strategies.release import RELEASES

APP = "pina_app"
PATH_KEYS = ("dataset", "public-data", "weights")
PLANNED = (
    "epsilon",
    "clients",
    "rounds",
    "init_rounds",
    "max_participations",
    "clusters",
    "q",
    "init_q",
    "init_share",
    "noise_multiplier",
    "init_noise_multiplier",
    "clip",
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    return execute(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pina_app", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = add_run_and_resume(commands, _run, _resume)
    run.add_argument("--no-cache", action="store_true", help="compute frozen features anew")

    plan = commands.add_parser("plan", help="noise and epsilon of a run, without running it")
    plan.add_argument("--preset", default="none", help="settings to start from")
    plan.add_argument("--delta", help="default: none (clients^-1.1)")
    for field in PLANNED:
        plan.add_argument(f"--{key_of(field)}")
    plan.add_argument("--noise-cohort-size", help="simulated cohort (default: none, the real one)")
    plan.add_argument("--epsilon-for", choices=("outside", "server"))
    plan.add_argument("--init", choices=INITS)
    plan.add_argument("--public-data", help="'synthetic' and 'none' have other initialisations")
    plan.add_argument("--release", choices=("auto", *RELEASES))
    plan.set_defaults(command=_plan)

    predict = commands.add_parser("predict", help="assign a new client to a cluster, and predict")
    predict.add_argument("run_dir", type=Path)
    predict.add_argument("images", type=Path, help=".npz with x (images) and perhaps y (labels)")
    predict.add_argument("--method", default="pina")
    predict.add_argument("--output", type=Path, help="write labels and cluster as .npz")
    predict.set_defaults(command=_predict)
    add_check_data(commands, _check_data)
    return parser


def resolve(preset: str, settings: list[str], data: Path) -> PinaConfig:
    """Configuration from a preset and ``KEY=VALUE`` overrides, with absolute paths."""
    values: dict[str, Scalar] = {} if preset == "none" else read_preset(PRESETS, preset)
    values |= parse_settings(settings)
    return from_run_config(with_absolute_paths(values, PATH_KEYS, data))


def _run(options: argparse.Namespace) -> int:
    no_cache = ["cache-dir=none"] if options.no_cache else []
    config = resolve(options.preset, [*options.settings, *no_cache], options.data)
    label = options.preset if options.preset != "none" else Path(config.dataset).stem
    run_dir = new_run_dir(APP, config.run_dir, label)
    return _submit(config, run_dir, resume=False, verbose=options.verbose)


def _resume(options: argparse.Namespace) -> int:
    config = from_run_config(read_config(options.run_dir))
    if {entry["method"] for entry in read_summary(options.run_dir)} >= set(config.method_list):
        again = f"python -m strategies.report {options.run_dir}"
        _say(f"{options.run_dir} is finished; `{again}` prints its table")
        return 0
    return _submit(config, options.run_dir.resolve(), resume=True, verbose=options.verbose)


def _submit(config: PinaConfig, run_dir: Path, *, resume: bool, verbose: bool) -> int:
    from pina_app import preflight

    app_root()
    _say("checking settings, data and weights ...")
    config = dataclasses.replace(config, run_dir=str(run_dir), resume=resume)
    for method, plan in preflight.check(config).items():
        _say(preflight.describe(config, method, plan))
    return submit_run(APP, config.to_run_config(), run_dir, config.nodes, _say, verbose=verbose)


def _plan(options: argparse.Namespace) -> int:
    from pina_app import preflight
    from pina_app.methods import method_plan

    values: dict[str, Scalar] = (
        {} if options.preset == "none" else read_preset(PRESETS, options.preset)
    )
    values.setdefault("noise-cohort-size", "none")
    given = {key_of(key): value for key, value in vars(options).items() if value is not None}
    known = PinaConfig().to_run_config().keys() - {"preset"}
    values |= parse_settings([f"{key}={given[key]}" for key in given if key in known])
    config = from_run_config(values)
    for method in config.method_list:
        _say(preflight.describe(config, method, method_plan(config, method)))
    return 0


def _predict(options: argparse.Namespace) -> int:
    from pina_app.predict import predict

    _say(predict(options.run_dir, options.images, options.method, options.output))
    return 0


def _check_data(options: argparse.Namespace) -> int:
    _say(describe_data(options.data, options.classes))
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
