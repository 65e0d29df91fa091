"""The honest column: the same task with the noise of the REAL cohort.

    python experiments/pina/real_cohort.py --data DIR --work WORK [--cases NAME ...] [--seeds 0 ...]

A linear head on all 384 publicly whitened features, one local epoch, q = 1. PINA has what the rule
chooses (``strategies.rule``), at epsilon 8 with 1,000 clients also secure-kmeans. The oracle has
the same release, and slots to compare. ``CASES``: 1,000 clients in two clusters of equal size; of
sizes 9:1; told of 3 and 4 clusters; half of the clients a round; 5,000 clients, which are all
training images; server momentum .5 (with half the learning rate; excludes "coded"); B trained too.
Writes ``real_cohort.csv``.
"""

import csv
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from runs import HERE, Run, execute, options
from summary import interval, scores

HEAD: dict[str, Any] = {
    "trainable": "head",
    "epochs": 1,
    "q": 1.0,
    "evaluate_every": 10,
}
SETTINGS: dict[tuple[int, float], dict[str, Any]] = {
    (1000, 8.0): {"rounds": 30, "whitening_damping": 0.3, "learning_rate": 2.4, "clip": 3.0},
    (1000, 2.0): {"rounds": 20, "whitening_damping": 1.0, "learning_rate": 1.2, "clip": 1.5},
    (5000, 2.0): {"rounds": 30, "whitening_damping": 0.3, "learning_rate": 2.4, "clip": 3.0},
}
"""By clients and epsilon. Chosen by ``real_cohort_tuning.py``, for FedAvg; the others take them."""
LIKE_A_LARGE_CROWD = {"init_share": 0.37}
"""The share of epsilon that the rule gives where it chooses."""
CASES: dict[str, dict[str, Any]] = {
    "equal": {},
    "9:1": {"rotation_shares": "9,1"},
    "C = 3": {"clusters": 3},
    "C = 4": {"clusters": 4},
    "q = 0.5": {"q": 0.5},
    "5,000 clients": {"clients": 5000},
    "momentum": {"server_momentum": 0.5},
    "B trained": {"trainable": "lora+head"},
}
SEEDS = (0, 1, 2, 3, 4)
TEST_IMAGES = 10_000
COLUMNS = ("case", "method", "epsilon", "noise_cohort", "seed", "accuracy", "ari", "initial_ari")


def contestants(case: str, epsilon: float, seed: int) -> dict[str, Run]:
    """The runs of one case and seed, by name; FedAvg, with which all are compared, first."""
    change = CASES[case]
    clients = change.get("clients", 1000)
    own = {**HEAD, **SETTINGS[clients, epsilon], **change}
    momentum = own.get("server_momentum", 0.0)
    own["learning_rate"] *= 1 - momentum  # the same step in the long run

    def run(method: str, **further: Any) -> Run:
        settings = {**own, **further}
        if method == "fedavg":
            settings.pop("clusters", None)  # it has one model
        part = "_all" if clients == 5000 else ""
        return Run(
            "cifar10", method, seed, epsilon, None, settings=tuple(settings.items()), part=part
        )

    found = {"fedavg": run("fedavg"), "pina": run("pina")}
    if "clusters" not in change:
        found["oracle"] = run("oracle", release="slots" if momentum else "coded")
    if case == "equal":
        # Skipping clusters that drown in noise makes slots look worse still.
        found["oracle, slots"] = run("oracle", release="slots", skip="none")
        if epsilon == 8.0:
            found["pina, secure-kmeans"] = run("pina", init="secure-kmeans", **LIKE_A_LARGE_CROWD)
    return found


def epsilons(case: str) -> list[float]:
    """Those with settings for the case's number of clients."""
    clients = CASES[case].get("clients", 1000)
    return [epsilon for number, epsilon in SETTINGS if number == clients]


def main() -> None:
    """Run, write the CSV, print means and paired intervals."""
    chosen = options(
        __doc__,
        cases={"nargs": "+", "default": list(CASES), "choices": list(CASES)},
        seeds={"nargs": "+", "type": int, "default": list(SEEDS)},
    )
    planned = [
        (case, epsilon, name, run)
        for case in CASES
        for seed in SEEDS
        for epsilon in epsilons(case)
        for name, run in contestants(case, epsilon, seed).items()
    ]
    wanted = [r for case, _, _, r in planned if case in chosen.cases and r.seed in chosen.seeds]
    execute(wanted, chosen.data, chosen.work)
    rows = []
    for case, epsilon, name, run in planned:
        for result in execute([run], chosen.data, chosen.work, only_finished=True):
            clients = CASES[case].get("clients", 1000)
            row = {"case": case, "method": name, "epsilon": epsilon, "noise_cohort": clients}
            row |= {key: result[key] for key in ("seed", "accuracy", "ari", "initial_ari")}
            rows.append(row)
    with (HERE / "real_cohort.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    report(rows, chosen.work)


def report(rows: list[dict[str, Any]], work: Path) -> None:
    """A Markdown table."""
    print("| case | epsilon | method | accuracy % by seed | mean | ARI by seed | minus FedAvg |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        for epsilon in epsilons(case):
            for name in contestants(case, epsilon, 0):
                wanted = (case, name, epsilon)
                own = [r for r in rows if (r["case"], r["method"], r["epsilon"]) == wanted]
                if own:
                    print(f"| {case} | {epsilon:g} | {name} | {_cells(case, name, own, work)} |")


def _cells(case: str, name: str, own: list[dict[str, Any]], work: Path) -> str:
    first, second = [], []
    shares = np.array([float(s) for s in CASES[case].get("rotation_shares", "1,1").split(",")])
    weights = np.repeat(len(shares) * shares / shares.sum(), TEST_IMAGES)  # as in the accuracy
    for row in own:
        runs = contestants(case, row["epsilon"], row["seed"])
        pair = scores(work, runs[name]), scores(work, runs["fedavg"])
        if pair[0] is not None and pair[1] is not None:
            first.append(pair[0] * weights)
            second.append(pair[1] * weights)
    difference = "-"
    if name != "fedavg" and first:
        mean, low, high = interval(first, second)
        difference = f"{100 * mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
    each = " ".join(f"{100 * row['accuracy']:.1f}" for row in own)
    aris = " ".join(f"{row['ari']:.2f}" for row in own if row["ari"] is not None)
    mean = 100 * statistics.mean(row["accuracy"] for row in own)
    return f"{each} | {mean:.1f} | {aris} | {difference}"


if __name__ == "__main__":
    main()
