"""``table1.md`` from ``table1.csv``: means, spreads, and intervals of paired differences.

    python experiments/pina/tables.py

A difference is to FedAvg of the same setting, seed by seed; its interval is the 95 % t interval
over seeds (from three seeds on). The test images are the same for all; intervals that count them
too: ``summary.py``.
"""

import csv
import statistics
from collections import defaultdict
from typing import Any

import numpy as np
from runs import DATASETS, HERE
from scipy import stats
from table1 import EQUAL, MAIN, OTHERS

NAMES = {
    "cifar10": "CIFAR-10, rotated by 0 and 180 degrees, C = 2",
    "fashion_mnist": "Fashion-MNIST, rotated by 0 to 270 degrees, C = 4",
    "writers": "MNIST by writer, C = 2, held-out images of each writer",
}
METHODS = (*MAIN, *OTHERS, *EQUAL)
Setting = tuple[str, str, str]
"""(public data, momentum, epsilon)."""
Rows = dict[tuple[Setting, str], dict[str, dict[str, Any]]]
"""By setting and method, then by seed."""
MAIN_SETTING: Setting = ("natural", "0.0", "2.0")
BESIDE: dict[str, Setting] = {
    "epsilon = 8": ("natural", "0.0", "8.0"),
    "no noise": ("natural", "0.0", "inf"),
    "epsilon = 2, momentum .9": ("natural", "0.9", "2.0"),
}
HEADING = """# Table 1

From `table1.csv` by `tables.py`: accuracy % (mean over five seeds, or as many as are given, +-
standard deviation), adjusted Rand index at the end (range), difference to FedAvg of the same
setting with its 95 % t interval over seeds. Epsilon for a simulated cohort of 10,000. What the rows
mean: [../README.md](../README.md).
"""


def read(name: str, dataset: str) -> list[dict[str, Any]]:
    """Rows of one data set."""
    with (HERE / name).open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["dataset"] == dataset]


def rows_of(dataset: str) -> Rows:
    """All results of one data set."""
    found: Rows = defaultdict(dict)
    for row in read("table1.csv", dataset):
        setting = row["public_data"], row["momentum"], row["epsilon"]
        found[setting, row["method"]][row["seed"]] = row
    return found


def over_seeds(differences: list[float]) -> str:
    """Mean of paired differences and, from three seeds on, its 95 % t interval, in points."""
    points = 100 * np.asarray(differences)
    if len(points) < 3:
        return f"{points.mean():+.1f}"
    low, high = stats.ttest_1samp(points, 0.0).confidence_interval(0.95)
    return f"{points.mean():+.1f} [{low:.1f}, {high:.1f}]"


def cells(rows: Rows, setting: Setting, method: str) -> tuple[str, str, str]:
    """Accuracy, ARI and difference to FedAvg; empty if there is no run."""
    own, base = rows.get((setting, method), {}), rows.get((setting, "fedavg"), {})
    if not own:
        return "", "", ""
    accuracies = [100 * float(row["accuracy"]) for row in own.values()]
    accuracy = f"{statistics.mean(accuracies):.1f}"
    if len(own) > 1:
        accuracy += f" +- {statistics.stdev(accuracies):.1f}"
    if len(own) != 5:
        accuracy += f" ({len(own)} seed{'s' * (len(own) > 1)})"
    aris = [round(float(row["ari"]), 2) + 0.0 for row in own.values() if row["ari"]]  # no -0
    ari = f"{statistics.mean(aris):.2f} ({min(aris):.2f} to {max(aris):.2f})" if aris else ""
    pairs = [(own[seed], base[seed]) for seed in sorted(own.keys() & base.keys())]
    differences = [float(a["accuracy"]) - float(b["accuracy"]) for a, b in pairs]
    return accuracy, ari, over_seeds(differences) if pairs and method != "fedavg" else ""


def overview(rows: Rows) -> list[str]:
    """One line for each method: epsilon = 2 in full, the other columns of natural public data."""
    lines = [
        f"| method | epsilon = 2 | ARI | minus FedAvg | {' | '.join(BESIDE)} |",
        "|---" * (4 + len(BESIDE)) + "|",
    ]
    for method in METHODS:
        line = [method, *cells(rows, MAIN_SETTING, method)]
        for setting in BESIDE.values():
            accuracy, _, difference = cells(rows, setting, method)
            line.append(f"{accuracy}: {difference}" if difference else accuracy)
        if any(line[1:]):
            lines.append("| " + " | ".join(line) + " |")
    return lines


def in_full(rows: Rows) -> list[str]:
    """One line for each method and setting."""
    lines = [
        "| public data | momentum | epsilon | method | accuracy % | ARI | minus FedAvg |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting, method in sorted(rows, key=_place):
        lines.append("| " + " | ".join([*setting, method, *cells(rows, setting, method)]) + " |")
    return lines


def _place(key: tuple[Setting, str]) -> tuple[Any, ...]:
    (public, momentum, epsilon), method = key
    return public != "natural", public, momentum, float(epsilon), METHODS.index(method)


def main() -> None:
    """Write the file."""
    text = HEADING
    for dataset in DATASETS:
        rows = rows_of(dataset)
        parts = (f"## {NAMES[dataset]}", "\n".join(overview(rows)), "\n".join(in_full(rows)))
        text += "\n" + "\n\n".join(parts) + "\n"
    (HERE / "table1.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
