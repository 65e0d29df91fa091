"""How seconds a round, memory and bytes grow with clients, cohort, model size and clusters.

Every point runs in a process of its own, so its peak memory is its own. ``--quick`` leaves out
the slow points.
"""

import argparse
import dataclasses
import json
import logging
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import machine
import torch
from workload import Job, Project, create_workload

SERIES: dict[str, list[Job]] = {
    "clients, cohort 50": [Job(clients=k) for k in (100, 1_000, 10_000)],
    "clients, q = 0.1": [Job(clients=k, cohort=k // 10) for k in (100, 1_000, 10_000)],
    "cohort, all clients": [Job(clients=k, cohort=k) for k in (10, 50, 500)],
    "clusters": [Job(clusters=c) for c in (1, 2, 4, 8)],
    "model": [
        Job(model=f"vit_{size}_patch16_224", image_size=96) for size in ("tiny", "small", "base")
    ],
    "one client a node": [Job(clients=8, cohort=8, nodes=8, clusters=c) for c in (1, 2, 8)],
}
TARGETS = ("clients, cohort 50", "clients, q = 0.1")


def measure(job: Job, repetitions: int, threads: int) -> dict[str, Any]:
    """One point, in this process."""
    torch.set_num_threads(threads)
    work = create_workload(job)
    with tempfile.TemporaryDirectory() as folder:
        project = Project(work, Path(folder) / "ledger.jsonl")
        project.round()
        wall, cpu, trained = [], [], []
        for _ in range(repetitions):
            started, used = perf_counter(), process_time()
            asked = project.round()
            wall.append(perf_counter() - started)
            cpu.append(process_time() - used)
            trained.append(len(asked) * job.images * job.epochs)
        received, sent = project.message_bytes()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    data = work.samples.numel() * work.samples.element_size() / 2**20
    return {
        "seconds": median(wall),
        "cpu_seconds": median(cpu),
        "us_per_sample": median(1e6 * s / n for s, n in zip(wall, trained, strict=True)),
        "cpu_us_per_sample": median(1e6 * s / n for s, n in zip(cpu, trained, strict=True)),
        "peak_mib": peak,
        "samples_mib": data,
        "bytes_received": received,
        "bytes_sent": sent,
    }


def point(job: Job, repetitions: int, threads: int) -> dict[str, Any]:
    """One point, in a process of its own."""
    values = {k: v for k, v in dataclasses.asdict(job).items() if k not in ("data", "cache_dir")}
    command = [sys.executable, __file__, "--point", json.dumps(values)]
    command += ["--repetitions", str(repetitions), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run(quick: bool, repetitions: int, threads: int) -> dict[str, Any]:
    """All series."""
    series: dict[str, list[dict[str, Any]]] = {}
    for name, jobs in SERIES.items():
        chosen = [job for job in jobs if not quick or job.cohort <= 100]
        series[name] = []
        for job in chosen:
            few = repetitions if job.cohort <= 500 else 3
            size = {f: getattr(job, f) for f in ("clients", "cohort", "clusters", "model")}
            row = {**size, **point(job, few, threads)}
            print(f"{name}: {json.dumps(row)}", file=sys.stderr)  # it takes minutes
            series[name].append(row)
    ratios = {}
    for name in TARGETS:
        first, last = series[name][0], series[name][-1]
        ratios[name] = {
            "clients": [first["clients"], last["clients"]],
            "time_per_sample": last["us_per_sample"] / first["us_per_sample"],
            "cpu_time_per_sample": last["cpu_us_per_sample"] / first["cpu_us_per_sample"],
        }
    return {"ratios": ratios, "series": series, "machine": machine.describe()}


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    lines = ["  ".join(f"{key} {value}" for key, value in result["machine"].items())]
    for name, rows in result["series"].items():
        lines.append(f"{name}:")
        for row in rows:
            lines.append(
                f"  {row['clients']:6} clients, cohort {row['cohort']:5}, C {row['clusters']}, "
                f"{row['model']}: {row['seconds']:.3f} s, {row['us_per_sample']:.0f} us a sample "
                f"(processor {row['cpu_us_per_sample']:.0f}), peak {row['peak_mib']:.0f} MiB with "
                f"{row['samples_mib']:.0f} MiB of samples, {row['bytes_received']} B to a node, "
                f"{row['bytes_sent']} B back"
            )
    for name, values in result["ratios"].items():
        few, many = values["clients"]
        lines.append(
            f"{name}: a trained sample takes {values['time_per_sample']:.2f} times as long with "
            f"{many} clients as with {few} (processor {values['cpu_time_per_sample']:.2f})"
        )
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="cohorts up to 100 only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if arguments.point:
        job = Job(**json.loads(arguments.point))
        print(json.dumps(measure(job, arguments.repetitions, arguments.threads)))
        return
    torch.set_num_threads(arguments.threads)
    result = run(arguments.quick, arguments.repetitions, arguments.threads)
    print(json.dumps(result, indent=2) if arguments.json else table(result))


if __name__ == "__main__":
    main()
