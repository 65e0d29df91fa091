"""Lines for a person who follows a run."""

from logging import INFO

from flwr.common import log

MARK = "[fedclusters]"
"""Starts every such line; ``python -m APP run`` shows these lines and warnings only."""


def say(message: str, *values: object) -> None:
    """Tell the progress of a run."""
    log(INFO, f"{MARK} {message}", *values)


def clock(seconds: float) -> str:
    """Minutes and seconds, as ``1:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
