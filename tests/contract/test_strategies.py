"""What every strategy must do, whatever it is called."""

import itertools

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from app_kit.in_process_grid import InProcessGrid
from strategies import wire
from strategies.aggregation import Aggregation
from strategies.privacy.ledger import BudgetExhaustedError, Ledger
from tests.contract.conftest import (
    CLIENTS,
    INITS,
    NODES,
    SINGLE,
    WIDTH,
    Problem,
    make_plan,
    make_strategy,
    run,
    start_models,
)


def test_learns_without_noise(kind: str) -> None:
    """Without noise every cluster model ends near the mean target of those who chose it."""
    problem = Problem()
    plan = make_plan(kind, private=False, rounds=12)
    models, _ = run(
        make_strategy(
            kind,
            plan,
            Aggregation(100.0, skip="none", rescale="none" if kind in SINGLE else "count"),
        ),
        problem,
    )
    centres = (
        [problem.targets.mean(0)]
        if kind in SINGLE
        else [problem.targets[::2].mean(0), problem.targets[1::2].mean(0)]
    )
    if len(models) == 2 and np.linalg.norm(models[0] - centres[0]) > np.linalg.norm(
        models[1] - centres[0]
    ):
        models = models[::-1]
    np.testing.assert_allclose(models, centres, atol=0.05)


def test_two_runs_are_identical_whatever_the_order_of_replies_and_the_number_of_nodes(
    kind: str,
) -> None:
    """Same seed: bit-identical models for any reply order and 1, 2 or 8 nodes."""
    problem = Problem()
    plan = make_plan(kind, sampling=0.7)
    results = []
    for nodes, shuffle in ((4, None), (4, 1), (4, 2), (1, None), (2, None), (8, 3)):
        rng = None if shuffle is None else np.random.default_rng(shuffle)
        grid = InProcessGrid(problem.client_app, nodes, shuffle=rng)
        results.append(run(make_strategy(kind, plan), problem, grid)[0])
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_two_seeds_differ(kind: str) -> None:
    problem = Problem()
    plan = make_plan(kind)
    first, _ = run(make_strategy(kind, plan, seed=0), problem)
    second, _ = run(make_strategy(kind, plan, seed=1), problem)
    assert np.abs(first - second).max() > 1e-3


def test_unseeded_runs_differ(kind: str) -> None:
    """Without a seed noise comes from the operating system."""
    problem = Problem()
    plan = make_plan(kind)
    first, _ = run(make_strategy(kind, plan, seed=None), problem)
    second, _ = run(make_strategy(kind, plan, seed=None), problem)
    assert np.abs(first - second).max() > 1e-3


def test_no_reply_carries_anything_but_the_protected_vector(kind: str) -> None:
    """The whole of every reply is one int64 vector of the public size (or sketches, if printed)."""
    problem = Problem(broken={3: "nan"})
    strategy = make_strategy(kind, make_plan(kind))
    _, grid = run(strategy, problem)
    hosted = [reply for reply in grid.replies if "clients" in reply.content]
    assert len(hosted) == NODES
    for reply in grid.replies:
        if "clients" in reply.content:
            continue
        assert list(reply.content) == ["contribution"]
        arrays = reply.content.array_records["contribution"]
        if kind == "pina-sketch" and list(arrays) == ["sketches"]:
            continue
        assert list(arrays) == ["sum"]
        vector = arrays["sum"].numpy()
        assert vector.dtype == np.int64
        assert vector.ndim == 1


def test_clients_are_told_what_their_code_must_answer(kind: str) -> None:
    """The query names all that later requests need, so that a device can refuse in time."""
    strategy = make_strategy(kind, make_plan(kind))
    by_loss = kind not in SINGLE and "oracle" not in kind
    embedded = kind in INITS and INITS[kind] != "random"
    images = kind in ("pina-discriminant", "pina-whitening")
    assert wire.read_needs(strategy.roster.query) == {
        "loss": by_loss,
        "embedding": embedded,
        "images": images,
    }


def test_no_client_is_asked_to_evaluate(kind: str) -> None:
    _, grid = run(make_strategy(kind, make_plan(kind)), Problem())
    types = {message.metadata.message_type for message in grid.asked}
    assert types == {"query.clients", "train"}


