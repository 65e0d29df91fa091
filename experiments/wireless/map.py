"""Map of devices, heads and links of one solution (alpha = .5, seed 0).

python experiments/wireless/map.py --data DIR
"""

from runs import FILES, HERE, TUNED, clusters_of, options, train

from strategies.wireless.plan import write_map


def main() -> None:
    """Draw the clusters of the run that ``accuracy.py`` makes."""
    arguments = options(__doc__ or "").parse_args()
    _, _, path = train(
        arguments.work,
        "fashion_mnist",
        arguments.data / FILES["fashion_mnist"],
        method="proposed",
        seed=0,
        learning_rate=TUNED["fashion_mnist"],
    )
    where, clustering = clusters_of(path, "proposed")
    assert clustering is not None
    write_map(HERE / "map.png", where, clustering)


if __name__ == "__main__":
    main()
