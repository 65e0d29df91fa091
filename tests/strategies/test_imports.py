"""What ``import strategies`` loads."""

import subprocess
import sys

FOREIGN = (
    "torch",
    "timm",
    "peft",
    "opacus",
    "matplotlib",
    "numba",
    "datasets",
    "pina_app",
    "wireless_cfl_app",
    "app_kit",
    "deploy",
    "apps",
)


def test_the_package_needs_neither_torch_nor_an_app() -> None:
    """In a fresh process, with every module of the mathematics."""
    code = f"""
import sys
import strategies, strategies.assignment, strategies.checkpoint, strategies.release
import strategies.clientapp
import strategies.clustering.public_statistics, strategies.clustering.sketch
import strategies.privacy.plan, strategies.privacy.calibration
print([name for name in {FOREIGN!r} if name in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
