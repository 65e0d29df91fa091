"""Hierarchical federated averaging: devices, cluster heads, server.

Wireless CFL paper, Section 2.1. A Flower round is tau1 local steps of every device (Eq. 2) and one
aggregation inside every cluster (Eq. 3); every tau2 steps the clusters' models are averaged as well
(Eq. 4). Weights are numbers of samples. The server computes what the heads would; the radio links
that this stands for are counted (``strategies.wireless.links``). Without clusters it is FedAvg:
every device talks to the server.

Optionally the first round is the paper's Step 1: every device sends its gradient at the broadcast
model, and the clusters are planned from all of them.

Deviations from the paper: positions are the server's own knowledge (``topology``), not sent by the
devices; devices may fail: a failed head is replaced inside its cluster for the rest of the run, and
a cluster of which nobody answers (or none can lead) is skipped until it answers again. Gradients
and models reach the server without differential privacy.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any, Self

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords, aggregate_metricrecords
from numpy.typing import NDArray

from strategies import hierarchical_wire as wire
from strategies import traffic
from strategies.clients import Roster
from strategies.randomness import stream
from strategies.streaming import StreamingGrid
from strategies.wireless.channel import Channel
from strategies.wireless.failover import replace_failed_heads
from strategies.wireless.links import (
    EnergyAccount,
    account,
    check_periods,
    round_account,
    server_links,
)
from strategies.wireless.problem import Clustering
from strategies.wireless.similarity import unit_gradients
from strategies.wireless.solve import solve
from strategies.wireless.topology import Topology, devices_in_disc

Planner = Callable[[NDArray[np.float32]], Clustering]
"""From (U, p) unit gradients to clusters and heads."""


class HierarchicalFedAvg(FedAvg):
    """Average inside clusters every tau1 local steps and across them every tau2.

    Parameters
    ----------
    topology : Topology
        Devices 0..U-1 (client ids), their positions, the candidates for heads.
    clustering : Clustering, callable or None
        Clusters and heads; or a planner, which gets the devices' unit gradients after a first
        round that collects them; or None for FedAvg.
    tau1, tau2 : int
        Local steps between aggregations inside and across clusters; without clusters tau1 alone
        counts.
    channel : Channel
        Parameters of the radio links, for the account of energy and delay.
    sketch_dimension : int
        Devices send a public random projection of their gradient to so many numbers; 0: all of it.
    seed : int or None
        Seed of the projection, which is public, and of fading.
    fraction_evaluate, options
        As for Flower's FedAvg; by default clients do not evaluate.

    Raises
    ------
    ValueError
        If tau2 is not a multiple of tau1, or the clustering does not fit the devices.
    """

    def __init__(
        self,
        *,
        topology: Topology,
        clustering: Clustering | Planner | None,
        tau1: int = 1,
        tau2: int = 2,
        channel: Channel | None = None,
        sketch_dimension: int = 0,
        seed: int | None = 0,
        fraction_evaluate: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.fraction_evaluate = fraction_evaluate  # set here: Flower warns of 0, our default
        check_periods(tau1, tau2)
        self.topology = topology
        self.devices = len(topology.ids)
        self.tau1 = tau1
        self.tau2 = tau2
        self.channel = channel if channel is not None else Channel()
        self.sketch_dimension = sketch_dimension
        self.seed = seed
        self.planner = clustering if callable(clustering) else None
        self.clustering = None if callable(clustering) else clustering
        if self.clustering is not None and self.clustering.labels.shape != (self.devices,):
            raise ValueError(
                f"clustering: has {len(self.clustering.labels)} labels for {self.devices} devices"
            )
        self.roster = Roster(self.devices, RecordDict())
        self.round = self.completed = self.iteration = 0
        self.phase = wire.TRAIN
        self.account = EnergyAccount()
        self.failed: list[int] = []
        self.skipped: list[int] = []
        self.traffic = traffic.Traffic()
        self.arrays: ArrayRecord | None = None
        self._models: dict[int, ArrayRecord] = {}
        self._asked: dict[int, list[list[int]]] = {}

    @classmethod
    def planned(
        cls,
        *,
        clients: int,
        topology: Topology | None = None,
        capacity: int = 15,
        alpha: float = 0.5,
        seed: int = 0,
        **options: Any,
    ) -> Self:
        """Clusters planned from gradients and distances, with few numbers to give.

        Parameters
        ----------
        clients : int
            U, the devices.
        topology : Topology, optional
            Where they are; by default they are drawn in the paper's disc (100 m, server at 1 km).
        capacity : int
            Devices that one head serves, itself included; for the drawn topology.
        alpha : float
            Weight of similarity against distance in Eq. 16.
        seed : int
            Of places, plan and fading.
        options
            As for the class. A client written for FedAvg counts as ``tau1`` local steps a round.
        """
        where = topology
        if where is None:
            rng = stream(seed, "positions")
            where = devices_in_disc(rng, devices=clients, capacity=capacity)
        if len(where.ids) != clients:
            raise ValueError(f"clients = {clients}: the topology has {len(where.ids)} devices")

        def plan(gradients: NDArray[np.float32]) -> Clustering:
            problem = where.problem(gradients, alpha=alpha)
            return solve(problem, seconds=None, sweeps=200, seed=seed).clustering

        return cls(topology=where, clustering=plan, seed=seed, **options)

    @property
    def planning_rounds(self) -> int:
        """Rounds before training: 1 if the clusters are planned from gradients."""
        return int(self.planner is not None)

    @property
    def global_period(self) -> int:
        """Local iterations between global models: tau2, or tau1 without clusters."""
        return self.tau1 if self.clustering is None and self.planner is None else self.tau2

    def rounds(self, iterations: int) -> int:
        """``num_rounds`` for so many local iterations, without those of a resumed run.

        Raises
        ------
        ValueError
            If the last round would not end in a global aggregation.
        """
        if iterations < 1 or iterations % self.global_period:
            raise ValueError(
                f"iterations = {iterations}: must be a multiple of {self.global_period}"
            )
        return self.planning_rounds + iterations // self.tau1 - self.completed

    # --- Flower's interface ---------------------------------------------------------------

    def summary(self) -> None:
        """Log what this strategy will do."""
        heads = "planned from gradients" if self.planner else "no clusters"
        if self.clustering is not None:
            heads = f"{len(self.clustering.heads)} clusters"
        log(INFO, "\t├──> %d devices, %s", self.devices, heads)
        log(INFO, "\t└──> tau1 = %d, tau2 = %d local steps", self.tau1, self.tau2)

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Flower's own loop over a grid that names the nodes that do not answer."""
        return super().start(StreamingGrid(grid), *args, **kwargs)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask for gradients (first round, if clusters are planned) or for tau1 local steps."""
        self.round = self.completed + server_round
        self.arrays = arrays
        self.roster.update(grid)
        planning = self.planner is not None and self.clustering is None
        self.phase = wire.GRADIENT if planning else wire.TRAIN
        if planning:  # one message a device: each gradient is needed by itself
            groups = dict(enumerate([device] for device in range(self.devices)))
        else:
            groups = {n: np.flatnonzero(self._labels == n).tolist() for n in range(self._clusters)}
        self._asked = {}
        messages = []
        for group, members in groups.items():
            model = arrays if planning else self._models.get(group, arrays)
            for node, devices in self.roster.locate(members).items():
                self._asked.setdefault(node, []).append(devices)
                request = wire.DeviceRequest(
                    phase=self.phase,
                    devices=devices,
                    iteration=self.iteration,
                    local_steps=self.tau1,
                    sketch_dimension=self.sketch_dimension if planning else 0,
                    sketch_seed=self.seed or 0,
                )
                content = wire.request_content(
                    request,
                    model,
                    ConfigRecord({**config, "server-round": server_round}),
                    arrays_key=self.arrayrecord_key,
                    config_key=self.configrecord_key,
                )
                messages.append(Message(content, dst_node_id=node, message_type=MessageType.TRAIN))
        self.traffic = traffic.measured(messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Plan the clusters, or aggregate inside (Eq. 3) and across (Eq. 4) them."""
        assert self.arrays is not None
        usable, faults = wire.usable_replies(
            map(self.traffic.counted, replies), self._asked, self.arrays, self.weighted_by_key
        )
        sizes = [traffic.array_bytes(content) for _, content in usable]
        self.traffic.up_per_node = max(sizes, default=0)
        for fault in faults:
            log(WARNING, "round %d: %s", self.round, fault)
        answered = np.array(sorted({d for devices, _ in usable for d in devices}), dtype=np.int64)
        self.failed = sorted(set(range(self.devices)) - set(answered.tolist()))
        if self.failed:
            log(WARNING, "round %d: no usable answer of devices %s", self.round, self.failed)
        if self.phase == wire.GRADIENT:
            self._plan(usable, answered)
            return self.arrays, None
        self._replace_heads(answered)
        inside = self._average_inside(usable)
        self.iteration += self.tau1
        across = self.iteration % self.global_period == 0
        self.account = self._account(answered, across)
        if inside:
            self.arrays = aggregate_arrayrecords(list(inside.values()), self.weighted_by_key)
        self._models = {} if across else {**self._models, **_models_of(inside)}
        metrics = [record for _, record in usable]
        return self.arrays, (
            aggregate_metricrecords(metrics, self.weighted_by_key) if metrics else None
        )

    # --- what a round does ------------------------------------------------------------------

    @property
    def _labels(self) -> NDArray[np.int64]:
        if self.clustering is None:
            return np.zeros(self.devices, dtype=np.int64)
        return self.clustering.labels

    @property
    def _clusters(self) -> int:
        return 1 if self.clustering is None else len(self.clustering.heads)

    def _plan(self, usable: list[tuple[list[int], RecordDict]], answered: NDArray[Any]) -> None:
        """Step 1: clusters from gradients; a device without one counts as similar to nobody."""
        assert self.arrays is not None
        assert self.planner is not None
        if not usable:
            raise RuntimeError("no device sent a gradient, so no clusters can be planned")
        size = sum(int(np.prod(values.shape)) for values in self.arrays.values())
        rows = np.zeros((self.devices, self.sketch_dimension or size), dtype=np.float32)
        for devices, content in usable:
            record = next(iter(content.array_records.values()))
            gradient = wire.gradient_in(record, self.arrays)
            if gradient.size == rows.shape[1]:  # a plain client knows of no projection
                rows[devices[0]] = gradient
        silent = np.flatnonzero(~rows.any(axis=1)).tolist()
        if silent:
            log(WARNING, "devices %s have no gradient: their similarity is taken as 0", silent)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said above, where a person who follows the run reads
            gradients = unit_gradients(rows)
        self.clustering = self.planner(gradients)
        links = server_links(
            self._channel(self.sketch_dimension), *self._places, answered, "uplink", self._fading()
        )
        self.account = account(links)
        log(INFO, "planned %d clusters", len(self.clustering.heads))

    def _average_inside(self, usable: list[tuple[list[int], RecordDict]]) -> dict[int, RecordDict]:
        """Eq. 3: the model of every cluster of which somebody answered, with its samples D_n."""
        groups: dict[int, list[RecordDict]] = {}
        for devices, content in usable:
            groups.setdefault(int(self._labels[devices[0]]), []).append(content)
        for cluster in self.skipped:
            groups.pop(cluster, None)
        result = {}
        for cluster, contents in sorted(groups.items()):
            samples = sum(float(_samples(c, self.weighted_by_key)) for c in contents)
            result[cluster] = RecordDict(
                {
                    wire.ARRAYS: aggregate_arrayrecords(contents, self.weighted_by_key),
                    wire.METRICS: MetricRecord({self.weighted_by_key: samples}),
                }
            )
        return result

    def _replace_heads(self, answered: NDArray[np.int64]) -> None:
        """New heads where the old ones are silent; clusters without a head are skipped."""
        self.skipped = []
        if self.clustering is not None:
            self.clustering, self.skipped, said = replace_failed_heads(
                self.topology, self.clustering, answered
            )
            for message in said:
                log(WARNING, "round %d: %s", self.round, message)

    # --- energy and delay -------------------------------------------------------------------

    @property
    def _places(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.topology.positions_m, self.topology.server_m

    def _channel(self, numbers: int) -> Channel:
        """The channel for a message of so many float32 instead of a model (0: a model)."""
        return replace(self.channel, model_bits=32.0 * numbers) if numbers else self.channel

    def _fading(self) -> np.random.Generator | None:
        return stream(self.seed, "fading", self.round) if self.channel.fading else None

    def _account(self, answered: NDArray[np.int64], across: bool) -> EnergyAccount:
        """Energy and delay of the links of this round."""
        return round_account(
            self.channel,
            *self._places,
            self.clustering,
            across=across,
            participants=answered,
            skipped=self.skipped,
            rng=self._fading(),
        )

    # --- state, for resume ------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Everything that a resumed run needs besides its configuration."""
        assert self.arrays is not None
        state: dict[str, NDArray[np.generic]] = {
            "round": np.array(self.round),
            "iteration": np.array(self.iteration),
            **{f"global/{name}": values.numpy() for name, values in self.arrays.items()},
        }
        if self.clustering is not None:
            state["labels"], state["heads"] = self.clustering.labels, self.clustering.heads
        for cluster, model in self._models.items():
            state |= {f"cluster-{cluster}/{name}": v.numpy() for name, v in model.items()}
        return state

    def load_state(self, state: Mapping[str, NDArray[np.generic]]) -> ArrayRecord:
        """Restore ``state()``; returns the arrays to start from."""
        self.completed = self.round = int(state["round"])
        self.iteration = int(state["iteration"])
        if "labels" in state:
            self.clustering = Clustering(
                np.asarray(state["labels"], dtype=np.int64), np.asarray(state["heads"], np.int64)
            )
        models: dict[str, ArrayRecord] = {}
        for key, values in state.items():
            owner, _, name = key.partition("/")
            if name:
                models.setdefault(owner, ArrayRecord())[name] = Array(np.asarray(values))
        self.arrays = models.pop("global")
        self._models = {int(n.removeprefix("cluster-")): model for n, model in models.items()}
        return self.arrays


def _models_of(inside: Mapping[int, RecordDict]) -> dict[int, ArrayRecord]:
    return {cluster: record.array_records[wire.ARRAYS] for cluster, record in inside.items()}


def _samples(content: RecordDict, key: str) -> float:
    return float(next(iter(content.metric_records.values()))[key])  # type: ignore[arg-type]
