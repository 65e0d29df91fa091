"""Measure the planner against its targets: python benchmarks/clustering.py [--only NAME ...]

Everything runs in one thread and is timed in CPU seconds of the process. A gap is (value - best)
/ best against the best value stored with an instance or found by a longer run; a certificate's gap
is (value - lower bound) / value. Instances come from ../shared/instances (or FEDCLUSTERS_SHARED),
larger ones from its generate.py. README-clustering.md explains the sections.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before numpy is imported

import numpy as np  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from strategies.wireless.association import associate  # noqa: E402
from strategies.wireless.baselines import (  # noqa: E402
    fedavg_value,
    kmeans_clustering,
    random_clustering,
    shapefl_search,
    similarity_clustering,
)
from strategies.wireless.bounds import lower_bound  # noqa: E402
from strategies.wireless.head_selection import select_heads  # noqa: E402
from strategies.wireless.problem import (  # noqa: E402
    ClusteringProblem,
    check_clustering,
    load_instance,
    objective,
)
from strategies.wireless.solution import Solution  # noqa: E402
from strategies.wireless.solve import solve  # noqa: E402

SHARED = Path(os.environ.get("FEDCLUSTERS_SHARED", ROOT.parent / "shared")) / "instances"
cpu = time.process_time


def search(problem: ClusteringProblem, seconds: float, seed: int, mode: str = "fast") -> Solution:
    rng = np.random.default_rng(seed)
    found = select_heads(problem, mode=mode, seconds=seconds, rng=rng, clock=cpu)  # type: ignore[arg-type]
    check_clustering(problem, found.clustering)
    return found


def stored_best(path: Path) -> float:
    with np.load(path) as stored:
        return float(stored["best_value"])


def generated(devices: int, alpha: float, seed: int) -> ClusteringProblem:
    spec = importlib.util.spec_from_file_location("generate", SHARED / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.generate(devices, alpha=alpha, seed=seed)
    keys = ("positions_m", "server_m", "unit_gradients", "candidates", "capacity", "alpha")
    return ClusteringProblem(*(made[key] for key in keys))


def verdict(passed: bool) -> str:
    return "met" if passed else "MISSED"


def proved(options: argparse.Namespace) -> None:
    """Proved instances: search for 1 CPU-s, and the time of a proof."""
    gaps, proofs, runs = [], [], []
    for path in sorted(SHARED.glob("*.npz")):
        if path.name.startswith("u100"):
            continue
        problem, heads = load_instance(path)
        best = stored_best(path)
        for seed in range(options.seeds):
            before = cpu()
            if len(heads):
                rng = np.random.default_rng(seed)
                found = associate(problem, heads, seconds=0.95, rng=rng, clock=cpu)
            else:
                found = search(problem, 0.95, seed)
            runs.append(cpu() - before)
            gaps.append(max(0.0, found.value / best - 1))
        before = cpu()
        exact = solve(problem, heads)
        proofs.append(cpu() - before)
        if exact.status != "optimal" or abs(exact.value - best) > 1e-9:
            print(f"  {path.name}: NOT PROVED ({exact.value} against {best})")
            proofs[-1] = np.inf
    hit = float(np.mean(np.array(gaps) < 1e-9))
    mean = float(np.mean(gaps))
    print(f"  searches: {len(gaps)}, optimal {hit:.1%}, mean gap {mean:.4%}", end="; ")
    print(f"CPU-s median {np.median(runs):.2f}, longest {max(runs):.2f}")
    print(f"  target >= 98 %, mean gap <= .02 %, 1 s: {verdict(hit >= 0.98 and mean <= 2e-4)}")
    print(f"  proofs: {len(proofs)}, CPU-s median {np.median(proofs):.3f}, ", end="")
    print(f"longest {max(proofs):.3f}; target <= 2 s: {verdict(max(proofs) <= 2)}")


def hundred(options: argparse.Namespace) -> None:
    """U = 100: gap to the best known value after 10 CPU-s (negative: a new best)."""
    new, passed = 0, []
    for path in sorted(SHARED.glob("u100*.npz")):
        problem, _ = load_instance(path)
        best, limit = stored_best(path), 0.0075 if path.name.endswith("a100.npz") else 0.003
        found = [search(problem, 10.0, seed) for seed in range(options.seeds)]
        gaps = [solution.value / best - 1 for solution in found]
        new += min(gaps) < -1e-6
        passed.append(float(np.median(gaps)) <= limit)
        print(f"  {path.stem}: median gap {np.median(gaps):+.3%}, worst {max(gaps):+.3%}, ", end="")
        print(f"best value {min(s.value for s in found):.9f}, limit {limit:.2%}", flush=True)
    print(f"  within the limits: {sum(passed)} of {len(passed)}: {verdict(all(passed))}")
    print(f"  new best values: {new} of {len(passed)}; target a third: {verdict(3 * new >= 9)}")


def thousand(options: argparse.Namespace) -> None:
    """U = 1,000, all devices candidates: 2 and 20 CPU-s against a long run."""
    for alpha in options.alphas:
        problem = generated(1000, alpha, seed=1)
        long = search(problem, options.reference, 99).value
        results = {}
        for seconds, limit in ((2.0, 0.015), (20.0, 0.003)):
            before = cpu()
            values = [search(problem, seconds, seed).value for seed in range(options.seeds)]
            spent = (cpu() - before) / options.seeds
            results[seconds] = min(values)
            gap = float(np.median(values)) / long - 1
            print(f"  alpha {alpha}: {spent:.1f} CPU-s, median gap {gap:+.3%} to ", end="")
            print(f"{options.reference:.0f} CPU-s ({long:.6f}); ", end="")
            print(f"limit {limit:.1%}: {verdict(gap <= limit)}", flush=True)


def ten_thousand(options: argparse.Namespace) -> None:
    """U = 10,000 in a process of its own: CPU seconds and memory beyond the gradients."""
    for alpha in options.alphas:
        command = [sys.executable, __file__, "--one-large", str(alpha)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        value, start, seconds, extra = (float(word) for word in done.stdout.split())
        print(f"  alpha {alpha}: value {value:.6f} (k-means with medoids {start:.6f}), ", end="")
        print(
            f"{seconds:.1f} CPU-s, {extra:.0f} MB beyond the gradients; limits 15 s, 100 MB: ",
            end="",
        )
        print(verdict(seconds <= 15 and extra <= 100 and value <= start), flush=True)


def one_large(alpha: float) -> None:
    problem = generated(10_000, alpha, seed=1)
    search(generated(400, alpha, seed=1), 0.2, 0)  # imports and first-use buffers
    page = resource.getpagesize()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * page
    before = cpu()
    found = search(problem, 14.5, 0)
    seconds = cpu() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    rival = objective(problem, kmeans_clustering(problem, np.random.default_rng(0)))
    print(found.value, rival, seconds, (peak - resident) / 1e6)


def certificate(options: argparse.Namespace) -> None:
    """U = 100: gap between 4 CPU-s of search and up to 15 CPU-s of bounding."""
    limits = {0.0: 0.015, 0.25: 0.07, 0.5: 0.07, 0.75: 0.10, 1.0: 0.15}
    cases = [(alpha, "paper", limit) for alpha, limit in limits.items()]
    cases += [(alpha, "size", 0.04) for alpha in (0.5, 1.0)]
    bases = sorted(SHARED.glob("u100*a050.npz"))
    for alpha, weighting, limit in cases:
        gaps, spent = [], []
        for path in bases:
            problem, _ = load_instance(path)
            problem = replace(problem, alpha=alpha, weighting=weighting)  # type: ignore[arg-type]
            value = search(problem, 4.0, 0).value
            before = cpu()
            bound = lower_bound(problem, value, 15.0, clock=cpu)
            spent.append(cpu() - before)
            gaps.append(1 - bound / value)
        print(f"  alpha {alpha}, {weighting}: gaps {', '.join(f'{g:.2%}' for g in gaps)}; ", end="")
        print(f"median {np.median(gaps):.2%}, {np.median(spent):.1f} CPU-s; ", end="")
        print(f"limit {limit:.1%} for all: {verdict(max(gaps) <= limit)}", flush=True)


def rivals(options: argparse.Namespace) -> None:
    """Eq. 16 of the baselines, a ShapeFL-like search and Algorithm 1 against 3 CPU-s of ours."""
    others: dict[str, Callable[[ClusteringProblem], float]] = {
        "fedavg": fedavg_value,
        "random": lambda p: objective(p, random_clustering(p, np.random.default_rng(0))),
        "k-means": lambda p: objective(p, kmeans_clustering(p, np.random.default_rng(0))),
        "similarity": lambda p: objective(p, similarity_clustering(p, np.random.default_rng(0))),
        "shapefl": lambda p: objective(p, shapefl_search(p, 60.0)),
        "algorithm 1": lambda p: search(p, 60.0, 0, mode="paper").value,
    }
    never_worse = True
    for path in sorted(SHARED.glob("u100*.npz")):
        problem, _ = load_instance(path)
        ours = search(problem, 3.0, 0).value
        line = f"  {path.stem}: ours {ours:.5f}"
        for name, rival in others.items():
            before = cpu()
            value = rival(problem)
            line += f"; {name} {value / ours - 1:+.1%} ({cpu() - before:.1f} s)"
            never_worse &= ours <= value + 1e-12
        print(line, flush=True)
    print(f"  never worse than any: {verdict(never_worse)}")


SECTIONS = {
    "proved": proved,
    "u100": hundred,
    "u1000": thousand,
    "u10000": ten_thousand,
    "certificate": certificate,
    "rivals": rivals,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--seeds", type=int, default=1, help="searches an instance (default 1)")
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.5], help="U >= 1,000 only")
    parser.add_argument("--reference", type=float, default=600.0, help="CPU-s of the long run")
    parser.add_argument("--one-large", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_large is not None:
        one_large(options.one_large)
        return 0
    if not (SHARED / "index.csv").exists():
        print(f"no instances at {SHARED}: set FEDCLUSTERS_SHARED", file=sys.stderr)
        return 2
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
        processor = names[0] if names else processor
    print(
        f"{processor}, {os.cpu_count()} cores, one thread; Python {platform.python_version()}, ",
        end="",
    )
    print(f"numpy {np.__version__}; load {os.getloadavg()[0]:.1f}")
    for name in options.only:
        section = SECTIONS[name]
        print(f"{name}: {(section.__doc__ or '').strip()}", flush=True)
        before = cpu()
        section(options)
        print(f"  ({cpu() - before:.0f} CPU-s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
