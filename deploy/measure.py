"""Memory and seconds of one client's round on a device, measured under a memory limit.

The SuperNode and all its children live in a control group of their own, as in a container; the
limit is the group's. Needs write access to the memory controller (root) and no swap.
"""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from app_kit.run_config import Scalar
from deploy.check import DEVICES, PINA, ROOT, WIRELESS, write_data
from deploy.federation import LocalFederation
from strategies import run_record

CGROUPS = Path("/sys/fs/cgroup")


class MemoryGroup:
    """A control group with a memory limit (versions 1 and 2).

    Raises
    ------
    RuntimeError
        If this process may not create one.
    """

    def __init__(self, name: str, limit_mb: int) -> None:
        first = CGROUPS / "memory"
        self.path = (first if first.is_dir() else CGROUPS) / name
        limit, self._peak = "memory.max", "memory.peak"
        if first.is_dir():
            limit, self._peak = "memory.limit_in_bytes", "memory.max_usage_in_bytes"
        try:
            self.path.mkdir(exist_ok=True)
            (self.path / limit).write_text(str(limit_mb << 20))
        except OSError as error:
            raise RuntimeError(f"{self.path}: {error.strerror}; run this as root") from None

    def take(self, pid: int) -> None:
        """Move a process, and so all that it starts later, into the group."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def peak_mb(self) -> float:
        """The most memory that the group has used, file cache included."""
        return int((self.path / self._peak).read_text()) / 2**20

    def remove(self) -> None:
        """Remove the empty group."""
        self.path.rmdir()


def measure(app: str, limit_mb: int) -> str:
    """One line on a run of one device; RuntimeError if it does not fit."""
    group = MemoryGroup("fedclusters-device", limit_mb)
    try:
        with tempfile.TemporaryDirectory(prefix="fedclusters-") as folder:
            lines, cpu, largest = _run(app, Path(folder), group)
        peak = group.peak_mb()
    finally:
        group.remove()
    seconds = sorted(line["seconds"] for line in lines)[len(lines) // 2]
    return (
        f"{app}: limit {limit_mb} MB, peak {peak:.0f} MB, largest ClientApp {largest:.0f} MB; "
        f"{seconds:.1f} s a round, {cpu:.1f} s of CPU"
    )


def _run(app: str, folder: Path, group: MemoryGroup) -> tuple[list[dict[str, Any]], float, float]:
    """Lines of the run record, CPU seconds a round, and MB of the largest ClientApp."""
    with LocalFederation(folder, nodes=1) as federation:
        group.take(federation.running["supernode-0"].pid)  # before it starts any other
        write_data(federation)
        federation.wait_for_nodes()
        node = psutil.Process(federation.running["supernode-0"].pid)
        before = _cpu_seconds(node)
        largest = _follow(federation, _settings(app, folder))
        lines = run_record.read(folder / "run/rounds.jsonl")
        return lines, (_cpu_seconds(node) - before) / len(lines), largest


def _settings(app: str, folder: Path) -> dict[str, Scalar]:
    """One client with its own data; errors of its clients must not be silent, hence no privacy."""
    common: dict[str, Scalar] = {"run-dir": str(folder / "run"), "round-timeout-s": 120.0}
    if app == "pina":
        extra: Mapping[str, Scalar] = {
            "clients": 1,
            "clusters": 1,
            "rotations": "0",
            "rounds": 3,
            "private": False,
            "weights": "digits",
        }
        return {**PINA, **DEVICES, **extra, **common}
    positions = folder / "positions.csv"
    positions.write_text("id,x_m,y_m\na,0,0\n")
    extra = {"devices": 1, "positions": str(positions), "image-shape": "8x8x1"}
    return {**WIRELESS, **DEVICES, **extra, **common}


def _follow(federation: LocalFederation, settings: Mapping[str, Scalar]) -> float:
    """Run to the end; returns the largest resident size (MB) of a ClientApp."""
    file = federation.root / "settings.toml"
    file.write_text(tomli_w.dumps(settings), "utf-8")
    run_id = federation.submit(ROOT, file)
    largest, checked = 0.0, time.monotonic()
    while True:
        for client in federation.children("supernode-0", "flwr-clientapp"):
            try:
                largest = max(largest, client.memory_info().rss / 2**20)
            except psutil.Error:
                continue
        time.sleep(0.1)
        if time.monotonic() - checked > 5:
            checked = time.monotonic()
            status = federation.status(run_id)
            if status.startswith("finished"):
                break
    if status != "finished:completed" or "is left out" in federation.run_log(run_id):
        raise RuntimeError(f"{status}, not without errors: {federation.log('supernode-0')[-500:]}")
    return largest


def _cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process and of its children, also of those that have ended."""
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        times = member.cpu_times()
        total += times.user + times.system
        total += times.children_user + times.children_system
    return float(total)
