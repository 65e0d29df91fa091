"""How much each setting matters: FedAvg and PINA on rotated CIFAR-10, one change at a time.

    python experiments/pina/sensitivity.py --data DIR --work WORK

Around the settings of Table 1 at epsilon = 2 (simulated cohort 10,000). Writes ``sensitivity.csv``
and a figure for each factor.
"""

import csv
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from runs import HERE, Run, execute, options
from tuning import tuned

SEEDS = (0,)
FACTORS: dict[str, dict[str, dict[str, Any]]] = {
    "clipping threshold S": {str(v): {"clip": v} for v in (0.3, 1.0, 3.0)},
    "expected cohort q K": {str(round(1000 * v)): {"q": v} for v in (0.02, 0.05, 0.1)},
    "simulated cohort": {str(v): {"noise_cohort": v} for v in (3_000, 10_000, 30_000)},
    "C (2 are true)": {str(v): {"clusters": v} for v in (1, 2, 3, 4)},
    "sizes of the true clusters": {v: {"rotation_shares": v} for v in ("1,1", "9,1")},
    "images per client (10,000 in all)": {
        str(v): {"images_per_client": v, "clients": 10_000 // v} for v in (5, 10, 20)
    },
    "drop-outs": {str(v): {"drop_out": v} for v in (0.0, 0.3)},
}


def run_of(method: str, seed: int, change: dict[str, Any]) -> Run:
    """A run of Table 1 with one change."""
    direct = {k: v for k, v in change.items() if k in ("noise_cohort", "drop_out")}
    settings = {**dict(tuned("cifar10", method)), **change}
    usual = {"q": 0.05, "clusters": 2, "rotation_shares": "1,1", "images_per_client": 10}
    for key in (*direct, *(k for k, v in usual.items() if settings.get(k) == v)):
        settings.pop(key)
    if settings.get("clients") == 1000:
        settings.pop("clients")
    return Run("cifar10", method, seed, settings=tuple(settings.items()), **direct)


def main() -> None:
    """Run, write, draw."""
    chosen = options(__doc__, collect={"action": "store_true", "help": "run nothing"})
    rows: list[dict[str, Any]] = []
    for factor, values in FACTORS.items():
        for value, change in values.items():
            for seed in SEEDS:
                for method in ("fedavg", "pina"):
                    if method == "fedavg" and "clusters" in change:
                        change = {}  # FedAvg has one model
                    run = run_of(method, seed, change if method == "fedavg" else values[value])
                    own = execute([run], chosen.data, chosen.work, only_finished=chosen.collect)
                    for result in own:
                        row = {"factor": factor, "value": value, "method": method, "seed": seed}
                        rows.append(row | {k: result[k] for k in ("accuracy", "ari")})
    with (HERE / "sensitivity.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for number, factor in enumerate(FACTORS):
        found = [row for row in rows if row["factor"] == factor]
        if len({row["value"] for row in found}) > 1:
            draw(factor, number, found)


def draw(factor: str, number: int, rows: list[dict[str, Any]]) -> None:
    """Accuracy of both methods against the values of a factor."""
    figure, axes = plt.subplots(figsize=(4.5, 3.2))
    for method in ("fedavg", "pina"):
        own = [row for row in rows if row["method"] == method]
        places = [list(FACTORS[factor]).index(row["value"]) for row in own]
        axes.plot(places, [100 * row["accuracy"] for row in own], "o-", label=method)
    axes.set_xticks(range(len(FACTORS[factor])), list(FACTORS[factor]))
    axes.set_xlabel(factor)
    axes.set_ylabel("test accuracy %")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE / f"sensitivity-{number}.png", dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
