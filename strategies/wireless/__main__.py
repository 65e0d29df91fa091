"""Command line: ``python -m strategies.wireless solve | plan`` (``--help`` shows the options)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from strategies.wireless.channel import Channel
from strategies.wireless.links import run_account
from strategies.wireless.plan import load_gradients, write_assignment, write_map
from strategies.wireless.problem import (
    ClusteringProblem,
    load_instance,
    representativeness,
    total_distance_m,
)
from strategies.wireless.similarity import unit_gradients
from strategies.wireless.solution import Solution
from strategies.wireless.solve import Method, solve
from strategies.wireless.topology import read_devices


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 on success, 2 with one line on standard error for bad input."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m strategies.wireless", description=__doc__)
    commands = parser.add_subparsers(required=True)

    one = commands.add_parser("solve", help="solve an instance file (.npz)")
    one.add_argument("instance", help=".npz with positions_m, server_m, unit_gradients, ...")
    one.add_argument("--json", action="store_true", help="print one JSON object")
    one.add_argument("--alpha", type=float, help="instead of the instance's")
    one.set_defaults(run=_solve)

    two = commands.add_parser("plan", help="plan for your own devices (.csv)")
    two.add_argument("devices", help="columns id, x_m, y_m, optional candidate, capacity")
    two.add_argument("--server-x-m", type=float, required=True)
    two.add_argument("--server-y-m", type=float, required=True)
    two.add_argument("--capacity", type=int, required=True, help="devices a head can serve")
    two.add_argument("--alpha", type=float, default=0.5, help="weight of similarity (0..1)")
    two.add_argument("--gradients", help=".npz with key gradients; without it: distance only")
    two.add_argument("--assignment", default="assignment.csv", help="where to write it")
    two.add_argument("--map", default="map.png", help="where to write it")
    two.set_defaults(run=_plan)

    for command in (one, two):
        command.add_argument("--weighting", choices=["paper", "size"])
        command.add_argument("--seconds", type=float, help="budget (default 3)")
        command.add_argument(
            "--sweeps", type=int, help="reproducible budget instead (no certificate)"
        )
        command.add_argument("--seed", type=int, default=0)
        how = command.add_mutually_exclusive_group()
        how.add_argument("--exact", action="store_true", help="integer program through PuLP")
        how.add_argument("--paper", action="store_true", help="Algorithm 1 as printed")
        how.add_argument("--search", action="store_true", help="search even where a proof is cheap")
        command.add_argument("--solver", choices=["highs", "cbc"], default="highs")
        command.add_argument("--no-bound", action="store_true", help="skip the certificate")
    return parser


def _run(problem: ClusteringProblem, options: argparse.Namespace, heads: np.ndarray) -> Solution:
    method: Method = "auto"
    if options.exact:
        method = "pulp"
    elif options.paper:
        method = "paper"
    elif options.search:
        method = "search"
    seconds = options.seconds
    if seconds is None and options.sweeps is None:
        seconds = 60.0 if options.exact else 3.0
    return solve(
        problem,
        heads,
        method=method,
        seconds=seconds,
        sweeps=options.sweeps,
        seed=options.seed,
        solver=options.solver,
        certify=not options.no_bound,
    )


def _solve(options: argparse.Namespace) -> int:
    problem, heads = load_instance(options.instance)
    if options.alpha is not None:
        problem = replace(problem, alpha=options.alpha)
    if options.weighting is not None:
        problem = replace(problem, weighting=options.weighting)
    solution = _run(problem, options, heads)
    if options.json:
        print(
            json.dumps(
                {
                    "value": solution.value,
                    "labels": solution.clustering.labels.tolist(),
                    "heads": solution.clustering.heads.tolist(),
                    "lower_bound": solution.lower_bound,
                    "gap": solution.gap,
                    "status": solution.status,
                    "seconds": solution.seconds,
                }
            )
        )
    else:
        _report(problem, solution)
    return 0


def _plan(options: argparse.Namespace) -> int:
    server = (options.server_x_m, options.server_y_m)
    topology = read_devices(options.devices, server, options.capacity)
    if options.gradients:
        rows = unit_gradients(load_gradients(options.gradients, topology))
    else:
        rows = np.zeros((len(topology.ids), 1), dtype=np.float32)
    problem = topology.problem(
        rows,
        alpha=options.alpha if options.gradients else 0.0,
        weighting=options.weighting or "paper",
    )
    solution = _run(problem, options, np.zeros(0, dtype=np.int64))
    write_assignment(options.assignment, topology, solution.clustering)
    write_map(options.map, topology, solution.clustering)
    if not options.gradients:
        print("no gradients given: planned by distance only")
    _report(problem, solution)
    energy = run_account(
        Channel(), problem.positions_m, problem.server_m, solution.clustering, iterations=2
    )
    print(
        f"energy for two local iterations, one global round: uplink {energy.uplink_j:.4g} J, "
        f"relay {energy.relay_j:.4g} J (paper's radio parameters, uplink only)"
    )
    print(f"wrote {options.assignment} and {options.map}")
    return 0


def _report(problem: ClusteringProblem, solution: Solution) -> None:
    found = solution.clustering
    print(
        f"objective {solution.value:.6f} ({solution.status}; lower bound "
        f"{solution.lower_bound:.6f}, gap {solution.gap:.2%}) in {solution.seconds:.2f} s"
    )
    print(
        f"{len(found.heads)} clusters, total distance {total_distance_m(problem, found):.1f} m, "
        f"c(C) {representativeness(problem, found):.4f}"
    )


if __name__ == "__main__":
    sys.exit(main())
