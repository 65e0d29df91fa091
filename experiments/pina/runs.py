"""One run of one method in one process, without Flower's engine, kept and resumable.

The ServerApp's and the ClientApp's own code runs on ``app_kit.in_process_grid``. Each run has a
directory; one that is finished is not repeated, one that was killed goes on, one that another
process is busy with is passed over: start the same script once for each core.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import torch

from app_kit import run_files
from app_kit.in_process_grid import InProcessGrid
from pina_app import client_app, server_app, task
from pina_app.classifier import Classifier
from pina_app.config import PinaConfig
from pina_app.diagnostics import Diagnostics
from pina_app.methods import create_strategy, entry_of
from strategies import run_record
from strategies.checkpoint import RunDirectory, read_state
from strategies.clustering.public_statistics import PublicStatistics

HERE = Path(__file__).parent
DATASETS: dict[str, dict[str, Any]] = {
    "cifar10": {
        "image_size": 98,
        "clients": 1000,
        "images_per_client": 10,
        "rotations": "0,180",
        "clusters": 2,
        "rounds": 60,
        "evaluate_every": 20,
    },
    "fashion_mnist": {
        "image_size": 70,
        "clients": 1000,
        "images_per_client": 10,
        "rotations": "0,90,180,270",
        "clusters": 4,
        "rounds": 30,
        "evaluate_every": 10,
    },
    "writers": {
        "image_size": 70,
        "clients": 439,
        "images_per_client": 50,
        "held_out": 0.2,
        "partitioner": "natural",
        "rotations": "0",
        "clusters": 2,
        "rounds": 40,
        "evaluate_every": 20,
    },
}
COMMON: dict[str, Any] = {
    "model": "vit_small_patch14_dinov2",
    "cache_gb": 100.0,
    "q": 0.05,
    "epochs": 10,
    "batch_size": 50,
    "learning_rate": 0.01,
    "clip": 0.3,
    "test_images": 0,
}
PUBLIC = {
    "natural": "public_natural_2000.npz",
}
NO_FILE = ("synthetic", "none")
ALL = "cifar10_jpegbytes.npz"
OUT_OF_DOMAIN = {"cifar10": "fashion_mnist", "fashion_mnist": "cifar10", "writers": "cifar10"}


@dataclasses.dataclass(frozen=True)
class Run:
    """What distinguishes a run.

    ``settings`` are fields of ``PinaConfig`` beyond the usual ones, ``part`` is "_tuning" for the
    images set aside and "_all" for all training images, and ``drop_out`` the probability with which
    a node fails in a round.
    """

    dataset: str
    method: str
    seed: int
    epsilon: float | None = 2.0
    noise_cohort: int | None = 10_000
    momentum: float = 0.0
    public_data: str = "natural"
    settings: tuple[tuple[str, Any], ...] = ()
    part: str = ""
    drop_out: float = 0.0

    @property
    def name(self) -> str:
        """A directory's name that tells all of it."""
        own = "".join(f" {key}={value}" for key, value in self.settings)
        own += f" drop-out={self.drop_out}" if self.drop_out else ""
        return (
            f"{self.dataset}{self.part} {self.method} epsilon={self.epsilon} "
            f"cohort={self.noise_cohort} momentum={self.momentum} public={self.public_data}"
            f"{own} seed={self.seed}"
        ).replace("/", "_")

    @property
    def _ruled(self) -> bool:
        """What the rule chooses is what real cohorts, and no public images, are about."""
        return self.noise_cohort is None or self.public_data in NO_FILE

    def config(self, data: Path, work: Path) -> PinaConfig:
        """The configuration of the app."""
        values = {**COMMON, **DATASETS[self.dataset]}
        if self.part == "_tuning":
            values["clients"] = 100 if self.dataset == "writers" else 800
        split = work / f"{self.dataset}{self.part}.npz"
        values |= {
            "dataset": str(data / ALL if self.part == "_all" else split),
            "public_data": self._public(data, work),
            "weights": str(data / "dinov2_vits14_fp16.safetensors"),
            "cache_dir": str(work / "cache"),
            "methods": self.method,
            "init": "auto" if self._ruled else "secure-kmeans",
            "epsilon": self.epsilon,
            "private": self.epsilon is not None,
            "noise_cohort_size": self.noise_cohort,
            "server_momentum": self.momentum,
            "seed": self.seed,
            **dict(self.settings),
        }
        values.setdefault("clients_per_node", 10 if self.drop_out else values["clients"])
        return PinaConfig(**values)

    def _public(self, data: Path, work: Path) -> str:
        if self.public_data == "in-domain":
            return str(work / f"{self.dataset}_public.npz")
        if self.public_data == "out-of-domain":
            return str(work / f"{OUT_OF_DOMAIN[self.dataset]}_public.npz")
        own = self.public_data in NO_FILE
        return self.public_data if own else str(data / PUBLIC[self.public_data])


