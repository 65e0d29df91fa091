"""How well clusters start without public data: what chose ``private-whitening``'s settings.

    python experiments/pina/without_public_data.py --data DIR --work WORK [--datasets ...]

ARI after the initialisation on the images set aside, epsilon 2, seeds 100 and 101: by the size of
the embedding (``PinaConfig.dimensions``), and by the simulated cohort, so by the clients that stand
against the noise (``strategies.rule``). Beside it what the other initialisations find.
"""

from runs import Run, execute, options

SEEDS = (100, 101)
CASES = (
    ("private-whitening", 64, 10_000),
    ("private-whitening", 96, 10_000),
    ("private-whitening", 128, 10_000),
    ("private-whitening", 96, 6_000),
    ("private-whitening", 96, 4_000),
    ("secure-kmeans", 64, 10_000),
)


def main() -> None:
    """Run and print a Markdown table."""
    chosen = options(__doc__)
    print("| data set | init | numbers | simulated cohort | ARI by seed |\n|---|---|---|---|---|")
    for dataset in (name for name in chosen.datasets if name != "writers"):
        for init, size, cohort in CASES:
            settings = (("init", init), ("embedding_size", size), ("rounds", 1))
            runs = [
                Run(
                    dataset,
                    "pina",
                    seed,
                    noise_cohort=cohort,
                    public_data="none",
                    settings=settings,
                    part="_tuning",
                )
                for seed in SEEDS
            ]
            found = execute(runs, chosen.data, chosen.work)
            aris = " ".join(f"{result['initial_ari']:.2f}" for result in found)
            print(f"| {dataset} | {init} | {size} | {cohort:,} | {aris} |", flush=True)


if __name__ == "__main__":
    main()
