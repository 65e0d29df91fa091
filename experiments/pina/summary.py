"""Tables and figures of what is there: means, spreads, paired intervals, curves.

    python experiments/pina/summary.py --data DIR --work WORK

Writes ``table1.md`` from ``table1.csv``, with t intervals over seeds of the paired differences to
FedAvg, and draws ``figure3a-NAME.png`` (ARI over rounds) and ``figure3b-NAME.png`` (accuracy over
rounds) from ``curves.csv``. Prints ``COMPARISONS`` of the runs made in WORK, with intervals
of a paired bootstrap over seeds and over test images.
"""

import csv
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

mpl.use("Agg")
from matplotlib import pyplot as plt
from runs import DATASETS, HERE, Run, options
from scipy import stats
from table1 import EQUAL, MAIN, OTHERS, PARTS, runs_of

RESAMPLES = 2_000
NAMES = {
    "cifar10": "CIFAR-10, rotated by 0 and 180 degrees, C = 2",
    "fashion_mnist": "Fashion-MNIST, rotated by 0 to 270 degrees, C = 4",
    "writers": "MNIST by writer, C = 2, held-out images of each writer",
}
Key = tuple[tuple[str, str, str], str]
"""(public data, momentum, epsilon), and the method."""


def interval(
    first: list[NDArray[np.floating]], second: list[NDArray[np.floating]], seed: int = 0
) -> tuple[float, float, float]:
    """Mean difference of accuracies and its 95 % interval.

    Parameters
    ----------
    first, second : lists of (M,) arrays
        Scores of the same test images, one array for each seed, in the same order.
    """
    rng = np.random.default_rng(seed)
    if len({len(scores) for scores in (*first, *second)}) > 1:
        # Each client's own images: other seeds have others, so seeds alone are drawn.
        differences = np.array([a.mean() - b.mean() for a, b in zip(first, second, strict=True)])
        draws = rng.choice(differences, (RESAMPLES, len(differences))).mean(axis=1)
        return float(differences.mean()), *np.quantile(draws, (0.025, 0.975))
    paired = np.stack(first) - np.stack(second)
    means = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        seeds = rng.integers(len(paired), size=len(paired))
        weights = rng.multinomial(paired.shape[1], np.full(paired.shape[1], 1 / paired.shape[1]))
        means[i] = (paired[seeds].mean(axis=0) @ weights) / paired.shape[1]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(paired.mean()), float(low), float(high)


def scores(work: Path, run: Run) -> NDArray[np.floating] | None:
    """Scores of a finished run."""
    path = work / "runs" / run.name / "scores.npy"
    return np.load(path).astype(np.float32) if path.exists() else None


def over_seeds(differences: list[float]) -> str:
    """Mean of paired differences and, from three seeds on, its 95 % t interval, in points."""
    points = 100 * np.asarray(differences)
    if len(points) < 3:
        return f"{points.mean():+.1f}"
    half = stats.t.ppf(0.975, len(points) - 1) * points.std(ddof=1) / np.sqrt(len(points))
    return f"{points.mean():+.1f} [{points.mean() - half:+.1f}, {points.mean() + half:+.1f}]"


