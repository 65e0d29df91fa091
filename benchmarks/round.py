"""One round of the same job by this project, by its floor, by plain loops and by peers.

``python benchmarks/round.py`` does all of it (about ten minutes on two cores); ``--quick`` leaves
out Flower's engine, the peers and the cohort of 500; ``--json`` prints one JSON object.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import machine
import numpy as np
import simulation
import torch
from opponents import Floor, frozen_once, full_vit
from workload import CLASSES, Job, Project, create_workload

FULL_COHORTS = (50, 500)
TOLERANCE = 1e-4
"""Largest relative difference between contestants that do the same work in float32."""


def reduced_round(job: Job, repetitions: int) -> dict[str, Any]:
    """This project (in process) and the floor in turns, on the same clients and models."""
    work = create_workload(job)
    config = work.config
    with tempfile.TemporaryDirectory() as folder:
        project = Project(work, Path(folder) / "ledger.jsonl")
        floor = Floor(work.classifier)

        def bare() -> torch.Tensor:
            asked = project.nodes.asked
            return floor.train(
                project.start_models[0],
                work.samples[asked],
                work.labels[asked],
                config.epochs,
                config.learning_rate,
            )

        for _ in range(2):  # caches, and a head that is not zero
            project.round()
            updates = bare().double().numpy()
        difference = _difference(project, updates, config.clip) if job.clusters == 1 else None
        wall, cpu = machine.interleaved({"project": project.round, "floor": bare}, repetitions)
        received, sent = project.message_bytes()
    width = work.classifier.tail.width
    flops = machine.tail_gflop(width, CLASSES, job.cohort, job.images, job.epochs)
    return {
        "cohort": job.cohort,
        "project_s": median(wall["project"]),
        "floor_s": median(wall["floor"]),
        "ratio_to_floor": machine.ratio(wall["project"], wall["floor"]),
        "ratio_to_floor_cpu": machine.ratio(cpu["project"], cpu["floor"]),
        "project_cpu_s": median(cpu["project"]),
        "floor_cpu_s": median(cpu["floor"]),
        "outside_nodes_s": wall["project"][-1] - project.seconds_at_nodes,
        "difference_to_floor": difference,
        "gflop": sum(flops.values()),
        "bytes_received": received,
        "bytes_sent": sent,
    }


def _difference(project: Project, updates: np.ndarray, clip: float) -> float:
    """Relative difference between the project's sum of clipped updates and the floor's."""
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    expected = (updates * (clip / np.maximum(norms, clip))).sum(axis=0)
    found = project.clipped_sum()[0]
    difference = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    _check(difference, "the project and the floor")
    return difference


def _check(difference: float, who: str) -> None:
    """Refuse to time contestants that do not do the same work."""
    if not difference < TOLERANCE:
        raise RuntimeError(f"{who} differ by {difference:.2g} (relative): not the same job")


def loops(job: Job, repetitions: int) -> dict[str, Any]:
    """Loops over the clients, measured on one client at a time and multiplied by the cohort."""
    work = create_workload(job)
    start = {
        name: values + np.float32(0.01) for name, values in Project(work).strategy.models[0].items()
    }
    updates: dict[str, torch.Tensor] = {}
    turn = {"full": 0, "once": 0}

    def client(name: str, train: Callable[..., torch.Tensor]) -> None:
        who = turn[name] % len(work.pixels)
        turn[name] += 1
        updates[f"{name} {who}"] = train(
            work.classifier,
            start,
            work.pixels[who],
            work.labels[who],
            job.epochs,
            work.config.learning_rate,
        )

    wall, _ = machine.interleaved(
        {"full": lambda: client("full", full_vit), "once": lambda: client("once", frozen_once)},
        repetitions,
    )
    exact = (updates["full 0"] - updates["once 0"]).norm() / updates["full 0"].norm()
    _check(float(exact), "the whole ViT and the reduced samples")
    return {
        "full_vit_s": median(wall["full"]) * job.cohort,
        "frozen_once_s": median(wall["once"]) * job.cohort,
        "difference_full_to_reduced": float(exact),
        "extrapolated_from_clients": 1,
    }


def peers(job: Job, pfl_python: str) -> dict[str, Any]:
    """Rounds under Flower's engine and by pfl-research; a reason where there is none."""
    nodes, pfl_clients = 4, 2
    result: dict[str, Any] = {}
    contestants: dict[str, tuple[Callable[[], list[float] | None], float]] = {
        "project_flwr_run_s": (lambda: simulation.project_rounds(job), 1),
        "stock_flower_s": (
            lambda: simulation.stock_flower_rounds(job, nodes),
            job.cohort / nodes,
        ),
        "pfl_s": (
            lambda: simulation.pfl_rounds(pfl_python, job, pfl_clients),
            job.cohort / pfl_clients,
        ),
    }
    for name, (measure, factor) in contestants.items():
        try:
            seconds = measure()
            result[name] = "not installed" if seconds is None else median(seconds) * factor
        except (RuntimeError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            result[name] = "failed"
    return result


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    medians, lines = result["medians"], []
    lines.append("  ".join(f"{key} {value}" for key, value in result["machine"].items()))
    base = medians["project_s"]
    for name, seconds in medians.items():
        shown = seconds if isinstance(seconds, str) else f"{seconds:9.3f} s {seconds / base:8.2f}x"
        lines.append(f"{name:24} {shown}")
    for row in result["rounds"]:
        lines.append(
            f"clusters {row['clusters']}, cohort {row['cohort']:4}: "
            f"project {row['project_s']:.3f} s, floor {row['floor_s']:.3f} s, "
            f"ratio {row['ratio_to_floor']:.3f} "
            f"(processor time {row['ratio_to_floor_cpu']:.3f}), {row['gflop_per_s']:.1f} of "
            f"{result['gemm_gflop_per_s']:.1f} GFLOP/s, {row['bytes_received']} B received, "
            f"{row['bytes_sent']} B sent"
        )
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All measurements."""
    base = {"images": arguments.images, "epochs": arguments.epochs, "data": arguments.data}
    cohorts = [arguments.cohort]
    if not arguments.quick:
        cohorts += [cohort for cohort in FULL_COHORTS if cohort != arguments.cohort]
    jobs = [Job(clients=max(arguments.clients, c), cohort=c, **base) for c in cohorts]
    if not arguments.quick:
        jobs.append(Job(clients=max(arguments.clients, 50), cohort=50, clusters=2, **base))
    rounds = []
    for job in jobs:
        repetitions = arguments.repetitions if job.cohort <= 100 else 5
        rounds.append({"clusters": job.clusters, **reduced_round(job, repetitions)})
    for row in rounds:
        row["gflop_per_s"] = row["gflop"] / row["project_s"]
    first = rounds[0]
    slow = loops(jobs[0], 3)
    medians = {"project_s": first["project_s"], "floor_s": first["floor_s"]}
    medians |= {name: slow.pop(name) for name in ("frozen_once_s", "full_vit_s")}
    if not arguments.quick:
        medians |= peers(jobs[0], arguments.pfl_python)
    return {
        "ratio_to_floor": first["ratio_to_floor"],
        "ratio_to_floor_cpu": first["ratio_to_floor_cpu"],
        "speedup_vs_full_vit": medians["full_vit_s"] / first["project_s"],
        "speedup_vs_frozen_once": medians["frozen_once_s"] / first["project_s"],
        "medians": medians,
        "gemm_gflop_per_s": machine.gemm_gflops(500, 384, 1536),
        "loops": slow,
        "rounds": rounds,
        "machine": machine.describe(),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="no peers, one cohort; under 50 s")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--clients", type=int, default=50, help="K; raised to the cohort")
    parser.add_argument("--cohort", type=int, default=50, help="expected clients in a round")
    parser.add_argument("--images", type=int, default=10, help="images a client")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--data", type=Path, help="folder of real images and weights")
    parser.add_argument(
        "--pfl-python",
        default=os.environ.get("FEDCLUSTERS_PFL_PYTHON", sys.executable),
        help="interpreter that has pfl (see peers.txt)",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    result = run(arguments)
    print(json.dumps(result, indent=2) if arguments.json else table(result))


if __name__ == "__main__":
    main()
