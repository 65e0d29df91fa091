"""Choose the embedded task's settings on its public part alone.

The 450 public digits are split: 250 pretrain a backbone as the demo does, 100 are the pool from
which 50 pseudo-clients draw 20 images each (with replacement), 100 validate. For each setting the
script prints the ARI of the private initialisation (clients' true rotation against the nearest
prototype) and the validation accuracy of FedAvg and of the oracle clustering. No image of a real
client or of the test part is touched.

    python experiments/digits_tuning.py [--seeds 10]
"""

import argparse
import dataclasses
import itertools

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from app_kit import digits
from pina_app import digits_vit
from pina_app.classifier import Classifier
from pina_app.config import PinaConfig
from pina_app.features import to_pixels
from pina_app.methods import initial_models, method_plan
from pina_app.model import HEAD_BIAS
from pina_app.tails import create_tail
from pina_app.training import LocalTraining, train_clients
from strategies import wire
from strategies.aggregation import Aggregation
from strategies.assignment import nearest_prototype
from strategies.clustering import public_statistics, secure_kmeans
from strategies.privacy.mechanisms import gaussian_on_grid
from strategies.release import Slots

CLIENTS, IMAGES = 50, 20


def noisy(layout: Slots, total: np.ndarray, multiplier: float, rng: np.random.Generator):
    """One release of the secure sum."""
    from strategies.privacy.mechanisms import from_grid

    noise = gaussian_on_grid(layout.size, multiplier, rng)
    return layout.decode(from_grid(total + noise, layout.sensitivity))


def initialise(embeddings, groups, config, prototypes_used, rng):
    """ARI of the private initialisation with a number of prototypes."""
    stage = method_plan(config, "pina").init
    layout = secure_kmeans.mean_layout(embeddings.shape[1])
    zeros = np.zeros(len(embeddings), dtype=int)
    sums, _ = noisy(layout, layout.encode(embeddings, zeros)[0], stage.actual_multiplier, rng)
    mean = sums[0] / len(embeddings)
    prototypes = secure_kmeans.draw_prototypes(mean, prototypes_used, rng)
    layout = secure_kmeans.lloyd_layout(prototypes_used, embeddings.shape[1])
    for _ in range(stage.releases - 1):
        total, _ = layout.encode(embeddings, nearest_prototype(embeddings, prototypes))
        sums, counts = noisy(layout, total, stage.actual_multiplier, rng)
        smallest = 0.05 * len(embeddings) * 2 / prototypes_used
        prototypes = secure_kmeans.lloyd_step(prototypes, sums, counts, smallest)
    prototypes, _ = secure_kmeans.merge_prototypes(prototypes, counts, 2, rng)
    return adjusted_rand_score(groups, nearest_prototype(embeddings, prototypes))


def train(classifier, config, samples, labels, chosen, clusters, rng):
    """Cluster models after the configured rounds with fixed assignments."""
    models = initial_models(config, "oracle" if clusters > 1 else "fedavg", 64, 10)
    stage = method_plan(config, "oracle").train
    aggregation = Aggregation(config.clip, rescale="count" if clusters > 1 else "none")
    width = sum(value.size for value in models[0].values())
    layout = aggregation.layout(clusters, width)
    settings = LocalTraining(config.epochs, config.batch_size, config.learning_rate)
    for training_round in range(1, config.rounds + 1):
        cohort = np.flatnonzero(rng.random(CLIENTS) < config.q)
        updates = train_clients(
            classifier,
            settings,
            [models[chosen[k]] for k in cohort],
            [samples[k] for k in cohort],
            [labels[k] for k in cohort],
            [np.random.default_rng(0)] * len(cohort),
        )
        total, _ = layout.encode(updates, chosen[cohort])
        sums, counts = noisy(layout, total, stage.actual_multiplier, rng)
        noise_std = stage.actual_multiplier * layout.sensitivity
        change, _ = aggregation.updates(sums, counts, config.q * CLIENTS, noise_std, training_round)
        models = wire.unflatten(wire.flatten(models) + change, models[0])
    assert models[0][HEAD_BIAS].shape == (10,)
    return models


def main() -> None:
    """Print a line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    images, targets = (part[: digits.PUBLIC_IMAGES] for part in digits.load())
    tail = create_tail(digits_vit.pretrain(images[:250], targets[:250]).requires_grad_(False))
    turned = np.ascontiguousarray(images[:, ::-1, ::-1])
    reduced = [tail.reduce(to_pixels(tail, part)) for part in (images, turned)]
    nothing = public_statistics.without_public_data(64)
    frozen = Classifier(tail, nothing).frozen_features(reduced[0][:250])
    base = PinaConfig()
    groups = np.arange(CLIENTS) % 2

    def clients(rng):
        pool = [rng.integers(250, 350, IMAGES) for _ in range(CLIENTS)]
        samples = [reduced[g][index] for g, index in zip(groups, pool, strict=True)]
        return samples, [torch.from_numpy(targets[index]) for index in pool]

    for size, used in itertools.product((8, 16, 32, 64), (2, 4, 8)):
        statistics = public_statistics.measure(frozen, "public", size)
        classifier = Classifier(tail, statistics)
        scores = []
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            embeddings = classifier.embeddings(clients(rng)[0])
            scores += [initialise(embeddings, groups, base, used, rng) for _ in range(5)]
        failed = np.mean(np.array(scores) < 0.5)
        print(
            f"embedding-size {size:2d} prototypes {used}: ARI {np.mean(scores):.2f}, "
            f"below .5 in {failed:.0%} of {len(scores)}",
            flush=True,
        )

    classifier = Classifier(tail, public_statistics.measure(frozen, "public", 32))
    for rate, clip in itertools.product((0.01, 0.05, 0.2), (0.3, 1.0)):
        config = dataclasses.replace(base, learning_rate=rate, clip=clip)
        accuracy = {"fedavg": [], "oracle": []}
        for seed in range(max(1, seeds // 3)):
            rng = np.random.default_rng(seed)
            samples, labels = clients(rng)
            for name, chosen in (("fedavg", groups * 0), ("oracle", groups)):
                models = train(classifier, config, samples, labels, chosen, chosen.max() + 1, rng)
                right = [
                    (
                        classifier.predict(models[chosen[g]], reduced[g][350:]).argmax(1).numpy()
                        == targets[350:]
                    ).mean()
                    for g in (0, 1)
                ]
                accuracy[name].append(np.mean(right))
        print(
            f"learning-rate {rate} clip {clip}: "
            + ", ".join(f"{name} {np.mean(v):.3f}" for name, v in accuracy.items()),
            flush=True,
        )


if __name__ == "__main__":
    main()
