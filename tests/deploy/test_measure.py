"""The control group of the measurement, on a copy of its files."""

from pathlib import Path

import pytest

from deploy import measure
from deploy.__main__ import main


@pytest.mark.parametrize(
    ("folder", "limit", "peak"),
    [
        ("memory/device", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
        ("device", "memory.max", "memory.peak"),
    ],
)
def test_both_versions_of_control_groups(
    folder: str, limit: str, peak: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "CGROUPS", tmp_path)
    (tmp_path / folder).parent.mkdir(exist_ok=True)
    group = measure.MemoryGroup("device", 512)
    assert (tmp_path / folder / limit).read_text() == str(512 * 1024 * 1024)
    group.take(4711)
    assert (tmp_path / folder / "cgroup.procs").read_text() == "4711"
    (tmp_path / folder / peak).write_text(str(100 << 20))
    assert group.peak_mb() == 100


def test_without_the_right_to_limit_memory_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fedclusters-device").write_text("a file in the way")
    monkeypatch.setattr(measure, "CGROUPS", tmp_path)
    assert main(["measure", "pina"]) == 2
    assert "run this as root" in capsys.readouterr().err
