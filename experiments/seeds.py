"""Run a preset with several seeds through Flower and tabulate the results.

    python experiments/seeds.py --preset demo --seeds 0 1 2 3 4 --output experiments/digits.csv

Finished runs in ``--runs`` are not repeated; a run that was killed is resumed. Every further
KEY=VALUE goes to each run.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("method", "seed", "accuracy_mean", "ari", "epsilon_outside", "rounds", "seconds")


def run_seed(options: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Summary of one seed, from its run directory if it is there."""
    run_dir = options.runs / f"{options.preset}-seed{seed}"
    summary = run_dir / "summary.json"
    if (run_dir / "config.toml").exists():
        command = ["resume", str(run_dir)]
    else:
        command = ["run", "--preset", options.preset, "--data", str(options.data)]
        command += [f"seed={seed}", f"run-dir={run_dir}", *options.settings]
    if not summary.exists() or len(json.loads(summary.read_text())) < options.methods:
        subprocess.run([sys.executable, "-m", "pina_app", *command], check=True)
    return [{**entry, "seed": seed} for entry in json.loads(summary.read_text())]


def main() -> None:
    """Run, write the CSV, print mean and standard deviation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--methods", type=int, default=3, help="methods of the preset")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    rows = [row for seed in options.seeds for row in run_seed(options, seed)]
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        accuracies = [100 * row["accuracy_mean"] for row in own]
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        aris = [row["ari"] for row in own if row["ari"] is not None]
        ari = f"{statistics.mean(aris):.3f} (lowest {min(aris):.3f})" if aris else "-"
        print(f"{method:8} accuracy {statistics.mean(accuracies):.2f} +- {spread:.2f} %  ARI {ari}")


if __name__ == "__main__":
    main()
