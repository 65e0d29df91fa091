"""Rounds under Flower's simulation engine, and pfl-research in its own interpreter."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import psutil
from workload import Job

from pina_app.config import PinaConfig

HERE = Path(__file__).resolve().parent
Scalar = bool | int | float | str


@contextlib.contextmanager
def superlink(home: Path) -> Iterator[dict[str, str]]:
    """Environment of commands that find a SuperLink of our own as the local one."""
    api, control = _free_port(), _free_port()
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(api),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--control-api-address", f"127.0.0.1:{control}", "--host", "127.0.0.1"]
    command += ["--port", str(api), "--database", str(home / "state.db")]
    with (home / "superlink.log").open("w") as log:
        process = subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=log)
        try:
            _wait_for(f"http://127.0.0.1:{api}/health")
            yield environment
        finally:
            children = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            process.wait(timeout=60)
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.terminate()


def project_rounds(job: Job, rounds: int = 7) -> list[float]:
    """Seconds of each round of this project under ``flwr run``, two nodes, without the first.

    The pictures are drawn; their features come from the cache after the first process. One round
    in ``rounds`` evaluates: the last, which is left out.
    """
    with tempfile.TemporaryDirectory() as folder, superlink(Path(folder)) as environment:
        data = Path(folder) / "drawn.npz"
        rng = np.random.default_rng(0)
        count = job.clients * job.images
        np.savez(
            data,
            x_train=rng.integers(256, size=(count, 32, 32, 3), dtype=np.uint8),
            y_train=np.arange(count) % 10,
            x_test=rng.integers(256, size=(10, 32, 32, 3), dtype=np.uint8),
            y_test=np.arange(10),
        )
        # The model's weights have to be the same in every process, so they cannot be drawn there.
        weights = Path(folder) / "drawn.safetensors"
        _save_weights(job, weights)
        values: dict[str, Scalar] = {
            **job.config().to_run_config(),
            "dataset": str(data),
            "weights": str(weights),
            "clients-per-node": -(-job.clients // 2),
            "rounds": rounds,
            "evaluate-every": 10**6,
            "cache-dir": str(Path(folder) / "cache"),
            "run-dir": str(Path(folder) / "run"),
        }
        defaults = PinaConfig().to_run_config()
        settings = [f"{key}={value}" for key, value in values.items() if value != defaults[key]]
        _run([sys.executable, "-m", "pina_app", "run", *settings], environment, folder)
        lines = (Path(folder) / "run" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["seconds"] for line in lines][1:-1]


def stock_flower_rounds(job: Job, nodes: int = 4, rounds: int = 4) -> list[float]:
    """Seconds a round of Flower's FedAvg with few SuperNodes, one a client; not the first."""
    with tempfile.TemporaryDirectory() as folder, superlink(Path(folder)) as environment:
        times = Path(folder) / "times.json"
        config = (
            f"rounds={rounds} images={job.images} epochs={job.epochs} model='{job.model}' "
            f"image-size={job.image_size} times='{times}'"
        )
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
        command = ["flwr", "run", str(HERE / "stock_flower"), "-c", config, "--stream"]
        said = _run([*command, "--federation-config", federation], environment, folder)
        if not times.exists():  # flwr run exits with 0 whatever happens
            raise RuntimeError(f"the stock app failed:\n{said[-3000:]}")
        ends = json.loads(times.read_text(encoding="utf-8"))
    return [float(seconds) for seconds in np.diff(ends)[1:]]


def pfl_rounds(
    python: str, job: Job, clients: int = 2, iterations: int = 4, threads: int = 1
) -> list[float] | None:
    """Seconds an iteration of pfl-research with few clients; None if it is not installed."""
    found = subprocess.run([python, "-c", "import pfl"], capture_output=True, check=False)
    if found.returncode:
        return None
    numbers = [clients, job.images, job.epochs, job.model, job.image_size, iterations, threads]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": str(threads)}
    command = [python, str(HERE / "pfl_round.py"), *(str(number) for number in numbers)]
    return [float(s) for s in json.loads(_run(command, environment, None).splitlines()[-1])]


def _save_weights(job: Job, path: Path) -> None:
    import timm
    import torch
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = timm.create_model(job.model, img_size=job.image_size, num_classes=0)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)


def _run(command: list[str], environment: Mapping[str, str], folder: str | None) -> str:
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} failed:\n{done.stdout[-3000:]}{done.stderr}")
    return done.stdout


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait_for(url: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(URLError, OSError), urlopen(url) as answer:
            if answer.status == 200:
                return
        time.sleep(0.3)
    raise RuntimeError(f"the SuperLink did not answer at {url}")
