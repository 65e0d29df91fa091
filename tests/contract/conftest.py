"""One tiny problem for every strategy: clients with linear updates, without torch or an app."""

import dataclasses

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from app_kit.in_process_grid import InProcessGrid
from strategies import wire
from strategies.aggregation import Aggregation
from strategies.assignment import lowest_loss, squared_distances
from strategies.clients import clients_of_partition
from strategies.clustered import ClusteredStrategy
from strategies.clustering import discriminant, initialisation
from strategies.clustering.frame import Frame
from strategies.clustering.initialisation import client_answers
from strategies.clustering.sketch import sketch
from strategies.fednova import FedNova, accumulated_steps
from strategies.ifca import IFCA
from strategies.local_noise import local_noise
from strategies.pina import PINA
from strategies.privacy.ledger import Ledger
from strategies.privacy.plan import PrivacyPlan, plan_privacy
from strategies.randomness import stream
from strategies.rr_cluster import RRCluster, moved
from strategies.sketched_pina import SketchedPINA

CLIENTS, WIDTH, NODES = 24, 12, 4
INITS = {
    "pina": "secure-kmeans",
    "pina-spectral": "spectral",
    "pina-server-points": "server-points",
    "pina-coded": "secure-kmeans",
    "pina-discriminant": "discriminant",
    "pina-whitening": "private-whitening",
    "pina-random": "random",
}
"""Kinds of PINA and their initialisation."""
INIT_ROUNDS = {
    "pina": 3,
    "pina-spectral": 2,
    "pina-server-points": 3,
    "pina-coded": 3,
    "pina-discriminant": 4,
    "pina-whitening": 5,
    "pina-sketch": 1,
}
CODED = ("oracle-coded", "pina-coded")
SINGLE = ("fedavg", "fednova")
KINDS = (
    *("fedavg", "oracle", "oracle-coded", *INITS, "pina-sketch"),
    *("ifca", "fednova", "rr-cluster", "ifca-ldp"),
)
STEPS = 2
SERVER_POINTS = 0.2 * np.random.default_rng(7).standard_normal((30, WIDTH))


