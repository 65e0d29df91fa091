"""Tune every method on images (or writers) set aside, with the same three settings each.

    python experiments/pina/tuning.py --data DIR --work WORK [--datasets ...] [--methods ...]

Learning rate and clipping threshold, epsilon = 2 with the simulated cohort, one seed; what scores
best on the validation images is what ``table1.py`` uses. Start it once for each core. Writes
``tuning.csv``, which is committed.
"""

import csv
import time
from collections import defaultdict
from typing import Any

from runs import HERE, Run, execute, options

GRID = ((0.01, 0.3), (0.01, 1.0), (0.03, 1.0))
"""(learning rate, clipping threshold S)."""
MOMENTUM = 0.9
METHODS = (
    "fedavg",
    "fedavg-momentum",
    "oracle",
    "pina",
    "control",
    "ifca",
    "fedprox",
    "rr-cluster",
    "pina-random-init",
    "pina-paper",
    "ifca-ldp",
)
SEED = 100
FILE = HERE / "tuning.csv"


def tuning_run(dataset: str, method: str, learning_rate: float, clip: float) -> Run:
    """A run on the images set aside; ``fedavg-momentum`` is FedAvg with server momentum."""
    settings = (("learning_rate", learning_rate), ("clip", clip))
    name, momentum, _ = method.partition("-momentum")
    value = MOMENTUM if momentum else 0.0
    return Run(dataset, name, SEED, momentum=value, settings=settings, part="_tuning")


def tuned(dataset: str, method: str) -> tuple[tuple[str, Any], ...]:
    """The chosen settings; methods that equal FedAvg here take FedAvg's, other starts PINA's.

    With momentum all methods take those of ``fedavg-momentum``.

    Raises
    ------
    ValueError
        If ``tuning.csv`` has no row for them.
    """
    method = {"fednova": "fedavg", "feddp-kmeans": "pina"}.get(method, method)
    with FILE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if (row["dataset"], row["method"], row["chosen"]) == (dataset, method, "True"):
                rate, clip = float(row["learning_rate"]), float(row["clip"])
                return (("learning_rate", rate), ("clip", clip))
    raise ValueError(f"{FILE}: {method} was not tuned on {dataset}; run tuning.py first")


def main() -> None:
    """Run the grid and write the CSV."""
    chosen = options(__doc__, methods={"nargs": "+", "default": METHODS, "choices": METHODS})
    rows: list[dict[str, Any]] = []
    for dataset in chosen.datasets:
        runs = [tuning_run(dataset, m, rate, clip) for m in chosen.methods for rate, clip in GRID]
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        results = execute(runs, chosen.data, chosen.work)
        while len(results) < len(runs):  # another process is busy with the last ones
            time.sleep(5)
            results = execute(runs, chosen.data, chosen.work)
        for result in results:
            name = result["method"] + ("-momentum" if result["momentum"] else "")
            found[name].append({**result, **dict(result["settings"]), "method": name})
        for own in found.values():
            best = max(own, key=lambda result: result["accuracy"])
            rows += [{**result, "chosen": result is best} for result in own]
    columns = ("dataset", "method", "learning_rate", "clip", "accuracy", "ari", "chosen")
    others = []
    if FILE.exists():
        with FILE.open(encoding="utf-8") as file:
            others = [
                row
                for row in csv.DictReader(file)
                if row["dataset"] not in chosen.datasets or row["method"] not in chosen.methods
            ]
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*others, *rows])


if __name__ == "__main__":
    main()
