"""Both apps as devices run them, in one process: own files, no data set on the server, no seed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict

import apps
from app_kit.in_process_grid import InProcessGrid
from app_kit.run_config import Scalar
from pina_app.config import PinaConfig
from strategies import wire
from wireless_cfl_app.config import WirelessConfig

DEVICES = 3
COMMON: dict[str, Scalar] = {
    "simulation": False,
    "seed": "none",
    "classes": 3,
    "dataset": "/no/such/file.npz",
}
PINA: dict[str, Scalar] = {
    **COMMON,
    "app": "pina",
    "clients": DEVICES,
    "model": "vit_tiny_patch16_224",
    "image-size": 32,
    "weights": "none",
    "public-data": "none",
    "trainable": "head",
    "embedding-size": 8,
    "rounds": 2,
    "init-rounds": 3,
    "q": 1.0,
    "epochs": 1,
}


def wireless(folder: Path) -> dict[str, Scalar]:
    """Settings with a file of positions."""
    rows = ["id,x_m,y_m", *(f"d{k},{10 * k},0" for k in range(DEVICES))]
    (folder / "positions.csv").write_text("\n".join(rows) + "\n")
    return {
        **COMMON,
        "app": "wireless",
        "devices": DEVICES,
        "image-shape": "8x8x3",
        "positions": str(folder / "positions.csv"),
        "iterations": 4,
        "plan-sweeps": 2,
    }


def run(folder: Path, values: Mapping[str, Scalar], wrap: Any = None) -> InProcessGrid:
    """Run an app on devices; device k has 12 colour images and the labels 0, 1, 2."""
    kind = PinaConfig if values["app"] == "pina" else WirelessConfig
    settings = {**kind().to_run_config(), "cache-dir": "none", **values}
    settings["run-dir"] = str(folder / "run")
    if values["app"] == "wireless":
        del settings["cache-dir"]
    grid = InProcessGrid(wrap or apps.client_app, DEVICES, settings)
    rng = np.random.default_rng(0)
    for device, context in enumerate(grid.contexts.values()):
        path = folder / f"{device}.npz"
        images = rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
        np.savez(path, x=images, y=np.arange(12) % 3)
        context.node_config = {"client-id": device, "data": str(path)}
    state = RecordDict()
    context = Context(run_id=7, node_id=0, node_config={}, state=state, run_config=settings)
    apps.server_app(grid, context)
    return grid


def lines(folder: Path) -> list[dict[str, Any]]:
    """The run record."""
    return [json.loads(line) for line in (folder / "run/rounds.jsonl").read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    """The one entry of the summary."""
    (entry,) = json.loads((folder / "run/summary.json").read_text())
    return dict(entry)


def test_pina_needs_no_data_set_on_the_server_and_says_whom_to_trust(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, PINA)
    entry = summary(tmp_path)
    assert entry["rounds"] == 5
    assert entry["seeded"] is False
    assert entry["accuracy_mean"] is None  # no client sends a metric, and the server has no data
    said = [note for note in entry["notes"] if "trusted" in note]
    assert any("adds the clients' updates itself" in note for note in said)
    assert any("may submit runs" in note for note in said)
    page = (tmp_path / "run/report.html").read_text("utf-8")
    first_round = next(i for i, r in enumerate(caplog.messages) if "1/5" in r)
    for note in said:
        assert note.split(";")[0].replace("'", "&#x27;") in page
        assert any(note in message for message in caplog.messages[:first_round])


def test_two_runs_of_the_same_devices_draw_different_noise(tmp_path: Path) -> None:
    """All randomness is the operating system's."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run(tmp_path / name, PINA)
    first, second = (
        (tmp_path / name / "run/pina/cluster-0.safetensors").read_bytes() for name in "ab"
    )
    assert first != second


def test_wireless_devices_with_their_own_images(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, wireless(tmp_path))
    entry = summary(tmp_path)
    assert [line["failed"] for line in lines(tmp_path)] == [[]] * 5
    assert entry["accuracy_mean"] is None
    assert "no privacy at all" in entry["notes"][0]
    assert any("no privacy at all" in message for message in caplog.messages)


def test_a_node_that_lost_its_state_is_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so instead of contributing zeros for ever; the other nodes are not disturbed."""
    lost: list[int] = []

    def forgetful(message: Message, context: Context) -> Message:
        training = message.metadata.message_type == "train"
        first = training and wire.read_round(message.content)[0].phase == "train" and not lost
        if first and context.node_config["client-id"] == 1:
            context.state = RecordDict()
            lost.append(context.node_id)
        return apps.client_app(message, context)

    grid = run(tmp_path, PINA, forgetful)
    replies = [wire.has_lost_state(reply) for reply in grid.replies]
    assert sum(replies) == 1
    (message,) = [m for m in caplog.messages if "public arrays" in m]
    assert message.startswith(f"round 4: node {lost[0]} is left out: it was restarted")
    queries = [m for m in grid.asked if m.metadata.message_type != "train"]
    assert len(queries) == DEVICES + 1
    assert queries[-1].metadata.dst_node_id == lost[0]
    later = [m.metadata.dst_node_id for m in grid.asked[-DEVICES:]]
    assert lost[0] in later  # part of the last round again


@pytest.mark.parametrize("app", ["pina", "wireless"])
def test_a_node_without_client_id_is_named_not_fatal(app: str, tmp_path: Path) -> None:
    """The others go on."""
    values = PINA if app == "pina" else wireless(tmp_path)
    errors: list[str] = []

    def nameless(message: Message, context: Context) -> Message:
        if context.node_config.get("client-id") == 2:
            context.node_config = {"data": context.node_config["data"]}
        try:
            return apps.client_app(message, context)
        except ValueError as error:
            errors.append(str(error))
            return Message(Error(code=2, reason=str(error)), reply_to=message)

    run(tmp_path, values, nameless)
    assert errors[0].startswith("client-id = None: must be a number")
    assert len(lines(tmp_path)) == 5