def execute(
    runs: Iterable[Run], data: Path, work: Path, *, only_finished: bool = False
) -> list[dict[str, Any]]:
    """Do what is not done yet, if wanted; returns the results of the runs that are."""
    torch.set_num_threads(1)
    results = []
    for run in runs:
        path = work / "runs" / run.name
        if not (path / "result.json").exists():
            if only_finished:
                continue
            path.mkdir(parents=True, exist_ok=True)
            try:
                with filelock.FileLock(path / "busy.lock", timeout=0):
                    if not (path / "result.json").exists():
                        _execute(run, path, data, work)
            except filelock.Timeout:
                continue
        results.append(
            {**dataclasses.asdict(run), **json.loads((path / "result.json").read_text())}
        )
    return results


def _execute(run: Run, path: Path, data: Path, work: Path) -> None:
    config = run.config(data, work)
    statistics = task.public_statistics(config)
    classifier = Classifier(task.frozen_model(config).tail, statistics)
    failures = np.random.default_rng(run.seed)
    grid = InProcessGrid(
        client_app.app,
        config.nodes,
        config.to_run_config(),
        fail=lambda message: (
            message.metadata.message_type == "train" and failures.random() < run.drop_out
        ),
    )
    directory = RunDirectory(path)
    try:
        server_app.run_method(grid, config, directory, run.method, statistics, classifier)
    finally:
        directory.close()
    lines = run_record.read(directory.rounds_path)
    (entry,) = json.loads((path / run_files.SUMMARY).read_text())
    result = {
        "accuracy": entry["accuracy_mean"],
        "ari": entry["ari"],
        "epsilon_real_cohort": entry["epsilon_real_cohort"],
        "seconds": entry["seconds"],
        "curve": [
            [line["stage_round"], line["accuracy_mean"], line["ari"]]
            for line in lines
            if line["phase"] == "train" and line["accuracy_mean"] is not None
        ],
        "initial_ari": next(
            (line["ari"] for line in lines if line["phase"] != "train" and line["ari"] is not None),
            None,
        ),
    }
    _keep_scores(run, config, path, statistics, classifier)
    for file in path.glob(f"{run.method}/*.safetensors"):
        file.unlink()  # the checkpoint has the models
    (path / "result.json").write_text(json.dumps(result))
    print(f"{run.name}: accuracy {result['accuracy']:.4f} ARI {result['ari']} "
          f"({result['seconds']:.0f} s)", flush=True)  # fmt: skip


def _keep_scores(
    run: Run, config: PinaConfig, path: Path, statistics: PublicStatistics, classifier: Classifier
) -> None:
    """The score of every test image under the last models, for paired intervals."""
    by_points = entry_of(config, run.method).init == "server-points"
    points = task.server_points(config, statistics) if by_points else None
    classes = task.number_of_classes(config)
    strategy = create_strategy(config, run.method, statistics, None, points, classes)
    state = read_state(path, run.method)
    assert state is not None
    strategy.load_state(state)
    diagnostics = Diagnostics(config, classifier)
    policy = strategy.request(strategy.round).assignment
    chosen = diagnostics.assignment(
        strategy.models, policy, strategy.prototypes(), strategy.frame()
    )
    scores = np.concatenate(diagnostics.scores(strategy.models, chosen))
    np.save(path / "scores.npy", scores.astype(np.float16))


def options(description: str | None, **further: Any) -> argparse.Namespace:
    """What every script takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the real data and weights")
    parser.add_argument("--work", type=Path, required=True, help="as for prepare.py")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    for name, settings in further.items():
        parser.add_argument(f"--{name}", **settings)
    return parser.parse_args()
