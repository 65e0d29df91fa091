"""Use a finished run: find a new client's cluster from its own images, and classify them."""

import tomllib
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from app_kit.npz import read_images
from pina_app import results
from pina_app.classifier import Classifier
from pina_app.config import from_run_config
from pina_app.local import embeddings
from pina_app.task import ClientData, frozen_model
from strategies import wire
from strategies.assignment import lowest_loss, squared_distances
from strategies.checkpoint import read_state
from strategies.clustering.frame import Frame


def predict(run_dir: Path, images_path: Path, method: str, output: Path | None) -> str:
    """Assign the client that owns the images to a cluster and predict their labels.

    With labels (``y``) the cluster is that of lowest loss and distance, as in training; without
    it is the nearest prototype.

    Parameters
    ----------
    run_dir : Path
        Directory of a run.
    images_path : Path
        ``.npz`` with ``x`` and optionally ``y``.
    method : str
        Whose cluster models are used.
    output : Path, optional
        Where labels and cluster are written as ``.npz``.

    Returns
    -------
    A sentence on the cluster and the predictions.

    Raises
    ------
    ValueError
        If the run, the method or the images cannot be used, or the images carry no labels and the
        run has no prototypes.
    """
    config_file = run_dir / "config.toml"
    if not config_file.is_file():
        raise ValueError(f"{run_dir}: not a run directory (it has no config.toml)")
    config = from_run_config(tomllib.loads(config_file.read_text(encoding="utf-8")))
    state = read_state(run_dir, method)
    if state is None:
        raise ValueError(f"{run_dir}: has no models of method {method!r}")
    models = wire.models_in(state)
    images, labels = read_images(str(images_path))
    frozen = frozen_model(config)
    classifier = Classifier(frozen.tail, results.read_statistics(run_dir))
    samples = torch.from_numpy(frozen.reduce(images, "the images")[:])
    logits = [classifier.predict(model, samples) for model in models]
    classes = logits[0].shape[1]
    if labels is not None and (labels.min() < 0 or labels.max() >= classes):
        raise ValueError(f"{images_path}: labels must be 0 to {classes - 1}")
    prototypes, frame = state.get("prototypes"), Frame.in_state(state)
    distances = None
    if prototypes is not None and (frame is None or labels is not None):
        known = torch.zeros(0) if labels is None else torch.from_numpy(labels)
        own = {0: ClientData(samples, known, -1)}
        embedding = embeddings(classifier, own, frame)
        distances = squared_distances(embedding, prototypes.astype(float))
    if len(models) == 1:
        cluster = 0
    elif labels is not None:
        targets = torch.from_numpy(labels)
        losses = np.array([[float(cross_entropy(rows, targets)) for rows in logits]])
        cluster = int(lowest_loss(losses, distances, config.prototype_weight)[0])
    elif distances is not None:
        cluster = int(distances.argmin())
    else:
        raise ValueError(
            f"{images_path}: without labels (y) a cluster is found by prototypes, and this run "
            "has none that do without; add labels (after init = 'secure-kmeans' or 'spectral' none "
            "are needed)"
        )
    predicted = logits[cluster].argmax(dim=1).numpy()
    if output is not None:
        np.savez(output, predicted=predicted, cluster=cluster)
    text = f"cluster {cluster} of {len(models)}; predicted labels: {' '.join(map(str, predicted))}"
    if labels is not None:
        text += f"\naccuracy on the given labels: {(predicted == labels).mean():.3f}"
    return text
