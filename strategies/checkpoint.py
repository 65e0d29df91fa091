"""A run directory: state after every round, written so that a kill at any moment loses nothing.

A checkpoint replaces the previous one atomically and is the commit point of a round. What the
run record and the ledger hold beyond it belongs to a round that did not finish.
"""

import io
import os
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from numpy.typing import NDArray

from strategies import run_record

State = dict[str, NDArray[np.generic]]


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file so that readers see the old or the new content, also after a power cut."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the new name itself
    finally:
        os.close(directory)


def checkpoint_path(run_dir: Path, method: str) -> Path:
    """File of a method's last committed round."""
    return run_dir / f"checkpoint-{method}.npz"


def read_state(run_dir: Path, method: str) -> State | None:
    """State of a method's last committed round, or None."""
    path = checkpoint_path(run_dir, method)
    if not path.exists():
        return None
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


class RunDirectory:
    """The directory of one run, locked against a second writer while it is open.

    Parameters
    ----------
    path : Path
        Created if absent.

    Raises
    ------
    RuntimeError
        If another process has the directory open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        # The operating system drops this lock when its process dies, however it dies.
        self._lock = filelock.FileLock(path / "lock")
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise RuntimeError(
                f"{path} is in use by another run; wait for it or stop it first"
            ) from None

    def close(self) -> None:
        """Let others use the directory."""
        self._lock.release()

    @property
    def ledger_path(self) -> Path:
        """JSON lines of all releases."""
        return self.path / "ledger.jsonl"

    @property
    def rounds_path(self) -> Path:
        """The run record: JSON lines, one a round."""
        return self.path / "rounds.jsonl"

    def commit_round(self, method: str, state: State, line: dict[str, Any]) -> None:
        """Add the round's line to the run record, then write the checkpoint."""
        run_record.append(self.rounds_path, line)
        buffer = io.BytesIO()
        np.savez(buffer, **state)  # type: ignore[arg-type]
        write_atomically(checkpoint_path(self.path, method), buffer.getvalue())

    def restore(self, method: str, *, replay: bool) -> State | None:
        """Last committed state of a method, or None; drops what lies beyond it.

        Parameters
        ----------
        method : str
        replay : bool
            True in a seeded simulation, where the unfinished round will be drawn again exactly:
            its release is one and the same and leaves the ledger. Otherwise it stays there as
            spent, for it may have been used.
        """
        state = read_state(self.path, method)
        completed = int(state["round"]) if state is not None else 0
        run_record.truncate(self.rounds_path, method, completed)
        if replay:
            run_record.truncate(self.ledger_path, method, completed)
        else:
            run_record.drop_cut_line(self.ledger_path)
        return state
