"""Prepare a federation of devices, and check it on this machine."""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from app_kit.run_command import execute
from deploy.keys import CONNECTION, FEDERATION, make_federation, write_node


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    return execute(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    keys = commands.add_parser("keys", help="make all certificates and keys")
    keys.add_argument("--host", action="append", default=[], help="a name or address of the "
                      "SuperLink, as devices or users know it; may be repeated")  # fmt: skip
    keys.add_argument("--nodes", type=int, default=4, help="number of SuperNodes (default 4)")
    keys.add_argument("--address", default="127.0.0.1:8000", help="HOST:PORT for `flwr run`")
    keys.set_defaults(command=_keys)

    node = commands.add_parser("add-node", help="make the keys of one more SuperNode")
    node.add_argument("name")
    node.set_defaults(command=_add_node)

    register = commands.add_parser("register", help="tell the SuperLink the SuperNodes' keys")
    register.set_defaults(command=_register)

    check = commands.add_parser("check", help="run both apps on real processes of this machine")
    check.add_argument("--app", choices=("pina", "wireless"), help="default: both")
    check.set_defaults(command=_check)
    measure = commands.add_parser("measure", help="a device's round under a memory limit (root)")
    measure.add_argument("app", choices=("pina", "wireless"))
    measure.add_argument("--memory-mb", type=int, default=1024)
    measure.set_defaults(command=_measure)
    for command in (keys, node, register):
        command.add_argument("--dir", type=Path, default=Path(FEDERATION), help="where keys lie")
    return parser


def _keys(options: argparse.Namespace) -> int:
    hosts = ["superlink", *options.host]  # its name in the compose file
    make_federation(options.dir, hosts, options.nodes, options.address)
    print(f"{options.dir}: certificate for {', '.join(hosts)}, keys of {options.nodes} SuperNodes")
    return 0


def _add_node(options: argparse.Namespace) -> int:
    if (options.dir / options.name).exists():
        raise ValueError(f"{options.dir / options.name}: exists already")
    if not (options.dir / "ca.crt").is_file():
        raise ValueError(f"{options.dir}: has no ca.crt; `python -m deploy keys` comes first")
    print(write_node(options.dir, options.name))
    return 0


def _register(options: argparse.Namespace) -> int:
    """A key that is registered already is not an error."""
    keys = sorted(options.dir.glob("*/key.pub"))
    if not keys:
        raise ValueError(f"{options.dir}: has no SuperNode's key; `python -m deploy keys` first")
    home = {**os.environ, "FLWR_HOME": str((options.dir / "flwr").resolve())}
    failed = 0
    for key in keys:
        command = ["flwr", "supernode", "register", str(key), CONNECTION]
        done = subprocess.run(command, env=home, capture_output=True, text=True, check=False)
        text = (done.stdout + done.stderr).strip()
        known = "already" in text
        failed += bool(done.returncode) and not known
        print(f"{key.parent.name}: {'registered before' if known else ' '.join(text.split())}")
    return 1 if failed else 0


def _check(options: argparse.Namespace) -> int:
    from deploy.check import main as check

    _end_with_us()
    return check(options.app)


def _end_with_us() -> None:
    """Whoever ends this command ends what it started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _measure(options: argparse.Namespace) -> int:
    from deploy.measure import measure

    _end_with_us()
    print(measure(options.app, options.memory_mb))
    return 0


if __name__ == "__main__":
    sys.exit(main())
