"""Wireless clustered FL: run and resume in Flower's simulation engine, check a device's data."""

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
from app_kit.run_config import Scalar, parse_settings, read_preset
from app_kit.run_files import read_config, read_summary
from app_kit.submit import app_root
from wireless_cfl_app.config import PRESETS, WirelessConfig, from_run_config

APP = "wireless_cfl_app"
PATH_KEYS = ("dataset", "positions")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {APP}", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_run_and_resume(commands, _run, _resume)
    check = add_check_data(commands, _check_data)
    check.add_argument("--image-shape", help="shape of the run's images, as 28x28x1")
    return execute(parser, arguments)


def resolve(preset: str, settings: list[str], data: Path) -> WirelessConfig:
    """Configuration from a preset and ``KEY=VALUE`` overrides, with absolute paths."""
    values: dict[str, Scalar] = {} if preset == "none" else read_preset(PRESETS, preset)
    values |= parse_settings(settings)
    return from_run_config(with_absolute_paths(values, PATH_KEYS, data))


def _run(options: argparse.Namespace) -> int:
    config = resolve(options.preset, options.settings, options.data)
    label = options.preset if options.preset != "none" else Path(config.dataset).stem
    run_dir = new_run_dir(APP, config.run_dir, f"{label}-{config.method}")
    return _submit(config, run_dir, resume=False, verbose=options.verbose)


def _resume(options: argparse.Namespace) -> int:
    config = from_run_config(read_config(options.run_dir))
    if read_summary(options.run_dir):
        again = f"python -m strategies.report {options.run_dir}"
        _say(f"{options.run_dir} is finished; `{again}` prints its table")
        return 0
    return _submit(config, options.run_dir.resolve(), resume=True, verbose=options.verbose)


def _submit(config: WirelessConfig, run_dir: Path, *, resume: bool, verbose: bool) -> int:
    from wireless_cfl_app import preflight

    app_root()
    _say("checking settings, data and positions ...")
    config = dataclasses.replace(config, run_dir=str(run_dir), resume=resume)
    for line in preflight.check(config):
        _say(line)
    return submit_run(APP, config.to_run_config(), run_dir, config.nodes, _say, verbose=verbose)


def _check_data(options: argparse.Namespace) -> int:
    from wireless_cfl_app.data import check_shape

    described = describe_data(options.data, options.classes)
    check_shape(options.data, options.image_shape)
    _say(described)
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