def test_dropouts_do_not_stop_a_round(kind: str) -> None:
    """A node that always fails is a drop-out: the others still learn."""
    problem = Problem()
    grid = InProcessGrid(
        problem.client_app,
        NODES,
        fail=lambda message: (
            message.metadata.message_type == "train"
            and min(wire.read_round(message.content)[1]) == 0
        ),
    )
    strategy = make_strategy(kind, make_plan(kind, private=False, rounds=6))
    models, _ = run(strategy, problem, grid)
    assert strategy.round == strategy.total_rounds
    assert np.isfinite(models).all()
    assert np.abs(models).max() > 0.1


def test_empty_cohorts_still_release_noise(kind: str) -> None:
    """Nobody sampled: the release happens, is recorded, and carries noise alone."""
    if kind == "pina-sketch":
        pytest.skip("the printed initialisation needs sketches; it has no release without clients")
    if kind == "ifca-ldp":
        pytest.skip("with local noise nobody's sum is zero; participation is not hidden")
    rescale = "count" if kind == "rr-cluster" else "none"
    strategy = make_strategy(
        kind,
        make_plan(kind, sampling=1e-9, rounds=2),
        Aggregation(2.0, rescale=rescale, skip="none"),
    )
    before = wire.flatten(start_models(strategy.clusters))
    models, grid = run(strategy, Problem())
    trained = [m for m in grid.asked if m.metadata.message_type == "train"]
    assert len(trained) == NODES * strategy.init_rounds
    assert len(strategy.ledger.releases) == strategy.total_rounds
    assert np.abs(models - before).max() > 0


def test_every_release_is_in_the_ledger_and_epsilon_is_the_planned_one(kind: str) -> None:
    plan = make_plan(kind, noise_multiplier=None, epsilon=3.0)
    strategy = make_strategy(kind, plan)
    run(strategy, Problem())
    assert len(strategy.ledger.releases) == strategy.total_rounds
    if kind == "pina-sketch":  # recorded, but no epsilon covers sketches: only training counts
        assert strategy.ledger.epsilon() < 3.0
        sketch, first = strategy.ledger.releases[:2]
        assert (sketch.phase, first.phase) == ("sketch", "train")
        # Eq. 5: S sqrt(4 / h), with h = 8 numbers in the array.
        assert sketch.sensitivity == pytest.approx(2.0 * np.sqrt(4 / 8))
        assert sketch.noise_std == pytest.approx(sketch.noise_multiplier * sketch.sensitivity)
        return
    assert plan.epsilon_outside is not None
    assert strategy.ledger.epsilon() == pytest.approx(plan.epsilon_outside, rel=1e-12)
    assert strategy.ledger.epsilon() <= 3.0


def test_stops_before_the_release_that_exceeds_the_budget(kind: str) -> None:
    """Given noise and a budget: the run ends early, and epsilon is still within the budget."""
    plan = make_plan(kind, rounds=50, noise_multiplier=2.0, epsilon=4.0)
    strategy = make_strategy(kind, plan)
    grid = InProcessGrid(Problem().client_app, NODES)
    arrays = wire.pack_models(start_models(strategy.clusters))
    with pytest.raises(BudgetExhaustedError, match="beyond the budget of 4"):
        strategy.start(grid, arrays, num_rounds=50)
    spent = len(strategy.ledger.releases)
    assert 0 < spent < 50
    assert strategy.ledger.epsilon() <= 4.0
    # Nobody was asked for the release that was refused.
    asked = {
        wire.read_round(m.content)[0].round
        for m in grid.asked
        if m.metadata.message_type == "train"
    }
    assert max(asked) <= spent


