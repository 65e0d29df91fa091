"""Tables of ``README.md`` from the result files: mean and standard deviation over seeds.

    python experiments/wireless/tables.py

``late`` is the mean accuracy over the last 40 iterations: single evaluations of SGD without a
decaying rate vary by a point or two.
"""

import csv
from collections import defaultdict
from pathlib import Path

from runs import HERE, METHODS, spread

Rows = list[dict[str, str]]


def read(path: Path) -> Rows:
    """Rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def accuracy_table(name: str) -> None:
    """Table 1 of one data set."""
    table, curves = read(HERE / f"table1_{name}.csv"), read(HERE / f"curves_{name}.csv")
    last = max(int(row["iteration"]) for row in curves)
    print(f"\n{name}\n\n| method | final % | late % | energy J | communication s | divergence |")
    print("|---|---|---|---|---|---|")
    for method in METHODS:
        own = [row for row in table if row["method"] == method]
        late: dict[str, list[float]] = defaultdict(list)
        for row in curves:
            if row["method"] == method and int(row["iteration"]) >= 0.8 * last:
                late[row["seed"]].append(100 * float(row["accuracy"]))
        cells = [
            spread([100 * float(row["accuracy_mean"]) for row in own]),
            spread([sum(values) / len(values) for values in late.values()]),
            *(
                spread([float(row[key]) for row in own])
                for key in ("energy_j", "delay_s", "label_divergence")
            ),
        ]
        print(f"| {method} | {' | '.join(cells)} |")


def alpha_table() -> None:
    """Table 2."""
    rows = read(HERE / "table2.csv")
    keys = (
        *("clusters", "label_divergence", "distance_m"),
        *("plain_j", "shared_j", "broadcast_j", "unicast_j"),
    )
    print(f"\n| weighting | alpha | accuracy % | {' | '.join(keys)} |")
    print("|" + "---|" * (3 + len(keys)))
    for weighting, alpha in dict.fromkeys((row["weighting"], row["alpha"]) for row in rows):
        own = [row for row in rows if (row["weighting"], row["alpha"]) == (weighting, alpha)]
        cells = [spread([100 * float(row["accuracy"]) for row in own])]
        cells += [spread([float(row[key]) for row in own]) for key in keys]
        print(f"| {weighting} | {alpha} | {' | '.join(cells)} |")


def energy_table() -> None:
    """Figure 4 in numbers."""
    rows = read(HERE / "figure4.csv")
    print(f"\n| devices | band | {' | '.join(METHODS)} |\n|---|---|{'---|' * len(METHODS)}")
    for devices, band in dict.fromkeys((row["devices"], row["band"]) for row in rows):
        cells = []
        for method in METHODS:
            key = (devices, band, method)
            own = [r for r in rows if (r["devices"], r["band"], r["method"]) == key]
            cells.append(spread([float(row["energy_j"]) for row in own]))
        print(f"| {devices} | {band} | {' | '.join(cells)} |")


if __name__ == "__main__":
    for file in sorted(HERE.glob("table1_*.csv")):
        accuracy_table(file.stem.removeprefix("table1_"))
    alpha_table()
    energy_table()
