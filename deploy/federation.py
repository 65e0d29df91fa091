"""A federation of real processes on loopback: started, watched, and ended by process id."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from deploy.compose import LOOPBACK, as_process, read_services
from deploy.keys import CONNECTION, FEDERATION, make_federation

_CONNECTED = "SuperNode ID:"  # a SuperNode's first word after the SuperLink has let it in
_RESTARTS = 20
_COMMAND_S = 4.0  # between `flwr` commands: each costs a second or two of a core


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return int(sock.getsockname()[1])


def wait_until(
    condition: Callable[[], bool], what: str, timeout_s: float = 120.0, every_s: float = 0.2
) -> None:
    """Poll a condition every so many seconds.

    Raises
    ------
    TimeoutError
        If it does not come true.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s in vain: {what}")
        time.sleep(every_s)


class LocalFederation:
    """SuperLink and SuperNodes of the compose file as processes of this machine.

    A context manager: whatever it started is ended when it is left, also after a failure.

    Parameters
    ----------
    root : Path
        Takes the place of the compose file's directory; must be empty.
    nodes : int or None
        How many of the compose file's SuperNodes to register and start; None: all.
    """

    def __init__(self, root: Path, nodes: int | None = None) -> None:
        self.root = root
        self.services = read_services()
        self.everyone = [name for name in self.services if name != "superlink"]
        self.supernodes = self.everyone[:nodes]
        self.ports = {name: free_port() for name in self.services}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.node_ids: dict[str, int] = {}

    @property
    def federation(self) -> Path:
        """Directory of keys and data."""
        return self.root / FEDERATION

    def __enter__(self) -> "LocalFederation":
        """Make keys, start the SuperLink, register the SuperNodes, start them."""
        address = f"{LOOPBACK}:{self.ports['superlink']}"
        make_federation(self.federation, ["superlink"], len(self.everyone), address)
        try:
            self.start_superlink()
            for name in self.supernodes:
                key = self.federation / name / "key.pub"
                answer = self.flwr("supernode", "register", str(key), CONNECTION)
                self.node_ids[name] = int(answer["node-id"])
            for name in self.supernodes:
                self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End every process that was started, and its children."""
        for name in reversed(list(self.running)):
            self.end(name)

    # --- processes --------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a service of the compose file; its output is appended to ``NAME.log``."""
        if name in self.running:
            raise RuntimeError(f"{name} was started already; end it first")
        process = as_process(self.services[name], self.root, self.ports)
        process.working_dir.mkdir(parents=True, exist_ok=True)
        with self.log_path(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                process.command,
                cwd=process.working_dir,
                env=environment(process.environment),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers over TLS."""
        self.start("superlink")
        trust = ssl.create_default_context(cafile=str(self.federation / "ca.crt"))
        url = f"https://{LOOPBACK}:{self.ports['superlink']}/health"

        def healthy() -> bool:
            if self.running["superlink"].poll() is not None:
                raise RuntimeError(f"the SuperLink ended: {self.log('superlink')[-2000:]}")
            with contextlib.suppress(OSError):
                return int(urllib.request.urlopen(url, context=trust, timeout=5).status) == 200
            return False

        wait_until(healthy, "the SuperLink's health")

    def end(self, name: str, *, kill: bool = False) -> None:
        """Terminate (or kill) a service and whatever it started."""
        process = self.running.pop(name)
        if not kill:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        process.kill()
        process.wait()
        for child in self._family(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def restart(self, name: str) -> None:
        """What ``restart: unless-stopped`` does: start a SuperNode again until it stays.

        The SuperLink refuses one that was killed for as long as it takes it to be online, a minute.
        """
        before = self.log(name).count(_CONNECTED)

        def connected() -> bool:
            return self.log(name).count(_CONNECTED) > before

        def decided() -> bool:
            return connected() or self.running[name].poll() is not None

        for _ in range(_RESTARTS):
            self.start(name)
            wait_until(decided, f"{name} to connect or to end")
            if connected():
                return
            self.end(name)
            time.sleep(_COMMAND_S)
        raise RuntimeError(f"{name} was refused {_RESTARTS} times: {self.log(name)[-500:]}")

    def children(self, name: str, program: str) -> list[psutil.Process]:
        """Processes of a service that run a program, such as ``flwr-clientapp``."""
        return [process for process in self._family(name) if _runs(process, program)]

    def _family(self, name: str) -> list[psutil.Process]:
        """Live processes of a service, by its FLWR_HOME: Flower detaches some from their parent."""
        home = as_process(self.services[name], self.root, self.ports).environment["FLWR_HOME"]
        return [process for process in psutil.process_iter() if _lives_in(process, home)]

    def log_path(self, name: str) -> Path:
        """Output of a service."""
        return self.root / f"{name}.log"

    def log(self, name: str) -> str:
        """What a service wrote so far."""
        return self.log_path(name).read_text("utf-8", errors="replace")

    # --- Flower's command line --------------------------------------------------------------

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run a ``flwr`` command on this federation; returns its JSON answer.

        Raises
        ------
        RuntimeError
            If it fails.
        """
        done = subprocess.run(
            ["flwr", *arguments, "--format", "json"],
            cwd=self.root,
            env=environment({"FLWR_HOME": str(self.federation / "flwr")}),
            capture_output=True,
            text=True,
            check=False,
        )
        start = done.stdout.find("{")
        answer: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
        if done.returncode or not answer.get("success"):
            reason = answer.get("error-message") or done.stderr or done.stdout
            raise RuntimeError(f"`flwr {' '.join(arguments[:2])}` failed: {str(reason).strip()}")
        return answer

    def online(self) -> set[int]:
        """Ids of the SuperNodes that the SuperLink hears."""
        nodes = self.flwr("supernode", "list", CONNECTION)["nodes"]
        return {int(node["node-id"]) for node in nodes if node["status"] == "online"}

    def wait_for_nodes(self) -> None:
        """Until the SuperLink hears all SuperNodes that were started at first."""
        expected = set(self.node_ids.values())
        wait_until(lambda: self.online() >= expected, "SuperNodes online", every_s=_COMMAND_S)

    def submit(self, app: Path, settings: Path) -> str:
        """Submit the bundle of a checkout with a TOML file of settings; returns the run id."""
        return str(self.flwr("run", str(app), CONNECTION, "-c", str(settings))["run-id"])

    def status(self, run_id: str) -> str:
        """Status of a run, such as ``finished:completed``."""
        return str(self.flwr("list", CONNECTION, "--run-id", run_id)["runs"][0]["status"])

    def run_log(self, run_id: str) -> str:
        """What the ServerApp of a run wrote so far."""
        done = subprocess.run(
            ["flwr", "log", run_id, CONNECTION, "--show"],
            cwd=self.root,
            env=environment({"FLWR_HOME": str(self.federation / "flwr")}),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def wait(self, run_id: str, timeout_s: float = 300.0) -> str:
        """The final status of a run."""
        last = ""

        def finished() -> bool:
            nonlocal last
            last = self.status(run_id)
            return last.startswith("finished")

        wait_until(finished, f"the end of run {run_id}", timeout_s, every_s=_COMMAND_S)
        return last


def environment(values: dict[str, str]) -> dict[str, str]:
    """This environment with our interpreter's commands first, and ``values``.

    Without PYTHONPATH: the processes must find the code in the bundle.
    """
    scripts = str(Path(sys.executable).parent)
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    path = scripts + os.pathsep + os.environ.get("PATH", "")
    return {**inherited, "PATH": path, "FLWR_TELEMETRY_ENABLED": "0", **values}


def _lives_in(process: psutil.Process, home: str) -> bool:
    try:
        return bool(process.environ().get("FLWR_HOME") == home)
    except psutil.Error:
        return False


def _runs(process: psutil.Process, program: str) -> bool:
    try:
        return any(Path(part).name == program for part in process.cmdline()[:3])
    except psutil.Error:
        return False
