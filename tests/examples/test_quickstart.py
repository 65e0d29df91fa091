"""The README of the example is true: its diffs are short, apply, and run."""

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from app_kit.in_process_grid import InProcessGrid

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "quickstart_pytorch"
PACKAGE = "quickstart_pytorch"
NAMES = ("IFCA", "PINA", "FedNova", "HierarchicalFedAvg")
SETTINGS = {"fraction-train": 1.0, "local-epochs": 3, "learning-rate": 0.1, "batch-size": 32}


def diff_of(name: str) -> str:
    """The diff in the README's section about a strategy."""
    text = (EXAMPLE / "README.md").read_text()
    found = re.search(rf"^## {name}$.*?```diff\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert found, name
    return found.group(1)


def apply(diff: str, root: Path) -> None:
    """Apply a diff whose hunks have at most one line of context, in front."""
    file, old, new = root, "", ""
    for line in [*diff.splitlines(), "---"]:
        starts = line[0] == " " or line.startswith("---") or (line[0] == "-" and bool(new))
        if starts and (old or new):
            text = file.read_text()
            assert text.count(old) == 1, old
            file.write_text(text.replace(old, new))
            old = new = ""
        if line.startswith("---"):
            file = root / line.removeprefix("---").strip()
        else:
            old += f"{line[1:]}\n" if line[0] in " -" else ""
            new += f"{line[1:]}\n" if line[0] in " +" else ""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the example that can be imported, and is forgotten afterwards."""
    shutil.copytree(EXAMPLE / PACKAGE, tmp_path / PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


def accuracies(rounds: int) -> dict[str, float]:
    """Run the server app on ten nodes; the last evaluation."""
    client = importlib.import_module(f"{PACKAGE}.client_app").app
    server = importlib.import_module(f"{PACKAGE}.server_app")
    seen: list[dict[str, Any]] = []
    plain = server.global_evaluate

    def evaluate(server_round: int, arrays: Any) -> Any:
        if server_round < rounds:
            return None
        seen.append(dict(plain(server_round, arrays)))
        return None

    server.global_evaluate = evaluate
    torch.manual_seed(0)
    run_config = {**SETTINGS, "num-server-rounds": rounds}
    context = Context(1, 0, {}, RecordDict(), dict(run_config))
    server.app(InProcessGrid(client, 10, run_config), context)
    return {f"{i}/{name}": float(v) for i, found in enumerate(seen) for name, v in found.items()}


@pytest.mark.parametrize("name", NAMES)
def test_five_lines_at_most_and_they_run(name: str, project: Path) -> None:
    diff = diff_of(name)
    lines = [line for line in diff.splitlines() if not line.startswith("---")]
    assert sum(line.startswith("+") for line in lines) <= 5
    assert sum(line.startswith("-") for line in lines) <= 5
    apply(diff, project)
    found = accuracies(7)
    assert len(found) == (4 if name in ("IFCA", "PINA") else 2)
    assert all(0 <= value <= 1 for value in found.values())
    saved = torch.load(project / "final_model.pt")
    assert all(torch.isfinite(values).all() for values in saved.values())
    assert len(saved) == 6 * (len(found) // 2)


def test_ifca_finds_who_holds_images_upside_down(project: Path) -> None:
    """Each orientation is read well by a model of its own, and badly by the other's."""
    apply(diff_of("IFCA"), project)
    server = project / PACKAGE / "server_app.py"  # a seed, so that the result is always the same
    server.write_text(server.read_text().replace("epsilon=None", "epsilon=None, seed=0"))
    found = accuracies(20)
    table = np.array([[found[f"{c}/{n}"] for n in ("upright", "upside-down")] for c in (0, 1)])
    assert sorted(table.argmax(axis=0)) == [0, 1]
    assert table.max(axis=0).min() > 0.8
    assert table.min(axis=0).max() < 0.6


def test_the_example_alone_is_plain_flower() -> None:
    """Nothing of this project in it; its own bundle holds its own package only."""
    import io
    import zipfile

    from flwr.cli.build import build_fab_from_disk

    for path in (EXAMPLE / PACKAGE).glob("*.py"):
        assert not re.search(r"^(from|import) (strategies|app_kit)", path.read_text(), re.MULTILINE)
    names = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(EXAMPLE))).namelist()
    assert {f"{PACKAGE}/{n}.py" for n in ("task", "client_app", "server_app")} <= set(names)
    assert {n.split("/")[0] for n in names} <= {PACKAGE, "pyproject.toml", ".info", "README.md"}
