"""C cluster models under one privacy layer: the base of PINA, IFCA and private FedAvg.

One round (PINA, arXiv:2604.20596, Algorithm 1): sample clients, send all cluster models, let each
client choose and train one, take in the secure sum of the clipped updates, divide, rescale, skip
what is only noise, apply. With one cluster this is private FedAvg.

Deviations from the paper: the divisor is the expected cohort ``q K``, or a noisy count, never the
realised cohort ``|K_t|``, which would itself leak; every client weighs the same.
"""

from collections.abc import Iterable, Mapping
from logging import INFO, WARNING
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from strategies import planned, traffic, wire
from strategies.aggregation import Aggregation
from strategies.clients import Roster, sample_clients
from strategies.clustering.frame import Frame
from strategies.coded import CodedModels
from strategies.privacy.ledger import Ledger, Release
from strategies.privacy.plan import PrivacyPlan, Stage
from strategies.privacy.secure_sum import SecureSum, TrustedSum
from strategies.randomness import noise_stream, stream
from strategies.starts import OneModelStart
from strategies.streaming import reason_of

ASSIGNMENTS = ("single", "loss", "oracle")


class ClusteredStrategy(OneModelStart):
    """Train C cluster models; clients choose among them.

    Parameters
    ----------
    name : str
        Name in ledger and reports.
    clients, clusters : int
        K and C.
    plan : PrivacyPlan
        Sampling, rounds and noise of every stage, see ``strategies.privacy.plan``.
    aggregation : Aggregation
        What happens to the secure sum.
    ledger : Ledger
        Takes every release before it is used.
    assignment : str
        "single" (C = 1), "loss" (IFCA), or in simulations "oracle".
    seed : int or None
        Seed of cohorts and noise for simulations; None takes both from the operating system.
    public : RecordDict, optional
        Public arrays that each node gets once (``wire.public_content``).
    perturbation : float
        How far the cluster models start from each other if ``start`` gets a single model and
        clients choose by loss, see ``strategies.starts``.
    local_noise : bool
        Whether clients add the noise to their updates themselves (local DP) and the server none.
        Every client then bears the noise of a whole release, which a simulated cohort cannot
        thin out. What is protected is a contribution, not whether it was made; epsilon is still
        told as for an observer who does not know who was sampled, which favours the method.
    """

    def __init__(
        self,
        *,
        name: str,
        clients: int,
        clusters: int,
        plan: PrivacyPlan,
        aggregation: Aggregation,
        ledger: Ledger,
        assignment: str = "single",
        seed: int | None = None,
        public: RecordDict | None = None,
        perturbation: float = 0.1,
        local_noise: bool = False,
    ) -> None:
        if local_noise and plan.noise_cohort_size is not None:
            raise ValueError("local_noise: needs a plan with noise_cohort_size = None")
        if not perturbation >= 0:
            raise ValueError(f"perturbation = {perturbation}: must be >= 0")
        if not 1 <= clusters <= clients:
            raise ValueError(f"clusters = {clusters}: must be in [1, clients = {clients}]")
        if assignment not in ASSIGNMENTS:
            raise ValueError(f"assignment = {assignment!r}: must be one of {ASSIGNMENTS}")
        if assignment == "single" and clusters != 1:
            raise ValueError(f"assignment = 'single': needs clusters = 1, not {clusters}")
        self.name = name
        self.clients = clients
        self.clusters = clusters
        self.plan = plan
        self.aggregation = aggregation
        self.ledger = ledger
        self.assignment = assignment
        self.seed = seed
        self.local_noise = local_noise
        self.perturbation = perturbation if assignment == "loss" else 0.0
        query = public if public is not None else RecordDict()
        by_loss = assignment == "loss" and clusters > 1
        self.roster = Roster(clients, wire.add_needs(query, wire.needs_content(loss=by_loss)))
        self.completed = 0
        self.round = 0
        self.skipped: list[int] = []
        self.unusable: list[int] = []
        self.traffic = traffic.Traffic()
        self._participations = np.full(clients, self._uncertain_participations(0))
        self._momentum: NDArray[np.float64] | None = None
        self._coded: CodedModels | None = None
        self.models: list[wire.Model] = []
        self._request: wire.RoundRequest | None = None
        self._asked: Mapping[int, list[int]] = {}

    @classmethod
    def planned(
        cls,
        *,
        clients: int,
        rounds: int,
        epsilon: float | None,
        seed: int | None = None,
        **settings: Any,
    ) -> Self:
        """Private FedAvg from few numbers; ``settings`` as for ``strategies.planned.parts``.

        Parameters
        ----------
        clients : int
            K, the public size of the population.
        rounds : int
            What ``start`` gets as ``num_rounds``.
        epsilon : float or None
            Budget over the whole run; None runs without privacy.
        seed : int or None
            For simulations; None takes cohorts and noise from the operating system.
        """
        common = planned.parts(
            "fedavg", clients=clients, clusters=1, rounds=rounds, epsilon=epsilon, **settings
        )
        return cls(seed=seed, **common)

    # --- the rounds of this strategy; PINA puts its initialisation in front ----------------

    @property
    def init_rounds(self) -> int:
        """Rounds before training."""
        return 0

    @property
    def total_rounds(self) -> int:
        """Rounds of the whole run."""
        return self.init_rounds + self.plan.train.releases

    @property
    def remaining_rounds(self) -> int:
        """What ``start`` has to be called with: the rounds that are not completed."""
        return self.total_rounds - self.completed

    def stage(self, phase: str) -> Stage:
        """The planned stage to which a phase belongs."""
        if phase == "train":
            return self.plan.train
        assert self.plan.init is not None
        return self.plan.init

    def request(self, current_round: int) -> wire.RoundRequest:
        """What the clients are asked in a round (from 1)."""
        return wire.RoundRequest(
            method=self.name,
            phase="train",
            round=current_round - self.init_rounds,
            assignment=self.assignment,
            clusters=self.clusters,
            width=wire.width(self.models[0]),
            threshold=self.aggregation.threshold,
            kappa=self.aggregation.counters,
            noise_multiplier=self.plan.train.noise_multiplier if self.local_noise else 0.0,
            private=self.plan.private,
            release=self.aggregation.release,
            contrast=self.aggregation.contrast,
        )

    def prototypes(self) -> NDArray[np.float64] | None:
        """Prototypes that travel with a round, if any."""
        return None

    def frame(self) -> Frame | None:
        """How clients embed their images, if not as usual."""
        return None

    def shares(self) -> NDArray[np.float64]:
        """Shares (C,) of the clients that the clusters are taken to have, for "coded"."""
        return np.full(self.clusters, 1 / self.clusters)

    # --- Flower's interface ---------------------------------------------------------------

    def summary(self) -> None:
        """Log what this strategy will do."""
        plan = self.plan
        log(INFO, "\t├──> %s: %d clients, %d clusters", self.name, self.clients, self.clusters)
        log(INFO, "\t├──> sampling probability %g", plan.train.sampling)
        noise = (
            f"noise multiplier {plan.train.noise_multiplier:.4g}" if plan.private else "no noise"
        )
        log(INFO, "\t└──> %s, clipping threshold %g", noise, self.aggregation.threshold)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample clients and ask the nodes that host them."""
        self.round = self.completed + server_round
        self.models = wire.unpack_models(arrays)
        if len(self.models) != self.clusters:
            raise ValueError(
                f"initial arrays hold {len(self.models)} cluster models: need {self.clusters}"
            )
        request = self._request = self.request(self.round)
        if self.plan.private:
            self.ledger.check(self._release(request))
        self.roster.update(grid)
        self._asked = self.roster.locate(self._sample(request))
        models = arrays if request.phase in ("train", "sketch") else None
        own = ConfigRecord({**config, "server-round": self.round})
        # All requests carry the same arrays, so one, to nobody, tells the size of each.
        size = traffic.array_bytes(self._content(request, [], models))
        self.traffic = traffic.Traffic(size, traffic.reply_bytes(request))
        if not self.plan.private:
            self.traffic.down, self.traffic.up = size * len(self._asked), 0
        return [
            Message(
                content=self._content(request, clients, models, own),
                message_type=MessageType.TRAIN,
                dst_node_id=node,
            )
            for node, clients in self._asked.items()
        ]

    def _content(
        self,
        request: wire.RoundRequest,
        clients: list[int],
        models: ArrayRecord | None,
        config: ConfigRecord | None = None,
    ) -> RecordDict:
        frame = self.frame()
        arrays = None if frame is None else frame.arrays()
        return wire.round_content(request, clients, models, self.prototypes(), config, arrays)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum the replies securely, record the release, and use it."""
        assert self._request is not None
        request = self._request
        layout = request.layout
        noise = noise_stream(self.seed, f"noise-{self._stage_name(request)}", request.round)
        secure_sum: SecureSum = TrustedSum(layout.size, noise)
        self.unusable = []
        for reply in map(self.traffic.counted, replies):
            if not self._answered(reply):
                continue
            try:
                secure_sum.add(wire.read_contribution(reply))
            except ValueError as error:  # of another shape: from another version, say
                log(WARNING, "round %d: %s; left out", self.round, error)
        release = self._release(request)
        if self.plan.private:
            self.ledger.record(release)
        stage = self.stage(request.phase)
        multiplier = 0.0 if self.local_noise else stage.actual_multiplier
        sums, counts = layout.decode(secure_sum.release(multiplier, layout.sensitivity))
        self.skipped = []
        addends = stage.cohort if self.local_noise else 1.0  # noises in the sum, as expected
        self.use(request, sums, counts, release.noise_std * float(np.sqrt(addends)))
        return wire.pack_models(self.models), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No evaluation on clients: a metric of theirs would leave without a mechanism."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing was asked."""
        return None

    # --- what a round does ------------------------------------------------------------------

    def use(
        self,
        request: wire.RoundRequest,
        sums: NDArray[np.float64],
        counts: NDArray[np.float64] | None,
        noise_std: float,
    ) -> None:
        """Apply a released sum to the cluster models."""
        if request.release == "coded":
            if self._coded is None:
                self._coded = CodedModels.starting_at(wire.flatten(self.models))
            taken = self.plan.train.cohort * self.shares()  # n_c of strategies.coded
            self._coded.add(sums, taken, noise_std, request.contrast)
            self.models = wire.unflatten(self._coded.rows(), self.models[0])
            return
        updates, self.skipped = self.aggregation.updates(
            sums, counts, self.plan.train.cohort, noise_std, request.round
        )
        if self.aggregation.server_momentum > 0:
            if self._momentum is not None:
                updates = updates + self.aggregation.server_momentum * self._momentum
            self._momentum = updates
            updates = updates.copy()
            updates[self.skipped] = 0.0  # a skipped cluster stays; its momentum decays
        rows = wire.flatten(self.models) + updates
        self.models = wire.unflatten(rows, self.models[0])

    def _stage_name(self, request: wire.RoundRequest) -> str:
        return "train" if request.phase == "train" else "init"

    def _sample(self, request: wire.RoundRequest) -> NDArray[np.intp]:
        stage = self.stage(request.phase)
        rng = stream(self.seed, f"cohort-{self._stage_name(request)}", request.round)
        if request.phase != "train":
            return sample_clients(self.clients, stage.sampling, rng)
        cohort = sample_clients(
            self.clients, stage.sampling, rng, self._participations, self.plan.max_participations
        )
        self._participations[cohort] += 1
        return cohort

    def _release(self, request: wire.RoundRequest) -> Release:
        stage = self.stage(request.phase)
        sensitivity = request.layout.sensitivity
        return Release(
            method=self.name,
            round=self.round,
            phase=request.phase,
            noise_multiplier=stage.noise_multiplier,
            sampling=stage.sampling,
            sensitivity=sensitivity,
            noise_std=stage.actual_multiplier * sensitivity,
        )

    def _answered(self, reply: Message) -> bool:
        """Whether a reply is usable; a node that failed is a drop-out and does not stop a round."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            # The error's text may quote data, so it is not repeated in a private run.
            why = reason_of(reply) if self.plan.private else reply.error.reason
            log(WARNING, "round %d: node %d is left out: %s", self.round, node, why)
            return False
        if wire.has_lost_state(reply):
            self.roster.forget(node)
            why = "it was restarted and has lost the public arrays; it gets them again"
            log(WARNING, "round %d: node %d is left out: %s", self.round, node, why)
            return False
        if not self.plan.private:
            named = wire.read_unusable(reply)
            self.unusable += named
            if named:
                log(WARNING, "round %d: clients without a usable update: %s", self.round, named)
        return True

    # --- state, for resume ------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Everything that a resumed run needs besides its configuration."""
        state: dict[str, NDArray[np.generic]] = {
            "round": np.array(self.round),
            "participations": self._participations.copy(),
        }
        if self._momentum is not None:
            state["momentum"] = self._momentum
        if self._coded is not None:
            state.update(self._coded.state())
        state.update(wire.models_as_state(self.models))
        return state

    def check_ledger(self) -> None:
        """Refuse to go on if the ledger holds fewer releases than rounds were committed.

        Raises
        ------
        RuntimeError
            If releases are missing: no valid epsilon could be told any more.
        """
        committed = [r for r in self.ledger.releases if r.round <= self.completed]
        if self.plan.private and len({r.round for r in committed}) < self.completed:
            raise RuntimeError(
                f"{self.ledger.path}: has {len(committed)} releases of {self.name} for "
                f"{self.completed} committed rounds; it was cut or replaced, so no epsilon can be "
                "told. Restore it, or start a new run"
            )

    def _uncertain_participations(self, completed: int) -> int:
        """Recorded training releases beyond the last committed round.

        They may have been used; who took part is lost, so each counts for everybody.
        """
        later = [release for release in self.ledger.releases if release.round > completed]
        return sum(release.phase == "train" for release in later)

    def load_state(self, state: dict[str, NDArray[np.generic]]) -> ArrayRecord:
        """Restore ``state()``; returns the arrays to start from."""
        self.completed = self.round = int(state["round"])
        participations = np.array(state["participations"], dtype=np.int64)
        self._participations = participations + self._uncertain_participations(self.completed)
        if "momentum" in state:
            self._momentum = np.array(state["momentum"], dtype=np.float64)
        self._coded = CodedModels.restored(state)
        self.models = wire.models_in(state)
        return wire.pack_models(self.models)
