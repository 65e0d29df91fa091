"""Run both apps on a federation of real processes and compare with the simulation.

Each app runs twice on a SuperLink and four SuperNodes with TLS and node authentication: as a seeded
rehearsal (``simulation = true``), which must end with the very files that a simulation in one
process writes; and as devices run it, with data of their own and the operating system's randomness,
which has to end well.
"""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tomli_w
from flwr.app import Context, RecordDict

from app_kit.in_process_grid import InProcessGrid
from app_kit.run_config import Scalar
from deploy.federation import LocalFederation

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = 4
ROUND_TIMEOUT_S = 600.0
PINA: dict[str, Scalar] = {
    "app": "pina",
    "clients": CLIENTS,
    "clients-per-node": 1,
    "weights": "none",
    "embedding-size": 8,
    "epochs": 1,
    "init-rounds": 2,
    "rounds": 2,
    "q": 1.0,
    "round-timeout-s": ROUND_TIMEOUT_S,
}
WIRELESS: dict[str, Scalar] = {
    "app": "wireless",
    "devices": CLIENTS,
    "clients-per-node": 1,
    "iterations": 4,
    "plan-sweeps": 5,
    "round-timeout-s": ROUND_TIMEOUT_S,
}
DEVICES: dict[str, Scalar] = {"simulation": False, "seed": "none", "classes": 10}
"""What turns the rehearsal into a deployment: no data set on the server, no seed."""


def main(app: str | None = None) -> int:
    """Check one app, or both; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="fedclusters-") as folder:
        root = Path(folder)
        with LocalFederation(root / "deployed") as federation:
            _say(f"{len(federation.supernodes)} SuperNodes registered; logs in {federation.root}")
            write_data(federation)
            federation.wait_for_nodes()
            if app != "wireless":
                check_app(federation, "pina", PINA, {}, _say)
            if app != "pina":
                devices = root / "deployed-wireless" / "devices.csv"
                shape = {"image-shape": "8x8x1", "positions": str(devices)}
                check_app(federation, "wireless", WIRELESS, shape, _say)
    _say("deployment and simulation agree")
    return 0


def check_app(
    federation: LocalFederation,
    name: str,
    settings: Mapping[str, Scalar],
    for_devices: Mapping[str, Scalar],
    say: Callable[[str], None],
) -> None:
    """The rehearsal, which is compared with the simulation, then the run of devices.

    Raises
    ------
    RuntimeError
        If a run fails, or a file differs.
    """
    root = federation.root.parent
    cache = {"cache-dir": str(root / "cache")} if name == "pina" else {}
    deployed, simulated = root / f"deployed-{name}", root / f"simulated-{name}"
    run_deployed(federation, {**settings, **cache, "run-dir": str(deployed)})
    run_simulated({**settings, **cache, "run-dir": str(simulated)})
    compared = compare(deployed, simulated)
    say(f"{name}: seeded rehearsal ends like the simulation ({', '.join(compared)})")
    own = root / f"devices-{name}"
    run_deployed(federation, {**settings, **cache, **DEVICES, **for_devices, "run-dir": str(own)})
    (summary,) = json.loads((own / "summary.json").read_text("utf-8"))
    say(f"{name}: {summary['rounds']} rounds with the devices' own data and randomness")
    for note in summary["notes"]:
        say(f"  {note}")


def run_deployed(federation: LocalFederation, values: Mapping[str, Scalar]) -> None:
    """Run on the federation, from the bundle of this checkout."""
    settings = federation.root / "settings.toml"
    settings.write_text(tomli_w.dumps(values), "utf-8")
    run_id = federation.submit(ROOT, settings)
    status = federation.wait(run_id, timeout_s=ROUND_TIMEOUT_S * 4)
    if status != "finished:completed":
        raise RuntimeError(f"{status}\n{federation.run_log(run_id)[-4000:]}")


def run_simulated(values: Mapping[str, Scalar]) -> None:
    """Run in this process; a test keeps this equal to Flower's simulation engine."""
    import apps
    from pina_app.config import PinaConfig
    from wireless_cfl_app.config import WirelessConfig

    kind = PinaConfig if values["app"] == "pina" else WirelessConfig
    everything = {**kind().to_run_config(), **values}
    grid = InProcessGrid(apps.client_app, CLIENTS, everything)
    state = RecordDict()
    context = Context(run_id=1, node_id=0, node_config={}, state=state, run_config=everything)
    apps.server_app(grid, context)


def write_data(federation: LocalFederation) -> None:
    """Give every SuperNode a file of its own: the images that the simulation would give it."""
    from pina_app.config import from_run_config
    from pina_app.datasets import load_federation

    split = load_federation(from_run_config(PINA))
    for client, name in enumerate(federation.supernodes):
        own = slice(int(split.offsets[client]), int(split.offsets[client + 1]))
        path = federation.federation / name / "data.npz"
        np.savez(path, x=split.images[own], y=split.labels[own])


def compare(first: Path, second: Path) -> list[str]:
    """Names of the files that are compared, bit by bit but for times.

    Raises
    ------
    RuntimeError
        If one differs.
    """
    files = [*first.glob("*/*.safetensors"), *first.glob("ledger.jsonl"), first / "rounds.jsonl"]
    names = sorted(str(path.relative_to(first)) for path in files)
    for name in names:
        if _content(first / name) != _content(second / name):
            raise RuntimeError(f"{name}: deployment and simulation differ")
    return names


def _content(path: Path) -> object:
    if path.name != "rounds.jsonl":
        return path.read_bytes()
    return [{**json.loads(line), "seconds": 0} for line in path.read_text("utf-8").splitlines()]


def _say(text: str) -> None:
    print(text, flush=True)