def table(dataset: str) -> list[str]:
    """One line for each method and setting, from ``table1.csv`` alone."""
    found: dict[Key, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in read("table1.csv", dataset):
        setting = row["public_data"], row["momentum"], row["epsilon"]
        found[setting, row["method"]][row["seed"]] = row
    lines = [
        f"## {NAMES[dataset]}\n",
        "| public data | momentum | epsilon | method | seeds | accuracy % | ARI | minus FedAvg |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for setting, method in sorted(found, key=_place):
        own, base = found[setting, method], found.get((setting, "fedavg"), {})
        accuracies = [100 * float(row["accuracy"]) for row in own.values()]
        aris = [float(row["ari"]) for row in own.values() if row["ari"]]
        spread = f" +- {statistics.stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
        ari = f"{statistics.mean(aris):.2f} ({min(aris):.2f} to {max(aris):.2f})" if aris else "-"
        pairs = [(own[seed], base[seed]) for seed in own.keys() & base.keys()]
        differences = [float(a["accuracy"]) - float(b["accuracy"]) for a, b in pairs]
        lines.append(
            f"| {' | '.join(setting)} | {method} | {len(own)} | "
            f"{statistics.mean(accuracies):.1f}{spread} | {ari} | "
            f"{over_seeds(differences) if pairs and method != 'fedavg' else '-'} |"
        )
    return [*lines, ""]


def _place(key: Key) -> tuple[Any, ...]:
    (public, momentum, epsilon), method = key
    order = (*MAIN, *OTHERS, *EQUAL).index(method)
    return public != "natural", public, momentum, float(epsilon), order


COMPARISONS: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = [
    ("cifar10", ("pina", 2.0, 0.0), ("fedavg", 2.0, 0.0)),
    ("cifar10", ("pina", 2.0, 0.0), ("control", 2.0, 0.0)),
    ("cifar10", ("pina", 2.0, 0.0), ("oracle", 2.0, 0.0)),
    ("cifar10", ("pina", 2.0, 0.9), ("fedavg", 2.0, 0.9)),
    ("cifar10", ("pina", 2.0, 0.9), ("control", 2.0, 0.9)),
    ("fashion_mnist", ("pina", 2.0, 0.0), ("fedavg", 2.0, 0.0)),
    ("fashion_mnist", ("pina-discriminant", 2.0, 0.0), ("fedavg", 2.0, 0.0)),
    ("fashion_mnist", ("pina-discriminant", 2.0, 0.0), ("oracle", 2.0, 0.0)),
    ("fashion_mnist", ("pina-discriminant", 2.0, 0.9), ("fedavg", 2.0, 0.9)),
    ("fashion_mnist", ("pina-discriminant", 2.0, 0.0), ("ifca", None, 0.0)),
    ("fashion_mnist", ("pina", 2.0, 0.0), ("ifca", None, 0.0)),
]
"""Data set, and (method, epsilon, momentum) of both."""


def comparisons(work: Path, datasets: list[str]) -> None:
    """Differences that are not to FedAvg of the same setting."""
    for dataset, *pair in COMPARISONS:
        if dataset not in datasets:
            continue
        runs: list[dict[int, Run]] = [{}, {}]
        for name, run in runs_of(dataset, PARTS):
            for place, wanted in zip(runs, pair, strict=True):
                usual = run.public_data == "natural"
                if usual and (name, run.epsilon, run.momentum) == wanted:
                    place[run.seed] = run
        both = [
            (scores(work, runs[0][seed]), scores(work, runs[1][seed]))
            for seed in sorted(runs[0].keys() & runs[1].keys())
        ]
        kept = [(a, b) for a, b in both if a is not None and b is not None]
        if kept:
            first, second = [a for a, _ in kept], [b for _, b in kept]
            mean, low, high = (100 * value for value in interval(first, second))
            text = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}], {len(kept)} seeds"
            print(f"{dataset}: {pair[0]} minus {pair[1]}: {text}")


def read(name: str, dataset: str) -> list[dict[str, Any]]:
    """Rows of one data set."""
    with (HERE / name).open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["dataset"] == dataset]


def figure(dataset: str, column: str, file: str, label: str) -> None:
    """Mean over seeds against rounds, with the range; epsilon = 2, no momentum."""
    series: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read("curves.csv", dataset):
        usual = (row["epsilon"], row["momentum"], row["public_data"]) == ("2.0", "0.0", "natural")
        if usual and row[column]:
            series[row["method"]][int(row["round"])].append(float(row[column]))
    if not series:
        return  # writers have no true clusters
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for name, points in series.items():
        rounds = sorted(points)
        means = [statistics.mean(points[r]) for r in rounds]
        (line,) = axes.plot(rounds, means, marker="o", markersize=3, label=name)
        low, high = [min(points[r]) for r in rounds], [max(points[r]) for r in rounds]
        axes.fill_between(rounds, low, high, color=line.get_color(), alpha=0.12)
    axes.set_xlabel("training round (0: after the initialisation)")
    axes.set_ylabel(label)
    axes.set_title(f"{NAMES[dataset]}\nepsilon = 2 for a simulated cohort of 10,000", fontsize=9)
    axes.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    figure.savefig(HERE / f"{file}-{dataset}.png", dpi=110)
    plt.close(figure)


HEADING = """# Table 1, all rows

From `table1.csv` by `summary.py`: mean over seeds +- standard deviation, adjusted Rand index at the
end (range), difference to FedAvg of the same setting and seeds with its 95 % t interval over seeds
(from three seeds on). Epsilon for a simulated cohort of 10,000. What the rows mean:
[../README.md](../README.md).
"""


def main() -> None:
    """Write, draw, print."""
    chosen = options(__doc__)
    lines = [HEADING]
    for dataset in DATASETS:
        lines += table(dataset)
        figure(dataset, "ari", "figure3a", "adjusted Rand index")
        figure(dataset, "accuracy", "figure3b", "test accuracy")
    (HERE / "table1.md").write_text("\n".join(lines), encoding="utf-8")
    comparisons(chosen.work, chosen.datasets)


if __name__ == "__main__":
    main()
