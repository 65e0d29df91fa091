"""What a run leaves behind besides its record: cluster models, summary, sentences on privacy."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

from app_kit import run_files
from pina_app.classifier import Classifier
from pina_app.config import PinaConfig
from pina_app.methods import entry_of
from strategies import run_record, traffic
from strategies.checkpoint import RunDirectory
from strategies.clustered import ClusteredStrategy
from strategies.clustering.public_statistics import PublicStatistics
from strategies.clustering.sketch import LORA_SKETCH_WARNING
from strategies.privacy.plan import PrivacyPlan
from strategies.privacy.secure_sum import TrustedSum

MAY_CHANGE = (*run_files.MAY_CHANGE, "cache-dir", "cache-gb", "device")
"""Settings that a resumed run may change: neither its results nor its account depend on them."""
STATISTICS = "public_statistics.npz"


def save_models(
    config: PinaConfig, path: Path, strategy: ClusteredStrategy, classifier: Classifier
) -> None:
    """Cluster models as ``METHOD/cluster-N.safetensors`` with timm's names.

    The metadata say which timm model and frozen weights they belong to.
    """
    method = strategy.name
    # One entry: safetensors writes several in random order, and files must be reproducible.
    frozen = f"{config.model} at {config.image_size} px, {Path(config.weights).name}"
    (path / method).mkdir(exist_ok=True)
    for index, model in enumerate(strategy.models):
        tensors = {name: value.cpu() for name, value in classifier.to_timm(model).items()}
        save_file(tensors, path / method / f"cluster-{index}.safetensors", {"frozen": frozen})


def save_statistics(path: Path, statistics: PublicStatistics) -> None:
    """The public statistics, which prediction needs."""
    np.savez(path / STATISTICS, **dataclasses.asdict(statistics))


def read_statistics(path: Path) -> PublicStatistics:
    """Inverse of ``save_statistics``."""
    with np.load(path / STATISTICS) as file:
        return PublicStatistics(str(file["source"]), file["mean"], file["embedding"], file["head"])


def trust(config: PinaConfig) -> list[str]:
    """Whom those who take part have to trust; for the start log and the report."""
    sentences = []
    if config.private:
        sentences.append(
            "the server is trusted: it adds the clients' updates itself (secure-sum = 'trusted'), "
            "so no epsilon is claimed against it"
        )
    if not config.simulation:
        sentences.append(
            "on devices: whoever may submit runs to the SuperLink is trusted, too; a run is code "
            "that the devices execute"
        )
    return sentences


def privacy_notes(config: PinaConfig, plan: PrivacyPlan, method: str) -> list[str]:
    """What has to be said with every number of a private run."""
    if not plan.private:
        return ["no privacy: this run added no noise", *trust(config)]
    notes = []
    if entry_of(config, method).init == "lora-sketch":
        notes.append(LORA_SKETCH_WARNING)
    notes += trust(config)
    if config.simulation and config.seed is not None:
        notes.append("seeded simulation: no guarantee")
    return notes


def epsilons(plan: PrivacyPlan, strategy: ClusteredStrategy) -> dict[str, float | str | None]:
    """Epsilons spent so far, as far as they are claimed."""
    if not plan.private or plan.epsilon_outside is None:
        return {"epsilon_outside": None, "epsilon_real_cohort": None}
    outside, real = strategy.ledger.epsilon(), strategy.ledger.epsilon_actual()
    return {
        "epsilon_outside": outside,
        "epsilon_real_cohort": "inf" if math.isinf(real) else real,
    }


def summarise(
    config: PinaConfig,
    directory: RunDirectory,
    strategy: ClusteredStrategy,
    statistics: PublicStatistics,
    stopped: str | None,
) -> None:
    """Add (or replace) one method's object in ``summary.json``."""
    plan, method = strategy.plan, strategy.name
    lines = [line for line in run_record.read(directory.rounds_path) if line["method"] == method]
    last = lines[-1] if lines else {}
    notes = privacy_notes(config, plan, method)
    entry: dict[str, Any] = {
        "method": method,
        "accuracy_mean": last.get("accuracy_mean"),
        "accuracy_per_cluster": last.get("accuracy_per_cluster"),
        "ari": last.get("ari"),
        **epsilons(plan, strategy),
        # Behind a trusted sum the server sees every update: nothing is claimed against it.
        "epsilon_server": None if TrustedSum.trusted else plan.epsilon_server,
        "delta": plan.delta if plan.private else None,
        "noise_cohort_size": plan.noise_cohort_size if plan.private else None,
        "seeded": config.simulation and config.seed is not None,
        "rounds": len(lines),
        "seconds": round(sum(line["seconds"] for line in lines), 2),
        **traffic.of_run(lines),
        "private": plan.private,
        "public_data": statistics.source,
        "init": entry_of(config, method).init,
        "release": strategy.aggregation.release,
        "notes": notes if stopped is None else [stopped, *notes],
    }
    run_files.put_summary(directory.path, entry)