def test_resume_is_bit_identical(kind: str) -> None:
    """State after any round, loaded into a new strategy, goes on exactly the same."""
    problem = Problem()
    plan = make_plan(kind, sampling=0.6)
    aggregation = Aggregation(
        2.0, rescale="none" if kind in SINGLE else "count", server_momentum=0.5
    )
    whole = make_strategy(kind, plan, aggregation)
    states = {}

    def keep(_: int, arrays: ArrayRecord) -> None:
        if whole.round:
            states[whole.round] = {k: np.array(v) for k, v in whole.state().items()}

    grid = InProcessGrid(problem.client_app, NODES)
    whole.start(
        grid,
        wire.pack_models(start_models(whole.clusters)),
        num_rounds=whole.total_rounds,
        evaluate_fn=keep,
    )
    for stop in range(1, whole.total_rounds):
        resumed = make_strategy(kind, plan, aggregation)
        arrays = resumed.load_state(states[stop])
        assert resumed.remaining_rounds == whole.total_rounds - stop
        resumed.start(
            InProcessGrid(problem.client_app, NODES), arrays, num_rounds=resumed.remaining_rounds
        )
        np.testing.assert_array_equal(wire.flatten(resumed.models), wire.flatten(whole.models))


def test_names_in_a_checkpoint(kind: str) -> None:
    """Runs of an older version are resumed: what is renamed here is lost to them."""
    strategy = make_strategy(kind, make_plan(kind))
    run(strategy, Problem())
    found = {"prototypes", "prototype-counts"}
    frame = {f"frame-{name}" for name in ("class_means", "axes", "centre", "radius", "whitener")}
    coded = {f"coded-{name}" for name in ("start", "base", "differences", "variance")}
    own = {
        "pina-coded": found | coded,
        "oracle-coded": coded,
        "pina-discriminant": found | frame,
        "pina-whitening": found | frame,
        "pina-random": set(),
        "pina-sketch": {"sketched", "sketches"},
        "rr-cluster": {"counts"},
    }.get(kind, found if kind in INITS else set())
    models = {f"cluster-{c}/{name}" for c in range(strategy.clusters) for name in ("b", "head")}
    assert set(strategy.state()) == {"round", "participations"} | models | own


def test_unusable_clients_contribute_zeros_in_private_and_are_named_otherwise(kind: str) -> None:
    if kind == "pina-sketch":
        pytest.skip("the tiny client does not sketch NaN updates; the app's client is tested")
    private = make_strategy(kind, make_plan(kind))
    _, grid = run(private, Problem(broken={3: "nan"}))
    assert not any("unusable" in reply.content for reply in grid.replies)
    assert private.unusable == []
    public = make_strategy(kind, make_plan(kind, private=False))
    models, _ = run(public, Problem(broken={3: "nan"}))
    assert public.unusable == [3]
    assert np.isfinite(models).all()


def test_zero_noise_one_cluster_equals_flowers_fedavg() -> None:
    """sigma = 0, C = 1, q = 1, S large: the models of Flower's own FedAvg with equal weights."""
    problem = Problem()
    for kind in ("fedavg", "pina-random", "ifca", "fednova", "pina-coded"):
        plan = make_plan(kind, private=False, rounds=5)
        rescale = "none" if kind in SINGLE else "count"
        ours = make_strategy(kind, plan, Aggregation(50.0, rescale=rescale), clusters=1)
        models, _ = run(ours, problem)

        def flower_client(message: Message, context) -> Message:  # type: ignore[no-untyped-def]
            client = int(context.node_config["partition-id"])
            model = {name: array.numpy() for name, array in message.content["arrays"].items()}
            update = wire.unflatten(problem.update(client, model)[None], model)[0]
            trained = {name: model[name] + update[name] for name in model}
            content = RecordDict(
                {
                    "arrays": wire.pack_models([trained]),
                    "metrics": MetricRecord({"num-examples": 1}),
                }
            )
            content["arrays"] = ArrayRecord(
                {k.removeprefix("cluster-0/"): v for k, v in content["arrays"].items()}
            )
            return Message(content=content, reply_to=message)

        start = start_models(1)[0]
        theirs = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=2)
        result = theirs.start(
            InProcessGrid(flower_client, CLIENTS),
            ArrayRecord(dict(zip(start, wire.pack_models([start]).values(), strict=True))),
            num_rounds=5,
            train_config=ConfigRecord(),
        )
        expected = wire.flatten([{k: v.numpy() for k, v in result.arrays.items()}])
        np.testing.assert_allclose(models, expected, atol=1e-6)


