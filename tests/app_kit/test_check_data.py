"""``check-data``: what a device can use, and one clear error for what it cannot."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pina_app.__main__ import main as pina
from wireless_cfl_app.__main__ import main as wireless

GOOD: dict[str, Any] = {
    "x": np.zeros((6, 8, 9), dtype=np.uint8),
    "y": np.array([0, 1, 2, 3, 3, 3]),
}


@pytest.mark.parametrize("main", [pina, wireless])
def test_a_usable_file_is_described(
    main: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, **GOOD)
    assert main(["check-data", str(path), "--classes", "4"]) == 0
    assert capsys.readouterr().out == (
        f"{path}: usable; 6 grey images of 8 x 9 pixels, 4 different labels in 0 to 3\n"
    )


@pytest.mark.parametrize("main", [pina, wireless])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, "needs an array x"),
        ({"y": None}, "needs labels y"),
        ({"x": np.zeros((6, 8, 9))}, "dtype float64; must be (n, H, W) or (n, H, W, 3), uint8"),
        ({"y": np.zeros(5, dtype=int)}, "one integer label for each image"),
        ({"y": np.array([0, 1, 2, 3, 4, 0])}, "y has the label 4; labels must be in 0 to 3"),
        ({"y": np.array([0, 1, 2, 3, -1, 0])}, "y has the label -1; labels must be in 0 to 3"),
    ],
)
def test_one_clear_error(
    main: Any,
    change: dict[str, Any],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, **{k: v for k, v in {**GOOD, **change}.items() if v is not None})
    assert main(["check-data", str(path), "--classes", "4"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: data = '{path}': ")
    assert message in error
    assert error.count("\n") == 1


def test_what_only_the_wireless_network_minds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, **GOOD)
    assert wireless(["check-data", str(path), "--image-shape", "8x9x1"]) == 0
    assert wireless(["check-data", str(path), "--image-shape", "28x28x1"]) == 2
    assert "images of shape 8x9x1; image-shape is 28x28x1" in capsys.readouterr().err
    np.savez(path, x=GOOD["x"][:, :7], y=GOOD["y"])
    assert wireless(["check-data", str(path)]) == 2
    assert "the network needs 8 x 8 or more" in capsys.readouterr().err
