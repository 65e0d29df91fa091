"""Learning rate of all methods, chosen on held-back training images with FedAvg, seed 100.

    python experiments/wireless/tuning.py --data DIR

The last sixth of the training images stands for the test images; the test images are not read. One
rate for all methods: they share model, devices and batches, so that none is favoured.
"""

from pathlib import Path

import numpy as np
from runs import FILES, options, train, write_csv

RATES = (0.01, 0.05, 0.1, 0.2, 0.4, 0.8)


def held_back(source: Path, target: Path) -> Path:
    """A data file whose test part is the last sixth of the training part."""
    if target.exists():
        return target
    with np.load(source) as file:
        fields = {name: file[name] for name in file.files}
    count = len(fields["y_train"]) * 5 // 6
    cut: dict[str, np.ndarray] = {
        "y_train": fields["y_train"][:count],
        "y_test": fields["y_train"][count:],
    }
    if "x_train" in fields:
        cut |= {"x_train": fields["x_train"][:count], "x_test": fields["x_train"][count:]}
    else:
        for part, offsets in (
            ("train", fields["offsets_train"][: count + 1]),
            ("test", fields["offsets_train"][count:]),
        ):
            cut[f"jpeg_{part}"] = fields["jpeg_train"]
            cut[f"offsets_{part}"] = offsets
    target.parent.mkdir(parents=True, exist_ok=True)
    np.savez(target, **cut)
    return target


def main() -> None:
    """Try the rates."""
    arguments = options(__doc__ or "").parse_args()
    rows = []
    for preset, file in FILES.items():
        dataset = held_back(arguments.data / file, arguments.work / f"held_back_{file}")
        for rate in RATES:
            summary, _, _ = train(
                arguments.work,
                preset,
                dataset,
                method="fedavg",
                learning_rate=rate,
                seed=100,
                evaluate_every=20,
            )
            rows.append(
                {
                    "dataset": preset,
                    "learning_rate": rate,
                    "held_back_accuracy": summary["accuracy_mean"],
                }
            )
            write_csv("tuning.csv", rows)


if __name__ == "__main__":
    main()
