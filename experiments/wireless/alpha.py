"""Accuracy, energy, distance and label divergence for alpha and both weightings (Table 2).

    python experiments/wireless/alpha.py --data DIR

Fashion-MNIST. Energy by several accountings of the same links: plain (a band for each device,
uplink, 200 iterations), the band shared by a cluster's simultaneous transmitters, that with
broadcasts back for 400 iterations, and (``unicast_j``) with a transfer back to every member.
"""

from pathlib import Path
from typing import Any

from runs import FILES, TUNED, clusters_of, options, spread, train, write_csv

from strategies.wireless.channel import Channel
from strategies.wireless.links import run_account

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
MODEL_BITS = 32.0 * 7038
READINGS: dict[str, tuple[dict[str, Any], int]] = {
    "plain_j": ({}, 200),
    "shared_j": ({"band": "shared"}, 200),
    "broadcast_j": ({"band": "shared", "directions": "both"}, 400),
}


def energies(path: Path, method: str) -> dict[str, float]:
    """Joules of a run's clusters by the three readings, and their total distance in metres."""
    where, clustering = clusters_of(path, method)
    assert clustering is not None
    found = {}
    for name, (changes, iterations) in READINGS.items():
        channel = Channel(model_bits=MODEL_BITS, **changes)
        places = where.positions_m, where.server_m
        found[name] = run_account(channel, *places, clustering, iterations=iterations).total_j
    return {**found, "unicast_j": 4 * found["shared_j"]}  # twice the iterations, both directions


def main() -> None:
    """Run, write the table, print means over seeds."""
    arguments = options(__doc__ or "").parse_args()
    dataset = arguments.data / FILES["fashion_mnist"]
    rows: list[dict[str, Any]] = []
    for weighting in ("paper", "size"):
        for alpha in ALPHAS:
            own = []
            for seed in range(arguments.seeds):
                summary, _, path = train(
                    arguments.work,
                    "fashion_mnist",
                    dataset,
                    method="proposed",
                    seed=seed,
                    learning_rate=TUNED["fashion_mnist"],
                    # At alpha = 0 and .5 (paper) this is a run that other scripts share.
                    **({} if alpha == 0.5 else {"alpha": alpha}),
                    **({} if weighting == "paper" else {"weighting": weighting}),
                )
                own.append(
                    {
                        "weighting": weighting,
                        "alpha": alpha,
                        "seed": seed,
                        "accuracy": summary["accuracy_mean"],
                        "clusters": summary["clusters"],
                        "label_divergence": summary["label_divergence"],
                        "distance_m": distance(path),
                        **energies(path, "proposed"),
                    }
                )
            rows += own
            write_csv("table2.csv", rows)
            shown = (
                "accuracy",
                "clusters",
                "label_divergence",
                "distance_m",
                *READINGS,
                "unicast_j",
            )
            text = ", ".join(f"{key} {spread([row[key] for row in own])}" for key in shown)
            print(f"{weighting} alpha {alpha}: {text}", flush=True)


def distance(path: Path) -> float:
    """d(C) of a run's clusters (Eq. 6), in metres."""
    where, clustering = clusters_of(path, "proposed")
    assert clustering is not None
    own_head = where.positions_m[clustering.heads[clustering.labels]]
    to_head = ((where.positions_m - own_head) ** 2).sum(axis=1) ** 0.5
    to_server = ((where.positions_m[clustering.heads] - where.server_m) ** 2).sum(axis=1) ** 0.5
    return float(to_head.sum() + to_server.sum())


if __name__ == "__main__":
    main()
