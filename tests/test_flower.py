"""The product as it is used: Flower's simulation engine, our commands, kill and resume.

A SuperLink of our own on free ports, outside the checkout, so that no other run is touched.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from app_kit.run_config import Scalar
from tests.test_runs import run_app
from tests.wireless_cfl_app.runs import TINY as WIRELESS_TINY
from tests.wireless_cfl_app.runs import run_app as run_wireless

TINY = ["clients=6", "clients-per-node=3", "weights=none", "embedding-size=8", "epochs=1"]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment of commands that find our SuperLink as the local one."""
    home = tmp_path_factory.mktemp("flwr")
    api, control = free_port(), free_port()
    values = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(api),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    # The options with which `flwr run` starts it.
    command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--control-api-address", f"127.0.0.1:{control}", "--host", "127.0.0.1"]
    command += ["--port", str(api), "--database", str(home / "state.db")]
    with (home / "superlink.log").open("w") as log:
        superlink = subprocess.Popen(command, cwd=home, env=values, stdout=log, stderr=log)
        try:
            for _ in range(100):
                try:
                    if httpx.get(f"http://127.0.0.1:{api}/health").is_success:
                        break
                except httpx.HTTPError:
                    time.sleep(0.3)
            else:
                pytest.fail(f"no SuperLink: {(home / 'superlink.log').read_text()}")
            yield values
        finally:
            children = psutil.Process(superlink.pid).children(recursive=True)
            superlink.terminate()
            superlink.wait(timeout=60)
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.terminate()


def command(
    app: str, environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run one of our commands from outside the checkout."""
    return subprocess.run(
        [sys.executable, "-m", app, *arguments],
        cwd=environment["FLWR_HOME"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def pina(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same for PINA."""
    return command("pina_app", environment, *arguments)


def settings(run_dir: Path, *more: str) -> list[str]:
    """Settings of a tiny federation."""
    return [*TINY, f"run-dir={run_dir}", f"cache-dir={run_dir.parent / 'cache'}", *more]


def wait_until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Poll a condition; fail if it never comes true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("waited in vain")
        time.sleep(0.05)


def test_a_tiny_federation_runs_to_its_end(environment: dict[str, str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = pina(
        environment,
        "run",
        *settings(run_dir, "methods=pina,fedavg", "rounds=2", "init-rounds=2", "q=1.0"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished:completed" in done.stdout
    assert "pina   4/4 train" in done.stdout
    lines = [json.loads(line) for line in (run_dir / "rounds.jsonl").read_text().splitlines()]
    assert [(line["method"], line["phase"]) for line in lines] == [
        ("pina", "mean"),
        ("pina", "lloyd"),
        ("pina", "train"),
        ("pina", "train"),
        ("fedavg", "train"),
        ("fedavg", "train"),
    ]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert [entry["method"] for entry in summary] == ["pina", "fedavg"]
    for entry in summary:
        assert entry["epsilon_outside"] == pytest.approx(2.0, rel=1e-5)
        assert entry["epsilon_server"] is None
        assert entry["seeded"] is True
        assert 0 <= entry["accuracy_mean"] <= 1
    names = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*")}
    assert {"config.toml", "report.html", "accuracy.png", "ledger.jsonl"} <= names
    assert {"pina/cluster-0.safetensors", "pina/cluster-1.safetensors"} <= names
    again = subprocess.run(
        [sys.executable, "-m", "strategies.report", str(run_dir)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert "10,000 clients" in again.stdout


def test_kill_and_resume_is_bit_identical(environment: dict[str, str], tmp_path: Path) -> None:
    """kill -9 of the simulation in the middle; the resumed run ends exactly like a whole one.

    The whole one runs in this process, without Flower's engine.
    """
    same: dict[str, Scalar] = {
        "clients-per-node": 3,
        "clients": 6,
        "images-per-client": 0,
        "test-images": 0,
        "epochs": 1,
        "rounds": 30,
        "init-rounds": 3,
        "q": 0.7,
        "server-momentum": 0.5,
    }
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_app(whole, tmp_path / "cache", same)
    more = [f"{key}={value}" for key, value in same.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "pina_app", "run", *settings(killed, *more)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        rounds = killed / "rounds.jsonl"
        wait_until(lambda: rounds.exists() and len(rounds.read_text().splitlines()) >= 9)
        victims = [p for p in psutil.process_iter() if _is_simulation(p, environment)]
        assert len(victims) == 1
        victims[0].suspend()  # so that it cannot end while the next command starts
        in_use = pina(environment, "resume", str(killed))
        assert in_use.returncode != 0
        assert "in use" in in_use.stderr
        victims[0].send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 1, output
        assert "finished:failed" in output
    finally:
        process.kill()
    assert len(rounds.read_text().splitlines()) < 33
    resumed = pina(environment, "resume", str(killed))
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "resumes after round" in resumed.stdout
    for name in ("ledger.jsonl", "pina/cluster-0.safetensors", "pina/cluster-1.safetensors"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    first, second = (
        [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in text]
        for text in ((run / "rounds.jsonl").read_text().splitlines() for run in (whole, killed))
    )
    assert first == second


def _is_simulation(process: psutil.Process, environment: dict[str, str]) -> bool:
    try:
        command = " ".join(process.cmdline())
        return "flwr-simulation" in command and environment["FLWR_HOME"] == process.environ().get(
            "FLWR_HOME"
        )
    except psutil.Error:
        return False


def test_interrupting_the_command_stops_the_run(
    environment: dict[str, str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "pina_app", "run", *settings(run_dir, "rounds=500")],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A background job inherits an ignored interrupt; this one is to hear it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_until((run_dir / "rounds.jsonl").exists)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    run_id = output.split("submitted as Flower run ")[1].split(";")[0]
    listed = subprocess.run(
        ["flwr", "list", "--run-id", run_id, "--format", "json"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(listed.stdout)["runs"][0]["status"] == "finished:stopped"


def test_wireless_in_the_engine_is_what_it_is_in_this_process(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Same models and record to the last bit; `resume` of a finished run only says so."""
    here, there = tmp_path / "here", tmp_path / "there"
    run_wireless(here)
    values = [f"{key}={value}" for key, value in WIRELESS_TINY.items()]
    done = command("wireless_cfl_app", environment, "run", *values, f"run-dir={there}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished:completed" in done.stdout
    name = "proposed/model.safetensors"
    assert (there / name).read_bytes() == (here / name).read_bytes()
    first, second = (
        [{**json.loads(line), "seconds": 0} for line in text]
        for text in ((run / "rounds.jsonl").read_text().splitlines() for run in (here, there))
    )
    assert first == second
    again = command("wireless_cfl_app", environment, "resume", str(there))
    assert again.returncode == 0
    assert "is finished" in again.stdout
    refused = command("wireless_cfl_app", environment, "run", "tau2=3", "tau1=2")
    assert refused.returncode == 2
    assert refused.stderr == "error: tau2 = 3: must be a multiple of tau1 = 2\n"


def test_bad_input_reaches_no_superlink(environment: dict[str, str], tmp_path: Path) -> None:
    done = pina(environment, "run", *settings(tmp_path / "run", "q=1.5"))
    assert done.returncode == 2
    assert done.stderr.strip() == "error: q = 1.5: must be in (0, 1]"
    assert not (tmp_path / "run").exists()
