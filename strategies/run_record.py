"""The run record: one JSON object a line and round, readable while the run goes on."""

import json
import os
from pathlib import Path
from typing import Any


def append(path: Path, line: dict[str, Any]) -> None:
    """Write one line and wait until it is on disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """All complete lines; a last line that was cut off by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines if line]


def truncate(path: Path, method: str, last_round: int) -> None:
    """Drop a method's lines after ``last_round``, and a cut-off last line."""
    _rewrite(
        path,
        [line for line in read(path) if line["method"] != method or line["round"] <= last_round],
    )


def drop_cut_line(path: Path) -> None:
    """Drop a last line that was cut off."""
    _rewrite(path, read(path))


def _rewrite(path: Path, lines: list[dict[str, Any]]) -> None:
    if not path.exists():
        return
    content = "".join(json.dumps(line) + "\n" for line in lines)
    if content != path.read_text(encoding="utf-8"):
        partial = path.with_name(path.name + ".partial")
        with partial.open("w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
