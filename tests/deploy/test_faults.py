"""Faults on real processes: SuperLink, SuperNodes and ServerApp over TLS, with real kills.

The bundle is the PINA app with one file replaced (``light_node``): its model tells in how many
rounds each client was counted. Nothing here depends on how fast the machine is: a node that is
left out in a round for whatever reason is named in the log, and must then be missing in the model.
"""

import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import tomli_w
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from app_kit.run_config import Scalar
from deploy.federation import LocalFederation, wait_until
from strategies.privacy.ledger import read_releases
from tests.conftest import REPOSITORY

CLIENTS = 3
ROUND_TIMEOUT_S = 20.0
SETTINGS: dict[str, Scalar] = {
    "app": "pina",
    "methods": "fedavg",
    "clients": CLIENTS,
    "classes": 10,
    "weights": "none",
    "public-data": "none",
    "trainable": "head",
    "embedding-size": 8,
    "q": 1.0,
    "simulation": False,
    "seed": "none",
    "cache-dir": "none",
    "round-timeout-s": ROUND_TIMEOUT_S,
}
LEFT_OUT = re.compile(r"round (\d+): node (\d+) is left out: (.+?)\s*$", re.MULTILINE)


class Run:
    """One run directory on the federation, perhaps of several Flower runs."""

    def __init__(self, federation: LocalFederation, bundle: Path, path: Path, rounds: int) -> None:
        self.federation = federation
        self.bundle = bundle
        self.path = path
        self.settings = {**SETTINGS, "rounds": rounds, "run-dir": str(path)}
        self.run_ids: list[str] = []
        for name in federation.supernodes:
            for file in (federation.federation / name).glob("working-*"):
                file.unlink()

    def submit(self, *, resume: bool = False) -> str:
        """Submit it, or go on with it."""
        file = self.path.with_suffix(".toml")
        file.write_text(tomli_w.dumps({**self.settings, "resume": resume}), "utf-8")
        self.run_ids.append(self.federation.submit(self.bundle, file))
        return self.run_ids[-1]

    def finish(self) -> None:
        """Wait for the good end."""
        status = self.federation.wait(self.run_ids[-1])
        assert status == "finished:completed", self.log()[-3000:]

    def log(self) -> str:
        """What all its ServerApps wrote."""
        return "\n".join(self.federation.run_log(run_id) for run_id in self.run_ids)

    def committed(self) -> list[int]:
        """Rounds in the record, in its order."""
        file = self.path / "rounds.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)["round"] for line in lines]

    def wait_for_round(self, number: int) -> None:
        """Until a round is committed."""
        wait_until(lambda: number in self.committed(), f"round {number}", 180)

    def wait_for_work(self, name: str, number: int) -> None:
        """Until a SuperNode works on a round."""
        file = self.federation.federation / name / f"working-{number}"
        wait_until(file.exists, f"{name} in round {number}", 180)

    def counted(self) -> list[int]:
        """In how many rounds each client was counted, by the model."""
        with np.load(self.path / "checkpoint-fedavg.npz") as state:
            exact = state["cluster-0/head.bias"][:CLIENTS] * CLIENTS
        assert np.abs(exact - np.round(exact)).max() < 0.1
        return [int(n) for n in np.round(exact)]

    def left_out(self) -> dict[tuple[int, str], str]:
        """(round, SuperNode) -> why it was left out, by the log."""
        names = {str(node): name for name, node in self.federation.node_ids.items()}
        return {(int(r), names[n]): why for r, n, why in LEFT_OUT.findall(self.log())}

    def check_account(self) -> None:
        """No round lost or counted twice; the ledger has every release, once."""
        rounds = list(range(1, int(self.settings["rounds"]) + 1))
        assert self.committed() == rounds
        assert [r.round for r in read_releases(self.path / "ledger.jsonl", "fedavg")] == rounds
        counted = zip(self.federation.supernodes, self.counted(), strict=True)
        missing = [name for _, name in self.left_out()]
        for name, count in counted:
            if name in self.federation.running:  # others are not even asked
                assert count == len(rounds) - missing.count(name)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project whose clients are light."""
    path = tmp_path_factory.mktemp("bundle")
    for name in ("strategies", "app_kit", "pina_app", "wireless_cfl_app"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, path / name, ignore=ignored)
    for name in ("apps.py", "pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, path)
    shutil.copy(Path(__file__).with_name("light_node.py"), path / "pina_app/node.py")
    return path


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """A SuperLink and three SuperNodes; the compose file's fourth is not registered."""
    with LocalFederation(tmp_path_factory.mktemp("deployed"), nodes=CLIENTS) as started:
        started.wait_for_nodes()
        yield started


