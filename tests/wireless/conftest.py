"""Fixtures: drawn instances, and the shared yardstick instances where they are present."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.wireless.oracles import Draw, draw_problem


@pytest.fixture(scope="session")
def instances() -> Path:
    """The folder of yardstick instances: ../shared beside the repository, or FEDCLUSTERS_SHARED."""
    default = Path(__file__).resolve().parents[3] / "shared"
    folder = Path(os.environ.get("FEDCLUSTERS_SHARED", default)) / "instances"
    if not (folder / "index.csv").exists():
        pytest.skip(f"no yardstick instances at {folder} (set FEDCLUSTERS_SHARED)")
    return folder


@pytest.fixture(scope="session")
def draw() -> Draw:
    return draw_problem
