"""Who has which images: a data set split into clients by one of Flower's partitioners."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from app_kit.source import Source
from strategies.randomness import stream

PARTITIONERS = ("iid", "dirichlet", "natural")


class SplitSettings(Protocol):
    """What a configuration says of the split; ``images_per_client`` = 0 takes all there are."""

    @property
    def dataset(self) -> str: ...
    @property
    def clients(self) -> int: ...
    @property
    def images_per_client(self) -> int: ...
    @property
    def partitioner(self) -> str: ...
    @property
    def dirichlet_alpha(self) -> float: ...
    @property
    def partition_seed(self) -> int: ...


def partition(config: SplitSettings, source: Source) -> list[NDArray[np.intp]]:
    """Indices of every client's images, by one of Flower's partitioners."""
    import datasets
    from flwr_datasets import partitioner as flower

    seed = config.partition_seed
    pool = stream(seed, "partition").permutation(len(source.train_labels))
    if config.partitioner == "iid" and config.images_per_client:
        needed = config.clients * config.images_per_client
        if needed > len(pool):
            raise ValueError(
                f"images-per-client = {config.images_per_client}: {config.clients} clients need "
                f"{needed} images, the data set has {len(pool)}"
            )
        pool = pool[:needed]
    if len(pool) < config.clients:
        raise ValueError(f"clients = {config.clients}: the data set has {len(pool)} images")
    columns = {"index": pool, "label": source.train_labels[pool]}
    if config.partitioner == "iid":
        split: Any = flower.IidPartitioner(config.clients)
    elif config.partitioner == "dirichlet":
        split = flower.DirichletPartitioner(
            config.clients, "label", config.dirichlet_alpha, min_partition_size=1, seed=seed
        )
    else:
        if source.writers is None:
            raise ValueError(
                f"partitioner = 'natural': {config.dataset} does not name the writers of its images"
            )
        columns["writer"] = source.writers[pool]
        split = flower.NaturalIdPartitioner("writer")
    split.dataset = datasets.Dataset.from_dict(columns)
    if split.num_partitions < config.clients:
        raise ValueError(
            f"clients = {config.clients}: {config.dataset} has {split.num_partitions} writers"
        )
    limit = config.images_per_client or None
    return [
        np.sort(np.array(split.load_partition(client)["index"], dtype=np.intp)[:limit])
        for client in range(config.clients)
    ]
