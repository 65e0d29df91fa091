"""Run directory and run record: atomic, truncated to the last committed round, locked."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from strategies import run_record
from strategies.checkpoint import RunDirectory, checkpoint_path, read_state, write_atomically


def line(method: str, number: int) -> dict[str, Any]:
    """A line with the two keys that truncation reads."""
    return {"method": method, "round": number, "accuracy": 0.1 + 0.2 * number}


def state_of(number: int) -> dict[str, NDArray[np.generic]]:
    """A state after a round."""
    rows: NDArray[np.generic] = np.random.default_rng(number).standard_normal((2, 3))
    return {"round": np.array(number), "cluster-0/weight": rows}


# --- the run record ---------------------------------------------------------------------


def test_lines_are_on_disk_when_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Synchronised with the whole line in the file."""
    path = tmp_path / "rounds.jsonl"
    seen: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(path.read_bytes()))
    run_record.append(path, line("a", 1))
    run_record.append(path, line("a", 2))
    assert [content.count(b"\n") for content in seen] == [1, 2]
    assert [json.loads(text) for text in seen[1].splitlines()] == [line("a", 1), line("a", 2)]


def test_every_cut_of_the_last_line_is_left_out(tmp_path: Path) -> None:
    """Cut after each of its bytes; the lines before it stay; further lines can be added."""
    path = tmp_path / "rounds.jsonl"
    for number in (1, 2):
        run_record.append(path, line("a", number))
    whole = path.read_bytes()
    run_record.append(path, {**line("a", 3), "note": "größer"})
    last = path.read_bytes()[len(whole) :]
    for kept in range(len(last)):
        path.write_bytes(whole + last[:kept])
        assert run_record.read(path) == [line("a", 1), line("a", 2)]
        run_record.drop_cut_line(path)
        assert path.read_bytes() == whole
    run_record.append(path, line("a", 3))
    assert [found["round"] for found in run_record.read(path)] == [1, 2, 3]


def test_truncation_touches_one_method(tmp_path: Path) -> None:
    """Rounds beyond the last committed one go; other methods, and the order, stay."""
    path = tmp_path / "rounds.jsonl"
    for number in (1, 2, 3):
        for method in ("pina", "fedavg"):
            run_record.append(path, line(method, number))
    with path.open("a") as file:
        file.write('{"method": "fedavg", "rou')
    run_record.truncate(path, "pina", 1)
    found = [(kept["method"], kept["round"]) for kept in run_record.read(path)]
    assert found == [("pina", 1), ("fedavg", 1), ("fedavg", 2), ("fedavg", 3)]
    assert path.read_bytes().endswith(b"}\n")


def test_absent_and_unchanged_files(tmp_path: Path) -> None:
    """Nothing is created, and nothing is rewritten without a reason."""
    path = tmp_path / "rounds.jsonl"
    assert run_record.read(path) == []
    run_record.truncate(path, "pina", 0)
    run_record.drop_cut_line(path)
    assert not path.exists()
    run_record.append(path, line("pina", 1))
    inode = path.stat().st_ino
    run_record.truncate(path, "pina", 1)
    run_record.drop_cut_line(path)
    assert path.stat().st_ino == inode


