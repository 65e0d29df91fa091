"""Submit a run to Flower, follow it to its end, and return its final status.

``flwr run`` returns at once and exits with 0 even if the run fails later; ending it does not end
the run. This wrapper starts the local SuperLink outside any checkout (its working directory is
where Ray workers look for packages first), follows the log, and stops the run when interrupted.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app_kit.progress import MARK

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SHOWN = (MARK, "WARNING", "ERROR")
_NOISE = ("Since flwr 1.32", "Manually terminating ClientAppActor")


def app_root() -> Path:
    """The checkout that ``flwr run`` bundles.

    Raises
    ------
    RuntimeError
        If this package was installed without its project files.
    """
    root = Path(__file__).resolve().parent.parent
    if not (root / "apps.py").is_file() or not (root / "pyproject.toml").is_file():
        raise RuntimeError(
            f"{root} is not a checkout of fedclusters: `run` bundles the project for Flower; "
            "clone it and run from there"
        )
    return root


def submit(run_config: Path, nodes: int) -> str:
    """Submit the app; returns Flower's run id.

    Parameters
    ----------
    run_config : Path
        TOML file of the resolved run config.
    nodes : int
        Number of simulated SuperNodes.

    Raises
    ------
    RuntimeError
        If the run cannot be submitted.
    """
    federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
    options = ["-c", str(run_config), "--federation-config", federation]
    return str(_flwr("run", str(app_root()), *options)["run-id"])


def follow(run_id: str, say: Callable[[str], None], resume: str, *, verbose: bool = False) -> str:
    """Show a run's log to its end; returns the final status, such as "finished:completed".

    Parameters
    ----------
    run_id : str
    say : callable
        Shows a line.
    resume : str
        The command that goes on with a stopped run.
    verbose : bool
        Show Flower's whole log instead of the run's progress and warnings.

    Raises
    ------
    KeyboardInterrupt
        After the run was stopped because the user interrupted it.
    """
    say(f"submitted as Flower run {run_id}; interrupt to stop it")
    try:
        _show_log(run_id, say, verbose)
        status = _wait(run_id)
    except KeyboardInterrupt:
        say(f"stopping the run ... (`{resume}` goes on from its last round)")
        _flwr("stop", run_id)
        raise
    if status["status"] != "finished:completed" and status.get("status-details"):
        say(str(status["status-details"]))
    return str(status["status"])


def _environment() -> dict[str, str]:
    """Our own interpreter's commands first, and no dependency installation for every run."""
    scripts = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": scripts + os.pathsep + os.environ.get("PATH", ""),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


def _outside() -> Path:
    """A directory that holds no packages, for the SuperLink to live in."""
    home = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser() / "local-superlink"
    home.mkdir(parents=True, exist_ok=True)
    return home


def _flwr(*arguments: str) -> dict[str, Any]:
    """Run a flwr command and return its JSON answer."""
    done = subprocess.run(
        ["flwr", *arguments, "--format", "json"],
        cwd=_outside(),
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
        # An interrupt from the keyboard is for us; a stop command must survive it.
        start_new_session=True,
    )
    start = done.stdout.find("{")
    try:
        answer: dict[str, Any] = json.loads(done.stdout[start:])
    except ValueError:
        answer = {}
    if done.returncode or not answer.get("success"):
        reason = answer.get("error-message") or done.stderr or done.stdout
        raise RuntimeError(f"`flwr {arguments[0]}` failed: {str(reason).strip()}")
    return answer


def _show_log(run_id: str, say: Callable[[str], None], verbose: bool) -> None:
    """Show the run's log until it ends."""
    log = subprocess.Popen(
        ["flwr", "log", run_id, "--stream"],
        cwd=_outside(),
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert log.stdout is not None
    try:
        for raw in log.stdout:
            line = _COLOURS.sub("", raw).rstrip()
            if verbose:
                say(line)
            elif any(m in line for m in _SHOWN) and not any(noise in line for noise in _NOISE):
                say(re.sub(rf"^INFO\s*:\s*{re.escape(MARK)} ?", "", line))
    finally:
        log.terminate()
        log.wait()


def _wait(run_id: str) -> dict[str, Any]:
    """The run's status once it is final."""
    while True:
        run: dict[str, Any] = _flwr("list", "--run-id", run_id)["runs"][0]
        if str(run["status"]).startswith("finished"):
            return run
        time.sleep(1)
