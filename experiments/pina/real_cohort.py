"""The honest column: the same task with the noise of the REAL cohort of 1,000 clients.

    python experiments/pina/real_cohort.py --data DIR --work WORK

A linear head on all 384 publicly whitened features, one local epoch, q = 1. PINA has what the rule
chooses (``strategies.rule``: spectral, coded), at epsilon 8 also secure-kmeans; its prototypes stay
fixed. The oracle has the same release, and slots to compare. Writes
``real_cohort.csv``.
"""

import csv
import statistics
from pathlib import Path
from typing import Any

from runs import HERE, Run, execute, options
from summary import interval, scores

HEAD: dict[str, Any] = {
    "trainable": "head",
    "epochs": 1,
    "q": 1.0,
    "evaluate_every": 10,
}
SETTINGS: dict[float, dict[str, Any]] = {
    8.0: {"rounds": 30, "whitening_damping": 0.3, "learning_rate": 2.4, "clip": 3.0},
    2.0: {"rounds": 20, "whitening_damping": 1.0, "learning_rate": 1.2, "clip": 1.5},
}
"""Chosen by ``real_cohort_tuning.py``, for FedAvg; the others take them over."""
LIKE_A_LARGE_CROWD = {"init_share": 0.37, "prototype_rounds": 1000}
"""Prototypes decide to the end, as where the rule chooses."""
SEEDS = (0, 1, 2, 3, 4)
COLUMNS = ("method", "epsilon", "noise_cohort", "seed", "accuracy", "ari", "initial_ari")


def contestants(epsilon: float, seed: int) -> dict[str, Run]:
    """The runs of one seed, by name."""
    own = {**HEAD, **SETTINGS[epsilon]}

    def run(method: str, **further: Any) -> Run:
        settings = tuple({**own, **further}.items())
        return Run("cifar10", method, seed, epsilon, None, settings=settings)

    found = {
        "fedavg": run("fedavg"),
        "pina": run("pina"),
        "oracle": run("oracle", release="coded"),
        # Skipping clusters that drown in noise makes slots look worse still.
        "oracle, slots": run("oracle", release="slots", skip="none"),
    }
    if epsilon == 8.0:
        found["pina, secure-kmeans"] = run("pina", init="secure-kmeans", **LIKE_A_LARGE_CROWD)
    return found


def main() -> None:
    """Run, write the CSV, print means and paired intervals."""
    chosen = options(__doc__)
    planned = [
        (epsilon, name, run)
        for seed in SEEDS
        for epsilon in SETTINGS
        for name, run in contestants(epsilon, seed).items()
    ]
    execute([run for _, _, run in planned], chosen.data, chosen.work)
    rows = []
    for epsilon, name, run in planned:
        for result in execute([run], chosen.data, chosen.work, only_finished=True):
            row = {"method": name, "epsilon": epsilon, "noise_cohort": 1000, "seed": run.seed}
            rows.append(row | {k: result[k] for k in ("accuracy", "ari", "initial_ari")})
    with (HERE / "real_cohort.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    report(rows, chosen.work)


def report(rows: list[dict[str, Any]], work: Path) -> None:
    """A Markdown table."""
    print("| epsilon | method | accuracy % by seed | mean | ARI by seed | minus FedAvg |")
    print("|---|---|---|---|---|---|")
    for epsilon in SETTINGS:
        for name in contestants(epsilon, 0):
            own = [r for r in rows if (r["method"], r["epsilon"]) == (name, epsilon)]
            if not own:
                continue
            pairs = [
                (scores(work, contestants(epsilon, r["seed"])[name]),
                 scores(work, contestants(epsilon, r["seed"])["fedavg"]))
                for r in own
            ]  # fmt: skip
            kept = [(a, b) for a, b in pairs if a is not None and b is not None]
            mean, low, high = interval([a for a, _ in kept], [b for _, b in kept])
            difference = f"{100 * mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
            each = " ".join(f"{100 * r['accuracy']:.1f}" for r in own)
            aris = " ".join(f"{r['ari']:.2f}" for r in own if r["ari"] is not None)
            print(
                f"| {epsilon:g} | {name} | {each} | "
                f"{100 * statistics.mean(r['accuracy'] for r in own):.1f} | {aris} | "
                f"{'-' if name == 'fedavg' else difference} |"
            )


if __name__ == "__main__":
    main()