def test_a_rewritten_record_is_on_disk_before_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut could leave an empty ledger: spent privacy forgotten."""
    path = tmp_path / "ledger.jsonl"
    for number in (1, 2):
        run_record.append(path, line("pina", number))
    old = path.read_bytes()
    seen: list[tuple[bytes, bytes]] = []
    partial = tmp_path / "ledger.jsonl.partial"
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: seen.append((path.read_bytes(), partial.read_bytes()))
    )
    run_record.truncate(path, "pina", 1)
    assert seen == [(old, path.read_bytes())]
    assert path.read_bytes() == old.splitlines(keepends=True)[0]


# --- the checkpoint ---------------------------------------------------------------------


def test_replacement_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At fsync the old content is still there and the new one complete beside it."""
    path = tmp_path / "file"
    write_atomically(path, b"old")
    seen: list[tuple[bytes, list[bytes]]] = []

    def fsync(descriptor: int) -> None:
        others = [other.read_bytes() for other in tmp_path.iterdir() if other != path]
        seen.append((path.read_bytes(), others))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(path, b"new")
    # Then the directory, which holds the new name.
    assert seen == [(b"old", [b"new"]), (b"new", [])]
    assert [other.name for other in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"new"


def test_a_failed_write_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a partial file left behind, also for the next write."""
    directory = RunDirectory(tmp_path)
    directory.commit_round("pina", state_of(1), line("pina", 1))

    def full(descriptor: int) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="disk full"):
            write_atomically(checkpoint_path(tmp_path, "pina"), b"half")
    found = read_state(tmp_path, "pina")
    assert found is not None
    assert int(found["round"]) == 1
    directory.commit_round("pina", state_of(2), line("pina", 2))
    found = read_state(tmp_path, "pina")
    assert found is not None
    np.testing.assert_array_equal(found["cluster-0/weight"], state_of(2)["cluster-0/weight"])
    directory.close()


def test_states_of_methods_are_apart_and_exact(tmp_path: Path) -> None:
    """Keys, dtypes, shapes and bits come back; an unknown method has none."""
    directory = RunDirectory(tmp_path / "new" / "run")
    state = {**state_of(4), "sketched": np.array([True, False]), "count": np.array(3, np.int64)}
    directory.commit_round("pina", state, line("pina", 4))
    directory.commit_round("fedavg", state_of(1), line("fedavg", 1))
    found = directory.restore("pina", replay=True)
    assert found is not None
    assert set(found) == set(state)
    for key, values in state.items():
        assert found[key].dtype == values.dtype
        np.testing.assert_array_equal(found[key], values)
    assert directory.restore("ifca", replay=True) is None
    directory.close()


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("committed", [0, 2])
def test_restore_drops_what_lies_beyond_the_checkpoint(
    tmp_path: Path, replay: bool, committed: int
) -> None:
    """Killed after the ledger's and the record's line, before the checkpoint.

    In a seeded replay the unfinished round's release is drawn again exactly and leaves the
    ledger; otherwise it stays spent. A cut line goes in either case.
    """
    directory = RunDirectory(tmp_path)
    for number in range(1, committed + 1):
        run_record.append(directory.ledger_path, line("pina", number))
        directory.commit_round("pina", state_of(number), line("pina", number))
    run_record.append(directory.ledger_path, line("fedavg", 9))
    run_record.append(directory.ledger_path, line("pina", committed + 1))
    run_record.append(directory.rounds_path, line("pina", committed + 1))
    for path in (directory.ledger_path, directory.rounds_path):
        with path.open("a") as file:
            file.write('{"method": "pina", "ro')
    state = directory.restore("pina", replay=replay)
    assert (0 if state is None else int(state["round"])) == committed
    done = [("pina", number) for number in range(1, committed + 1)]
    rounds = [(kept["method"], kept["round"]) for kept in run_record.read(directory.rounds_path)]
    assert rounds == done
    ledger = [(kept["method"], kept["round"]) for kept in run_record.read(directory.ledger_path)]
    spent = [] if replay else [("pina", committed + 1)]
    assert ledger == [*done, ("fedavg", 9), *spent]
    assert directory.ledger_path.read_bytes().endswith(b"}\n")
    directory.close()


def test_the_record_is_written_before_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is the commit point: a round without a line can then not exist."""
    directory = RunDirectory(tmp_path)

    def replaced(path: Path, content: bytes) -> None:
        assert run_record.read(directory.rounds_path) == [line("pina", 1)]
        raise KeyboardInterrupt

    monkeypatch.setattr("strategies.checkpoint.write_atomically", replaced)
    with pytest.raises(KeyboardInterrupt):
        directory.commit_round("pina", state_of(1), line("pina", 1))
    assert read_state(tmp_path, "pina") is None
    directory.close()


# --- the lock ---------------------------------------------------------------------------

OPEN = "import sys, pathlib; from strategies.checkpoint import RunDirectory; "
OPEN += "d = RunDirectory(pathlib.Path(sys.argv[1])); "


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Another Python process."""
    return subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )


def test_the_lock_refuses_a_second_writer(tmp_path: Path) -> None:
    """In this process and in another; close() lets others in."""
    directory = RunDirectory(tmp_path)
    with pytest.raises(RuntimeError, match="in use"):
        RunDirectory(tmp_path)
    refused = run(OPEN, tmp_path)
    assert refused.returncode != 0
    assert "in use by another run" in refused.stderr
    directory.close()
    RunDirectory(tmp_path).close()


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    """However it dies, the directory can be opened again."""
    killed = run(OPEN + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert killed.returncode == -9
    RunDirectory(tmp_path).close()
