"""Loops that numpy would spend its time calling: compiled by Numba, once on a machine."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from numba import njit

P = ParamSpec("P")
R = TypeVar("R")


def compiled(**options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator; machine code is kept on disk where that is possible.

    Parameters
    ----------
    **options
        Of ``numba.njit``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        try:
            found = njit(cache=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache can be written
            found = njit(**options)(function)
        return cast("Callable[P, R]", found)

    return decorate