def hold(federation: LocalFederation, name: str, number: int | None) -> None:
    """Let a SuperNode wait from a round on, or (None) no longer."""
    file = federation.federation / name / "hold"
    file.unlink(missing_ok=True)
    if number is not None:
        file.write_text(str(number))


@pytest.fixture(scope="module")
def story(
    federation: LocalFederation, bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """Eight rounds on three SuperNodes.

    0 is killed in the second round and does not come back; 1 is silent in the third, then late;
    2 is restarted after the fourth.
    """
    run = Run(federation, bundle, tmp_path_factory.mktemp("story") / "run", rounds=8)
    hold(federation, "supernode-0", 2)
    hold(federation, "supernode-1", 3)
    run.submit()
    run.wait_for_work("supernode-0", 2)
    federation.end("supernode-0", kill=True)
    hold(federation, "supernode-0", None)
    run.wait_for_round(3)
    hold(federation, "supernode-1", None)
    run.wait_for_round(4)
    federation.end("supernode-2")
    federation.start("supernode-2")
    run.finish()
    return run


def test_a_supernode_killed_in_a_round_is_named_and_the_run_goes_on(story: Run) -> None:
    why = story.left_out()
    assert why[2, "supernode-0"] in ("it did not answer in time", "it is offline")
    assert story.counted()[0] == 1
    story.check_account()


def test_a_silent_node_is_named_and_the_round_goes_on(story: Run) -> None:
    assert story.left_out()[3, "supernode-1"] == "it did not answer in time"
    assert story.counted()[2] > 1
    story.check_account()


def test_a_late_answer_is_refused_and_never_counted(story: Run) -> None:
    """The SuperLink refuses it, for the round is over; the node is part of later rounds again."""
    assert "Message TTL has expired" in story.federation.log("superlink")
    assert (8, "supernode-1") not in story.left_out()
    story.check_account()


def test_a_restarted_supernode_gets_again_what_it_has_lost(story: Run) -> None:
    """It answers that it has lost the public arrays, and is counted again afterwards."""
    lost = [key for key, why in story.left_out().items() if "lost the public arrays" in why]
    ((number, name),) = lost
    assert name == "supernode-2"
    assert 4 < number < 8
    assert (8, "supernode-2") not in story.left_out()
    story.check_account()


def test_an_unknown_node_is_refused(federation: LocalFederation) -> None:
    """It trusts the right authority, but nobody registered its key."""
    key = load_ssh_public_key((federation.federation / "supernode-3/key.pub").read_bytes())
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    federation.start("supernode-3")
    process = federation.running["supernode-3"]
    wait_until(lambda: process.poll() is not None, "the end of the unknown SuperNode")
    federation.end("supernode-3")
    assert process.returncode != 0
    assert "Failed to activate SuperNode" in federation.log("supernode-3")
    (line,) = [li for li in federation.log("superlink").splitlines() if repr(pem) in li]
    assert "No SuperNode found with the given public key" in line
    assert "supernode-3" not in federation.node_ids
    assert federation.online() <= set(federation.node_ids.values())


def ended(process: psutil.Process) -> bool:
    """Whether a process is gone, or dead and not yet taken notice of by its parent."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_serverapp_and_superlink_are_killed_and_the_run_resumed(
    federation: LocalFederation, bundle: Path, tmp_path: Path
) -> None:
    """ServerApp killed in round 2, SuperLink in round 3; no SuperNode is touched."""
    if "supernode-0" not in federation.running:
        federation.restart("supernode-0")
    run = Run(federation, bundle, tmp_path / "run", rounds=4)
    hold(federation, "supernode-2", 2)
    first = run.submit()
    run.wait_for_work("supernode-2", 2)
    (server,) = federation.children("superlink", "flwr-serverapp")
    server.send_signal(signal.SIGKILL)
    wait_until(lambda: ended(server), "the end of the ServerApp")
    hold(federation, "supernode-2", 3)
    assert run.committed() == [1]

    second = run.submit(resume=True)
    run.wait_for_work("supernode-2", 3)
    federation.end("superlink", kill=True)
    hold(federation, "supernode-2", None)
    federation.start_superlink()
    federation.wait_for_nodes()  # registered as before, connected again by themselves
    assert run.committed() == [1, 2]

    run.submit(resume=True)
    run.finish()
    assert "fedavg resumes after round 2" in run.log()
    run.check_account()
    assert federation.wait(first) == federation.wait(second) == "finished:failed"
