"""Table 1 and Figure 3: every method on every data set, by seed, from real data.

    python experiments/pina/table1.py --data DIR --work WORK [--datasets cifar10 ...] [--part N ...]
        [--seeds 0 ...] [--missing]

Start it once for each core; it does what is not done yet, in the order of ``PARTS``, and puts
what is there into ``table1.csv`` and ``curves.csv``. With ``--missing`` a row that ``table1.csv``
has is done, although WORK is new. Settings come from ``tuning.csv``.
``pina-discriminant`` is PINA with that initialisation (and the settings of ``pina``, as has
``feddp-kmeans``). ``fedprox-0`` and ``fednova`` equal ``fedavg`` here (mu = 0; equal local steps),
which the tests prove and one seed shows.
"""

import csv
from collections.abc import Iterable
from functools import cache
from typing import Any

from runs import HERE, Run, execute, options
from tuning import tuned

MAIN = ("fedavg", "oracle", "pina", "pina-discriminant", "control", "ifca")
OTHERS = ("fedprox-1", "rr-cluster", "feddp-kmeans", "pina-random-init", "pina-paper", "ifca-ldp")
EQUAL = ("fedprox-0", "fednova")
SEEDS = (0, 1, 2, 3, 4)
PARTS: dict[int, list[dict[str, Any]]] = {
    1: [{"methods": MAIN, "seeds": SEEDS}],
    2: [{"methods": OTHERS, "seeds": SEEDS}, {"methods": EQUAL, "seeds": (0,)}],
    3: [{"methods": MAIN, "seeds": SEEDS, "momentum": 0.9}],
    4: [{"methods": MAIN, "seeds": SEEDS, "epsilon": value} for value in (None, 8.0)],
    5: [
        {"methods": ("fedavg", "oracle", "pina"), "seeds": SEEDS, "public_data": source}
        for source in ("in-domain", "out-of-domain", "synthetic", "none")
    ],
    6: [{"methods": OTHERS, "seeds": SEEDS, "epsilon": value} for value in (None, 8.0)],
}


def runs_of(dataset: str, parts: Iterable[int]) -> list[tuple[str, Run]]:
    """Name in the table, and run; by seed within a part, so that every method has the first."""
    found = []
    for row in (row for part in parts for row in PARTS[part]):
        for seed in row["seeds"]:
            for name in row["methods"]:
                method, _, mu = name.partition("-") if "fedprox" in name else (name, "", "")
                method = "pina" if name == "pina-discriminant" else method
                if dataset == "writers" and method in ("oracle", "ifca-ldp"):
                    continue  # writers have no true clusters
                if row.get("epsilon", 2.0) is None and method == "ifca-ldp":
                    continue  # without noise it is IFCA
                try:
                    settings = tuned(dataset, "fedavg-momentum" if "momentum" in row else method)
                except ValueError as error:
                    _say(str(error))
                    continue
                if name == "pina-discriminant":
                    settings += (("init", "discriminant"),)
                if mu:
                    settings += (("proximal_mu", float(mu)),)
                further = {k: row[k] for k in ("epsilon", "momentum", "public_data") if k in row}
                found.append((name, Run(dataset, method, seed, settings=settings, **further)))
    return found


@cache
def _say(text: str) -> None:
    """Print what is said more than once only once."""
    print(text)


def main() -> None:
    """Run, and write both files."""
    chosen = options(
        __doc__,
        part={"nargs": "+", "type": int, "default": list(PARTS)},
        seeds={"nargs": "+", "type": int, "default": SEEDS},
        missing={"action": "store_true", "help": "skip the rows of table1.csv"},
    )
    there = {_run(row) for row in _read("table1.csv")} if chosen.missing else set()
    for part in chosen.part:
        for dataset in chosen.datasets:
            wanted = [
                run
                for name, run in runs_of(dataset, [part])
                if run.seed in chosen.seeds and _run(row_of(name, run)) not in there
            ]
            execute(wanted, chosen.data, chosen.work)
    rows, curves = [], []
    for dataset in chosen.datasets:
        for name, run in runs_of(dataset, PARTS):
            for result in execute([run], chosen.data, chosen.work, only_finished=True):
                row = row_of(name, run)
                rows.append(row | {key: result[key] for key in ("accuracy", "ari")})
                start = [[0, None, result["initial_ari"]]] if result["initial_ari"] else []
                for number, accuracy, ari in start + result["curve"]:
                    curves.append(row | {"round": number, "accuracy": accuracy, "ari": ari})
    write("table1.csv", rows)
    write("curves.csv", curves)


def row_of(name: str, run: Run) -> dict[str, Any]:
    """What tells a row from others."""
    return {
        "dataset": run.dataset,
        "method": name,
        "epsilon": "inf" if run.epsilon is None else run.epsilon,
        "noise_cohort": run.noise_cohort,
        "momentum": run.momentum,
        "public_data": run.public_data,
        "seed": run.seed,
    }


def write(name: str, rows: list[dict[str, Any]]) -> None:
    """Replace the rows of these runs, keep those of others."""
    if not rows:
        return
    done = {_run(row) for row in rows}
    kept = [row for row in _read(name) if _run(row) not in done]
    with (HERE / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted([*kept, *rows], key=_run))


def _read(name: str) -> list[dict[str, Any]]:
    path = HERE / name
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _run(row: dict[str, Any]) -> tuple[str, ...]:
    keys = ("dataset", "public_data", "momentum", "epsilon", "method", "seed")
    return tuple(str(row[key]) for key in keys)


if __name__ == "__main__":
    main()