@dataclasses.dataclass
class Problem:
    """Client k pulls its model towards ``targets[k]``; even and odd clients have two targets.

    ``broken`` clients fail: "nan" sends a NaN update, "raise" raises on its node.
    """

    seed: int = 0
    noise_seed: int | None = 0
    clients: int = CLIENTS
    broken: dict[int, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)
        centres = np.array([np.full(WIDTH, 1.0), np.full(WIDTH, 0.0)])
        self.groups = np.arange(self.clients) % 2
        self.targets = centres[self.groups] + 0.1 * rng.standard_normal((self.clients, WIDTH))
        # Several numbers for each client that leave a trace if they were ever sent.
        self.secrets = rng.uniform(1e6, 2e6, self.clients)

    def update(self, client: int, model: wire.Model) -> np.ndarray:
        """One step towards the client's target, flattened in the order of names."""
        if self.broken.get(client) == "nan":
            return np.full(WIDTH, np.nan)
        return 0.5 * (self.targets[client] - wire.flatten([model])[0])

    def images(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Features and labels of four images around the client's target."""
        noise = np.random.default_rng(client).standard_normal((4, WIDTH))
        return 2 * self.targets[client] + 0.3 * noise, np.array([0, 1, 0, 1])

    def embedding(self, client: int, frame: Frame | None = None) -> np.ndarray:
        """Direction of the client's target, in the unit ball."""
        if frame is not None:
            return discriminant.embedding(*self.images(client), frame)
        target = self.targets[client]
        return target / max(1.0, np.linalg.norm(target))

    def client_app(self, message: Message, context: Context) -> Message:
        """A ClientApp by hand: answers queries and training requests."""
        if message.metadata.message_type.startswith("query"):
            partition = int(context.node_config["partition-id"])
            nodes = int(context.node_config["num-partitions"])
            hosted = clients_of_partition(partition, -(-self.clients // nodes), self.clients)
            return Message(content=wire.hosted_content(hosted, nodes), reply_to=message)
        request, ids, models, prototypes = wire.read_round(message.content)
        arrays = wire.read_frame(message.content)
        frame = None if arrays is None else Frame.of(arrays)
        content = self.answer(request, ids, models, prototypes, frame)
        return Message(content=content, reply_to=message)

    def answer(
        self,
        request: wire.RoundRequest,
        ids: list[int],
        models: list[wire.Model],
        prototypes: np.ndarray | None,
        frame: Frame | None = None,
    ) -> RecordDict:
        """What a node replies."""
        if any(self.broken.get(client) == "raise" for client in ids):
            raise RuntimeError(f"client data: {self.secrets[ids[0]]}")
        if request.phase == "sketch":
            rows = []
            for client in ids:
                rng = stream(self.seed, "sketch", client)
                update = self.update(client, models[0])[: WIDTH - 4]  # array "b"
                rows.append(sketch(update, request.threshold, request.noise_multiplier, rng))
            return wire.sketch_reply(np.array(rows))
        if request.phase in initialisation.LABELLED_PHASES:
            updates = np.array(
                [
                    discriminant.client_answer(
                        request.phase, *self.images(client), frame, request.width
                    )
                    for client in ids
                ]
            )
            chosen = np.zeros(len(ids), dtype=int)
        elif request.phase != "train":
            embeddings = np.array([self.embedding(client, frame) for client in ids])
            updates, chosen = client_answers(request.phase, embeddings, prototypes)
        else:
            chosen = np.array([self.choose(request, k, models, prototypes, frame) for k in ids])
            chosen = moved(request, ids, chosen, self.seed)
            updates = np.array(
                [self.update(k, models[c]) for k, c in zip(ids, chosen, strict=True)]
            )
        if request.normalise:
            updates = updates / accumulated_steps(STEPS, request.local_momentum)
        total, finite = request.layout.encode(updates, chosen)
        unusable = (
            [] if request.private else [k for k, good in zip(ids, finite, strict=True) if not good]
        )
        return wire.naming(
            wire.contribution(total + local_noise(request, ids, self.noise_seed)), unusable
        )

    def choose(
        self,
        request: wire.RoundRequest,
        client: int,
        models: list[wire.Model],
        prototypes: np.ndarray | None,
        frame: Frame | None,
    ) -> int:
        """Cluster of a client; the loss is the distance of a model to the client's target."""
        if request.assignment == "single":
            return 0
        if request.assignment == "oracle":
            return int(self.groups[client])
        losses = np.linalg.norm(wire.flatten(models) - self.targets[client], axis=1)
        distances = None
        if prototypes is not None:
            distances = squared_distances(self.embedding(client, frame)[None], prototypes)
        return int(lowest_loss(losses[None], distances, weight=1.0)[0])


def make_plan(kind: str, **changes: object) -> PrivacyPlan:
    """Plan of a strategy kind; keyword arguments of ``plan_privacy`` override."""
    values: dict[str, object] = {
        "clients": CLIENTS,
        "sampling": 1.0,
        "rounds": 4,
        "init_releases": INIT_ROUNDS.get(kind, 0),
        "noise_multiplier": 1.0,
    }
    plan = plan_privacy(**{**values, **changes})  # type: ignore[arg-type]
    if kind == "pina-sketch":  # no epsilon covers sketches
        return dataclasses.replace(plan, epsilon_outside=None, epsilon_server=None)
    return plan


def make_strategy(
    kind: str, plan: PrivacyPlan, aggregation: Aggregation | None = None, **options: object
) -> ClusteredStrategy:
    """A strategy of each kind on the tiny problem."""
    ledger = options.pop("ledger", None) or Ledger(None, kind, plan.delta, plan.budget)
    aggregation = aggregation or Aggregation(
        threshold=2.0,
        rescale="none" if kind in SINGLE else "count",
        skip="none" if kind == "ifca-ldp" else "energy",  # all of it is noise
    )
    if kind in CODED:  # which neither of these settings goes with
        aggregation = dataclasses.replace(
            aggregation, release="coded", rescale="count", server_momentum=0.0
        )
    common: dict[str, object] = {
        "name": kind,
        "clients": CLIENTS,
        "clusters": 1 if kind in SINGLE else 2,
        "plan": plan,
        "aggregation": aggregation,
        "ledger": ledger,
        "seed": 0,
        **options,
    }
    if kind == "fedavg":
        return ClusteredStrategy(assignment="single", **common)  # type: ignore[arg-type]
    if kind == "ifca":
        return IFCA(**common)
    if kind == "ifca-ldp":
        return IFCA(local_noise=True, **common)
    if kind == "rr-cluster":
        return RRCluster(smallest_share=0.4, **common)
    if kind == "fednova":
        return FedNova(effective_steps=STEPS, **common)
    if kind in ("oracle", "oracle-coded"):
        return ClusteredStrategy(assignment="oracle", **common)  # type: ignore[arg-type]
    if kind == "pina-sketch":
        return SketchedPINA(sketch_array="b", **common)
    return PINA(
        init=INITS[kind],
        embedding_size=WIDTH,
        server_points=SERVER_POINTS,
        classes=2,
        **common,
    )


def start_models(clusters: int) -> list[wire.Model]:
    """Models of two arrays; cluster models differ a little, so that losses can tell them apart."""
    rng = np.random.default_rng(11)
    return [
        {
            "b": (0.01 * rng.standard_normal(WIDTH - 4)).astype(np.float32),
            "head": (0.01 * rng.standard_normal((2, 2))).astype(np.float32),
        }
        for _ in range(clusters)
    ]


def run(
    strategy: ClusteredStrategy, problem: Problem, grid: InProcessGrid | None = None
) -> tuple[np.ndarray, InProcessGrid]:
    """Run to the end; returns the final models (C, D) and the grid."""
    problem.noise_seed = strategy.seed
    grid = grid or InProcessGrid(problem.client_app, NODES)
    arrays = wire.pack_models(start_models(strategy.clusters))
    strategy.start(grid, arrays, num_rounds=strategy.remaining_rounds)
    return wire.flatten(strategy.models), grid


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Every strategy in turn."""
    return str(request.param)
