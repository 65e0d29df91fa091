"""Test accuracy over local iterations for the four methods (Figures 2 and 3, Table 1).

    python experiments/wireless/accuracy.py --data DIR

Every method has the same devices, positions, batches, initial model and learning rate (chosen by
``tuning.py``). ``--paper-rate`` repeats it with the paper's learning rate of .01, and
``--paper-epochs`` reads a "local training round" as a pass over the device's data (19 batches of 32
on Fashion-MNIST) at that rate.
"""

import argparse
from collections import defaultdict

from runs import FILES, HERE, METHODS, TUNED, lines_figure, options, spread, train, write_csv

Curves = dict[str, dict[float, list[float]]]


def measure(
    arguments: argparse.Namespace, preset: str, name: str, seeds: int, **settings: float
) -> None:
    """Run all methods and seeds; write a table, the curves and a figure."""
    dataset = arguments.data / FILES[preset]
    table, curves = [], []
    series: Curves = {method: defaultdict(list) for method in METHODS}
    for method in METHODS:
        accuracies, energies = [], []
        for seed in range(seeds):
            summary, lines, _ = train(
                arguments.work, preset, dataset, method=method, seed=seed, **settings
            )
            row = {"dataset": preset, "method": method, "seed": seed}
            keys = ("accuracy_mean", "energy_j", "planning_j", "delay_s", "label_divergence")
            table.append({**row, **{key: summary[key] for key in keys}})
            accuracies.append(100 * summary["accuracy_mean"])
            energies.append(summary["energy_j"])
            for line in lines:
                if line["accuracy_mean"] is not None:
                    point = {"iteration": line["iteration"], "accuracy": line["accuracy_mean"]}
                    curves.append({**row, **point})
                    series[method][line["iteration"]].append(100 * line["accuracy_mean"])
        if seeds > 1:
            print(f"{name} {method}: {spread(accuracies)} %, {spread(energies)} J", flush=True)
    write_csv(f"table1_{name}.csv", table)
    write_csv(f"curves_{name}.csv", curves)
    if seeds > 1:
        labels = ("local iterations", "test accuracy in %")
        lines_figure(HERE / f"accuracy_{name}.png", series, labels)


def main() -> None:
    """Command line."""
    parser = options(__doc__ or "")
    parser.add_argument("--only", choices=FILES, help="one data set")
    parser.add_argument("--paper-rate", action="store_true")
    parser.add_argument("--paper-epochs", action="store_true")
    arguments = parser.parse_args()
    if arguments.paper_epochs:
        settings = {"tau1": 19, "tau2": 38, "iterations": 3800}
        measure(arguments, "fashion_mnist", "fashion_mnist_epochs", 1, **settings)
        return
    for preset in [arguments.only] if arguments.only else FILES:
        rate = {} if arguments.paper_rate else {"learning_rate": TUNED[preset]}
        name = f"{preset}_rate_001" if arguments.paper_rate else preset
        measure(arguments, preset, name, arguments.seeds, **rate)


if __name__ == "__main__":
    main()
