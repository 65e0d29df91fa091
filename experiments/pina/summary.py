"""Figures of what is there, and paired intervals of its main differences.

    python experiments/pina/summary.py --data DIR --work WORK

Draws ``figure3a-NAME.png`` (ARI over rounds) and ``figure3b-NAME.png`` (accuracy over rounds) from
``curves.csv``. Prints ``COMPARISONS`` of the runs made in WORK, with intervals of a paired
bootstrap over seeds and over test images. The tables: ``tables.py``.
"""

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
from table1 import PARTS, runs_of
from tables import NAMES, read

RESAMPLES = 2_000


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
    for number, (name, points) in enumerate(series.items()):
        rounds = sorted(points)
        means = [statistics.mean(points[r]) for r in rounds]
        style = "-" if number < 10 else "--"  # ten colours
        (line,) = axes.plot(rounds, means, style, marker="o", markersize=3, label=name)
        low, high = [min(points[r]) for r in rounds], [max(points[r]) for r in rounds]
        axes.fill_between(rounds, low, high, color=line.get_color(), alpha=0.12)
    axes.set_xlabel("training round (0: after the initialisation)")
    axes.set_ylabel(label)
    axes.set_title(f"{NAMES[dataset]}\nepsilon = 2 for a simulated cohort of 10,000", fontsize=9)
    axes.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    figure.savefig(HERE / f"{file}-{dataset}.png", dpi=110)
    plt.close(figure)


def main() -> None:
    """Draw, print."""
    chosen = options(__doc__)
    for dataset in DATASETS:
        figure(dataset, "ari", "figure3a", "adjusted Rand index")
        figure(dataset, "accuracy", "figure3b", "test accuracy")
    comparisons(chosen.work, chosen.datasets)


if __name__ == "__main__":
    main()
