"""The report as a browser shows it: rendered, no console message, the record's numbers.

Needs Debian's ``chromium``; skipped where there is none.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from strategies import run_record
from tests.test_report import TRAFFIC, Page, two_methods, write_report
from tests.wireless_cfl_app.runs import run_app, summary

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-default-apps", "--disable-extensions", "--virtual-time-budget=2000"),
)


def shown(page: Path, profile: Path, *options: str) -> tuple[str, list[str]]:
    """The page's elements after rendering, and what its console said."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", *options, f"file://{page}"],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def text_of(document: str) -> str:
    return re.sub(r"<[^>]+>", " ", document)


def test_a_private_run(tmp_path: Path) -> None:
    """Both methods' numbers stand in the rendered table; nothing is loaded or run."""
    run_dir = two_methods(tmp_path / "run")
    write_report(run_dir)
    document, console = shown(run_dir / "report.html", tmp_path / "profile", "--dump-dom")
    assert console == []
    (results,) = (t for name, t in Page(document).tables.items() if name.startswith("Results"))
    assert [row[0] for row in results[1:]] == ["pina", "fedavg"]
    assert results[1][1] == "61.2"
    assert dict(zip(results[0], results[1], strict=True))[TRAFFIC] == "28.3 / 1,357.6"
    assert "<script" not in document


def test_a_wireless_run_with_its_map(tmp_path: Path) -> None:
    """Energy and accuracy equal the record's; every device is a row under the map."""
    run_app(tmp_path / "run")
    entry = summary(tmp_path / "run")
    document, console = shown(tmp_path / "run/report.html", tmp_path / "profile", "--dump-dom")
    assert console == []
    tables = Page(document).tables
    (results,) = (t for name, t in tables.items() if name.startswith("Results"))
    row = dict(zip(results[0], results[1], strict=True))
    assert row["energy J"] == f"{entry['energy_j']:.3g}"
    assert row["accuracy mean %"] == f"{100 * entry['accuracy_mean']:.1f}"
    down, up = (entry[f"bytes_{way}_per_node"] / 1000 for way in ("down", "up"))
    assert down > 1
    assert row[TRAFFIC] == f"{down:.1f} / {up:.1f}"
    (devices,) = (t for name, t in tables.items() if name.startswith("Map of"))
    assert len(devices) == 1 + 12
    spent = sum(
        line["uplink_j"] + line["relay_j"]
        for line in run_record.read(tmp_path / "run/rounds.jsonl")
        if line["phase"] == "train"
    )
    assert f"{spent:.3g}" in text_of(document)


@pytest.mark.parametrize("width", [360, 1200])
def test_it_is_painted_on_a_phone_and_on_a_desk(width: int, tmp_path: Path) -> None:
    """A picture comes out, and it is not one colour."""
    from PIL import Image

    run_dir = two_methods(tmp_path / "run")
    write_report(run_dir)
    picture = tmp_path / "page.png"
    shown(
        run_dir / "report.html",
        tmp_path / "profile",
        f"--screenshot={picture}",
        f"--window-size={width},900",
    )
    with Image.open(picture) as image:
        colours = image.convert("RGB").getcolors(1 << 20)
    assert colours is not None
    assert len(colours) > 20
