"""The Flower App Bundle: what travels to every SuperNode."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

ROOT = Path(__file__).resolve().parent.parent
FOREIGN = ("tests", "benchmarks", "examples", "experiments", "docs", "runs", ".venv")


@pytest.fixture(scope="module")
def bundle() -> bytes:
    """The bundle as `flwr run` builds it."""
    return build_fab_from_disk(ROOT)


def test_contents_and_size(bundle: bytes) -> None:
    assert len(bundle) < 1_000_000
    names = set(zipfile.ZipFile(io.BytesIO(bundle)).namelist())
    for package in ("strategies", "app_kit", "pina_app", "wireless_cfl_app"):
        for file in (ROOT / package).rglob("*.py"):
            assert file.relative_to(ROOT).as_posix() in names
    for file in ROOT.glob("*_app/presets/*.toml"):
        assert file.relative_to(ROOT).as_posix() in names
    assert {"apps.py", "pyproject.toml"} <= names
    foreign = [name for name in names if name.startswith(FOREIGN)]
    assert foreign == []


def test_imports_from_the_bundle_alone(bundle: bytes, tmp_path: Path) -> None:
    """Unpacked in an empty place, both components import, and from there."""
    zipfile.ZipFile(io.BytesIO(bundle)).extractall(tmp_path / "app")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import apps, strategies, pina_app.server_app, wireless_cfl_app.server_app\n"
        "from flwr.serverapp import ServerApp; from flwr.clientapp import ClientApp\n"
        "assert isinstance(apps.server_app, ServerApp) and isinstance(apps.client_app, ClientApp)\n"
        "for module in (apps, strategies, pina_app.server_app, wireless_cfl_app.server_app):\n"
        "    assert module.__file__.startswith(sys.argv[1]), module.__file__\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "app")], cwd=tmp_path, check=True)


def test_an_app_refuses_strategies_from_elsewhere(bundle: bytes, tmp_path: Path) -> None:
    """A SuperLink started in a checkout must not mix two versions in silence."""
    zipfile.ZipFile(io.BytesIO(bundle)).extractall(tmp_path / "app")
    code = "import sys; import strategies; sys.path.insert(0, sys.argv[1]); import apps"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "app")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "was imported from" in done.stderr
    assert "stop it" in done.stderr
