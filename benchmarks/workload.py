"""The job that every contestant does, and how this project does it.

K clients with the same number of images train B of the last value LoRA and the head of one frozen
ViT for E epochs of full batches. Without ``data`` a few drawn images are reduced and the clients'
samples are drawn around them (the arithmetic does not depend on the values); with it they are
real CIFAR-10 images and weights.
"""

import dataclasses
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import recorddict_to_proto
from torch import Tensor

from app_kit.in_process_grid import InProcessGrid
from pina_app import local, task
from pina_app.classifier import Classifier
from pina_app.config import PinaConfig
from pina_app.methods import create_strategy, initial_models
from strategies import wire
from strategies.clients import clients_of_partition
from strategies.clustering.public_statistics import without_public_data
from strategies.privacy.mechanisms import from_grid

CLASSES = 10
DRAWN = 24  # images that the drawn samples scatter around
PLAIN_CLIENTS = 2  # whose images the loops over the whole ViT get


@dataclasses.dataclass(frozen=True)
class Job:
    """Sizes of a round; ``cohort`` is the expected number of clients that take part."""

    clients: int = 50
    cohort: int = 50
    images: int = 10
    epochs: int = 10
    clusters: int = 1
    model: str = "vit_small_patch14_dinov2"
    image_size: int = 98
    nodes: int = 1
    data: Path | None = None
    cache_dir: Path = Path("~/.cache/fedclusters")

    def config(self) -> PinaConfig:
        """The run configuration: private FedAvg with one cluster, else PINA choosing by loss."""
        files = {"dataset": "drawn.npz", "weights": "none"}
        if self.data is not None:
            files["dataset"] = str(self.data / "cifar10_jpegbytes.npz")
            files["weights"] = str(self.data / "dinov2_vits14_fp16.safetensors")
        return PinaConfig(
            methods="fedavg" if self.clusters == 1 else "pina",
            clients=self.clients,
            clients_per_node=-(-self.clients // self.nodes),
            images_per_client=self.images,
            test_images=10,
            public_data="none",
            model=self.model,
            image_size=self.image_size,
            cache_dir=str(self.cache_dir.expanduser()),
            clusters=self.clusters,
            init="random",
            rounds=100,
            q=self.cohort / self.clients,
            epochs=self.epochs,
            batch_size=self.images,
            learning_rate=0.01,
            clip=0.3,
            **files,
        )


@dataclasses.dataclass(frozen=True)
class Workload:
    """A job with its model and data, the same for all contestants."""

    job: Job
    config: PinaConfig
    classifier: Classifier
    samples: Tensor  # (clients, images, numbers), reduced
    labels: Tensor  # (clients, images)
    pixels: Tensor  # (PLAIN_CLIENTS, images, 3, S, S), of the first clients


def create_workload(job: Job) -> Workload:
    """Model, whitener and data of a job; the first clients also have their pixels."""
    config = job.config()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tail = task.frozen_model(config).tail
    rng = np.random.default_rng(0)
    if job.data is None:
        for scale in (tail.block.ls1, tail.block.ls2):
            if hasattr(scale, "gamma"):  # 1e-5 where nothing is trained: B's update would vanish
                torch.nn.init.constant_(scale.gamma, 0.1)
        tail = type(tail)(tail.lora).requires_grad_(False)  # it folds the scale when it is made
        pixels, samples, labels = _drawn(job, tail, rng)
    else:
        pixels, samples, labels = _real(job, config, tail)
    # An orthogonal whitener: that of drawn features, which hardly differ, would amplify rounding.
    head = np.linalg.qr(rng.standard_normal((tail.width, tail.width)))[0].astype(np.float32)
    statistics = dataclasses.replace(without_public_data(tail.width), head=head)
    return Workload(job, config, Classifier(tail, statistics), samples, labels, pixels)


def _drawn(
    job: Job, tail: torch.nn.Module, rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    count = max(DRAWN, PLAIN_CLIENTS * job.images)
    size = (count, 3, job.image_size, job.image_size)
    pixels = torch.from_numpy(rng.standard_normal(size, dtype=np.float32))
    centres = tail.reduce(pixels).numpy()
    scale = centres.std(axis=0)
    chosen = rng.integers(count, size=job.clients * job.images)
    samples = rng.standard_normal((len(chosen), *centres.shape[1:]), dtype=np.float32)
    samples *= scale
    samples += centres[chosen]
    first = min(PLAIN_CLIENTS, job.clients) * job.images
    samples[:first] = centres[:first]
    samples = samples.reshape(job.clients, job.images, *centres.shape[1:])
    labels = rng.integers(CLASSES, size=(job.clients, job.images))
    own = pixels[:first].unflatten(0, (-1, job.images))
    return own, torch.from_numpy(samples), torch.from_numpy(labels)


def _real(job: Job, config: PinaConfig, tail: torch.nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    from pina_app.features import to_pixels

    clients = [task.simulated_client(config, client) for client in range(job.clients)]
    federation, _ = task.simulated_federation(config)
    first = min(PLAIN_CLIENTS, job.clients) * job.images
    pixels = to_pixels(tail, federation.images[:first]).unflatten(0, (-1, job.images))
    samples = torch.stack([client.samples for client in clients])
    return pixels, samples, torch.stack([client.labels for client in clients])


class Nodes:
    """The nodes as one function: which clients they host, and their part of a round."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.samples = work.samples.numpy()
        self.asked: list[int] = []

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a query or a request."""
        config = self.work.config
        if message.metadata.message_type.startswith("query"):
            partition = int(context.node_config["partition-id"])
            clients = clients_of_partition(partition, config.clients_per_node, config.clients)
            return Message(wire.hosted_content(clients, config.nodes), reply_to=message)
        request, ids, models, prototypes = wire.read_round(message.content)
        self.asked += ids
        data = {client: self._client(client) for client in ids}
        content = local.answer(config, self.work.classifier, request, data, models, prototypes)
        return Message(content=content, reply_to=message)

    def _client(self, client: int) -> task.ClientData:
        """A copy of the client's rows, as the app takes it from its cache."""
        samples = torch.from_numpy(np.array(self.samples[client]))
        return task.ClientData(samples, self.work.labels[client], 0)


class Project:
    """Rounds of this project: strategy, clipping, secure sum, noise, ledger on disk."""

    def __init__(self, work: Workload, ledger_path: Path | None = None) -> None:
        self.work = work
        config = work.config
        method = config.method_list[0]
        self.nodes = Nodes(work)
        self.grid = InProcessGrid(self.nodes, config.nodes)
        self.messages: list[tuple[Message, Message]] = []
        self.strategy = create_strategy(config, method, work.classifier.statistics, ledger_path)
        width = work.classifier.statistics.mean.size
        self.strategy.models = initial_models(config, method, width, CLASSES)
        self.arrays = wire.pack_models(self.strategy.models)
        self.rounds = 0
        self.seconds_at_nodes = 0.0
        self.start_models: list[wire.Model] = []

    def round(self) -> list[int]:
        """One round; returns the clients that took part."""
        self.rounds += 1
        self.start_models = wire.unpack_models(self.arrays)
        messages = list(
            self.strategy.configure_train(self.rounds, self.arrays, ConfigRecord(), self.grid)
        )
        self.nodes.asked = []
        started = perf_counter()
        replies = list(self.grid.send_and_receive(messages))
        self.seconds_at_nodes = perf_counter() - started
        self.messages = list(zip(messages, replies, strict=True))
        arrays, _ = self.strategy.aggregate_train(self.rounds, replies)
        assert isinstance(arrays, ArrayRecord)
        self.arrays = arrays
        return self.nodes.asked

    def clipped_sum(self) -> np.ndarray:
        """Sum of the clipped updates of the last round before noise, (C, D)."""
        sums = 0
        for message, reply in self.messages:
            layout = wire.read_round(message.content)[0].layout
            total = from_grid(wire.read_contribution(reply), layout.sensitivity)
            sums = sums + layout.decode(total)[0]
        return np.asarray(sums)

    def message_bytes(self) -> tuple[int, int]:
        """Bytes that the first node received and sent in the last round."""
        received, sent = self.messages[0]
        return size_of(received.content), size_of(sent.content)


def size_of(content: RecordDict) -> int:
    """Bytes of a message's content as Flower serialises it."""
    return int(recorddict_to_proto(content).ByteSize())