def test_cohorts_follow_the_sampling_probability_and_the_cap() -> None:
    """Participations over 60 rounds: Binomial(60 K, q) within 5 standard deviations; cap kept."""
    counts = {}
    for cap in (None, 5):
        plan = make_plan("fedavg", sampling=0.3, rounds=60, max_participations=cap)
        ledger = Ledger(None, "fedavg", plan.delta, None, cap)
        strategy = make_strategy("fedavg", plan, ledger=ledger)
        _, grid = run(strategy, Problem())
        asked = [
            wire.read_round(message.content)[1]
            for message in grid.asked
            if message.metadata.message_type == "train"
        ]
        counts[cap] = np.bincount(list(itertools.chain(*asked)), minlength=CLIENTS)
    expected, deviation = 60 * CLIENTS * 0.3, np.sqrt(60 * CLIENTS * 0.3 * 0.7)
    assert abs(counts[None].sum() - expected) < 5 * deviation
    assert counts[5].max() == 5


def test_uncertain_releases_count_as_participations_of_everybody() -> None:
    """A release beyond the checkpoint may have been used, by whoever it was."""
    plan = make_plan("fedavg", rounds=5, max_participations=3)
    ledger = Ledger(None, "fedavg", plan.delta, None, 3)
    whole = make_strategy("fedavg", plan, ledger=ledger, seed=None)
    states = []
    whole.start(
        InProcessGrid(Problem().client_app, NODES),
        wire.pack_models(start_models(1)),
        num_rounds=2,
        evaluate_fn=lambda n, _: states.append(whole.state()) if n else None,
    )
    resumed = make_strategy("fedavg", plan, ledger=ledger, seed=None)  # holds both releases
    arrays = resumed.load_state({key: np.array(value) for key, value in states[0].items()})
    grid = InProcessGrid(Problem().client_app, NODES)
    resumed.start(grid, arrays, num_rounds=resumed.remaining_rounds)
    # Round 1 was committed, round 2 is uncertain: one participation is left.
    assert sum(m.metadata.message_type == "train" for m in grid.asked) == NODES


def test_released_noise_is_what_the_ledger_was_told() -> None:
    """Empty cohorts: what reaches the models is noise of the recorded standard deviation.

    400 rounds of 12 numbers: the variance of 4,800 samples lies within 10 % (5 sigma: 10.2 %).
    """
    plan = make_plan("fedavg", sampling=1e-9, rounds=400, noise_multiplier=1.5)
    strategy = make_strategy("fedavg", plan, Aggregation(2.0, rescale="none", skip="none"))
    seen = [wire.flatten(start_models(1))[0]]
    strategy.start(
        InProcessGrid(Problem().client_app, NODES),
        wire.pack_models(start_models(1)),
        num_rounds=400,
        evaluate_fn=lambda _, arrays: seen.append(wire.flatten(wire.unpack_models(arrays))[0]),
    )
    steps = np.diff(np.array(seen), axis=0)[1:] * plan.train.cohort
    recorded = strategy.ledger.releases[0].noise_std
    assert recorded == pytest.approx(1.5 * 2.0)
    assert np.var(steps) == pytest.approx(recorded**2, rel=0.11)
    assert steps.shape == (400, WIDTH)


def test_too_few_simulated_nodes_are_an_error_that_says_how_to_mend_it() -> None:
    problem = Problem()

    def stingy(message: Message, context) -> Message:  # type: ignore[no-untyped-def]
        if message.metadata.message_type.startswith("query"):
            return Message(content=wire.hosted_content([0, 1], 2), reply_to=message)
        return problem.client_app(message, context)

    strategy = make_strategy("fedavg", make_plan("fedavg"))
    with pytest.raises(RuntimeError, match=r"clients = 24.*host only 2.*num-supernodes"):
        run(strategy, problem, InProcessGrid(stingy, 2))


def test_error_text_of_a_node_is_not_repeated(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """An error's text may quote data: the server names the node and nothing else."""
    problem = Problem(broken={5: "raise"})

    def guarded(message: Message, context) -> Message:  # type: ignore[no-untyped-def]
        from flwr.app import Error

        try:
            return problem.client_app(message, context)
        except RuntimeError as error:
            return Message(Error(code=0, reason=str(error)), reply_to=message)

    with caplog.at_level("INFO", logger="flwr"):
        run(make_strategy(kind, make_plan(kind)), problem, InProcessGrid(guarded, NODES))
    assert "client data" not in caplog.text
