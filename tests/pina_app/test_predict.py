"""A finished run used on new clients."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from app_kit import run_files
from pina_app import results
from pina_app.__main__ import main
from pina_app.classifier import Classifier
from pina_app.config import PinaConfig
from pina_app.datasets import Federation, load_federation, rotate
from pina_app.methods import create_strategy, initial_models
from pina_app.predict import predict
from pina_app.task import frozen_model, public_statistics
from pina_app.training import LocalTraining, train_clients
from strategies import wire
from strategies.checkpoint import checkpoint_path
from tests.app_kit.files import Arrays, write


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run directory as the server leaves it, and the federation it was trained on."""

    path: Path
    federation: Federation


@pytest.fixture(scope="module")
def finished(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One model trained on upright and one on turned digits, without federation or noise."""
    path = tmp_path_factory.mktemp("run")
    config = PinaConfig(cache_dir=str(cache_dir), private=False, methods="pina,fedavg")
    federation = load_federation(config)
    statistics = public_statistics(config)
    classifier = Classifier(frozen_model(config).tail, statistics)
    samples = torch.from_numpy(
        np.array(frozen_model(config).reduce(federation.images, "the clients' images"))
    )
    owner = np.repeat(np.arange(50), np.diff(federation.offsets))
    groups = federation.groups[owner]
    labels = torch.from_numpy(federation.labels)
    starts = initial_models(config, "pina", classifier.tail.width, 10)
    updates = train_clients(
        classifier,
        LocalTraining(epochs=15, batch_size=50, learning_rate=0.1),
        starts,
        [samples[groups == g] for g in (0, 1)],
        [labels[groups == g] for g in (0, 1)],
        [np.random.default_rng(g) for g in (0, 1)],
    )
    models = []
    for start, change in zip(starts, wire.unflatten(updates, starts[0]), strict=True):
        models.append({n: (start[n] + change[n]).astype(np.float32) for n in start})
    clients = [samples[owner == k] for k in range(50)]
    embeddings = classifier.embeddings(clients)
    run_files.write_config(path, "pina", config.to_run_config())
    results.save_statistics(path, statistics)
    for method, own in (("pina", models), ("fedavg", models[:1])):
        strategy = create_strategy(config, method, statistics, None)
        strategy.models = own
        state = strategy.state()
        if method == "pina":
            state["prototypes"] = np.stack(
                [embeddings[federation.groups == g].mean(axis=0) for g in (0, 1)]
            )
        np.savez(checkpoint_path(path, method), **state)  # type: ignore[arg-type]
    return Finished(path, federation)


def new_client(finished: Finished, group: int, count: int = 60) -> NDArray[np.uint8]:
    """Test images, which no client has, in one rotation."""
    return finished.federation.test_images[group, :count]


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("labelled", [True, False])
def test_a_new_client_finds_its_cluster(
    finished: Finished, tmp_path: Path, group: int, labelled: bool
) -> None:
    """By loss with labels, by prototype without; predictions are mostly right in both cases."""
    fields: Arrays = {"x": new_client(finished, group)}
    truth = finished.federation.test_labels[:60]
    if labelled:
        fields["y"] = truth
    images = write(tmp_path / "x.npz", fields)
    output = tmp_path / "out.npz"
    text = predict(finished.path, Path(images), "pina", output)
    assert text.startswith(f"cluster {group} of 2; predicted labels: ")
    with np.load(output) as written:
        assert int(written["cluster"]) == group
        predicted = written["predicted"]
    assert predicted.shape == (60,)
    accuracy = float((predicted == truth).mean())
    assert accuracy > 0.6  # chance: .1; measured about .8
    assert (f"accuracy on the given labels: {accuracy:.3f}" in text) == labelled
    assert text.splitlines()[0].endswith(" ".join(map(str, predicted)))


def test_predictions_are_those_of_the_cluster_model(finished: Finished, tmp_path: Path) -> None:
    """Against the saved arrays in a plain timm ViT."""
    from pina_app.features import to_pixels
    from pina_app.model import create_backbone
    from strategies.checkpoint import read_state

    state = read_state(finished.path, "pina")
    assert state is not None
    config = PinaConfig(cache_dir=str(frozen_model_cache(finished)))
    frozen = frozen_model(config)
    classifier = Classifier(frozen.tail, results.read_statistics(finished.path))
    plain = create_backbone(config)
    plain.reset_classifier(10)
    plain.load_state_dict(classifier.to_timm(wire.models_in(state)[1]), strict=False)
    images = new_client(finished, 1)
    with torch.no_grad():
        expected = plain(to_pixels(frozen.tail, images)).argmax(dim=1).numpy()
    output = tmp_path / "out.npz"
    predict(finished.path, Path(write(tmp_path / "x.npz", {"x": images})), "pina", output)
    with np.load(output) as written:
        np.testing.assert_array_equal(written["predicted"], expected)


def frozen_model_cache(finished: Finished) -> str:
    """The cache directory that the run's configuration names."""
    import tomllib

    text = (finished.path / "config.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["cache-dir"])


def test_a_turned_client_is_badly_served_by_the_other_model(
    finished: Finished, tmp_path: Path
) -> None:
    """Why clusters matter: FedAvg's slot here holds the upright model only."""
    truth = finished.federation.test_labels[:60]
    scores = {}
    for group in (0, 1):
        images = write(tmp_path / "x.npz", {"x": new_client(finished, group), "y": truth})
        output = tmp_path / "out.npz"
        text = predict(finished.path, Path(images), "fedavg", output)
        assert text.startswith("cluster 0 of 1; ")
        with np.load(output) as written:
            scores[group] = float((written["predicted"] == truth).mean())
    assert scores[0] > scores[1] + 0.15


def test_the_command(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``python -m pina_app predict RUN IMAGES --output FILE``."""
    images = write(tmp_path / "x.npz", {"x": rotate(new_client(finished, 0), 180)})
    output = tmp_path / "o.npz"
    assert main(["predict", str(finished.path), images, "--output", str(output)]) == 0
    assert capsys.readouterr().out.startswith("cluster 1 of 2; ")
    assert output.is_file()


@pytest.mark.parametrize("kind", ["missing", "labels", "negative", "float", "no x", "truncated"])
def test_bad_images(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """One message, and no output file."""
    images = new_client(finished, 0, 5)
    fields: Arrays = {"x": images, "y": np.array([0, 1, 2, 3, 9])}
    if kind == "labels":
        fields["y"] = np.array([0, 1, 2, 3, 10])
    elif kind == "negative":
        fields["y"] = np.array([0, 1, 2, 3, -1])
    elif kind == "float":
        fields["x"] = images / 255
    elif kind == "no x":
        fields = {"images": images}
    path = tmp_path / "x.npz"
    if kind != "missing":
        write(path, fields)
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-50])
    output = tmp_path / "o.npz"
    assert main(["predict", str(finished.path), str(path), "--output", str(output)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert str(path) in lines[0]
    assert not output.exists()


def test_labels_outside_the_classes_are_refused_for_one_model_too(
    finished: Finished, tmp_path: Path
) -> None:
    """FedAvg has one cluster; its accuracy on impossible labels means nothing."""
    path = Path(
        write(tmp_path / "x.npz", {"x": new_client(finished, 0, 2), "y": np.array([3, 10])})
    )
    with pytest.raises(ValueError, match="labels must be 0 to 9"):
        predict(finished.path, path, "fedavg", None)


def test_a_method_that_was_not_run(finished: Finished, tmp_path: Path) -> None:
    """It is named."""
    path = Path(write(tmp_path / "x.npz", {"x": new_client(finished, 0, 2)}))
    with pytest.raises(ValueError, match="has no models of method 'oracle'"):
        predict(finished.path, path, "oracle", None)


def test_without_labels_and_prototypes_there_is_no_cluster(
    finished: Finished, tmp_path: Path
) -> None:
    """The message says what to add."""
    from strategies.checkpoint import read_state

    run_dir = tmp_path / "run"
    run_dir.mkdir()
    for name in ("config.toml", results.STATISTICS):
        (run_dir / name).write_bytes((finished.path / name).read_bytes())
    state = read_state(finished.path, "pina")
    assert state is not None
    del state["prototypes"]
    np.savez(checkpoint_path(run_dir, "pina"), **state)  # type: ignore[arg-type]
    images = new_client(finished, 1)
    path = Path(write(tmp_path / "x.npz", {"x": images}))
    with pytest.raises(ValueError, match=r"add labels \(after init = 'secure-kmeans'"):
        predict(run_dir, path, "pina", None)
    labelled = write(tmp_path / "y.npz", {"x": images, "y": finished.federation.test_labels[:60]})
    assert predict(run_dir, Path(labelled), "pina", None).startswith("cluster 1 of 2")
