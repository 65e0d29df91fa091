"""The compiled loop of ``bounds``: the cheapest cluster of every head at given prices."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.wireless.compiled import compiled

Array = NDArray[Any]


@compiled()
def cheapest(costs: Array, owner: Array, constant: Array) -> tuple[Array, Array, Array]:
    """Over all sizes, the cheapest cluster of each head.

    Parameters
    ----------
    costs : (N, J, U) or (N, 1, U) array
        Cost of each device in a cluster of head n with j + 1 devices; with one row for all sizes.
    owner : (N,) integer array
        The device that is the head, a member in any case; -1: none.
    constant : (N, J) array
        Cost of the cluster itself; infinite where the size is not allowed.

    Returns
    -------
    value : (N,) array
        Infinite if no size is allowed.
    size : (N,) integer array
        Number of devices.
    members : (N, J) integer array
        The first ``size`` are the devices, the head first.
    """
    heads, most = constant.shape
    value, size = np.full(heads, np.inf), np.zeros(heads, dtype=np.int64)
    members = np.zeros((heads, most), dtype=np.int64)
    low, who = np.empty(most), np.empty(most, dtype=np.int64)
    for n in range(heads):
        head = owner[n]
        own = 1 if head >= 0 else 0
        for j in range(most):
            row = costs[n, j if costs.shape[1] > 1 else 0]
            if costs.shape[1] > 1 or j == 0:
                wanted = j + 1 - own if costs.shape[1] > 1 else most - own
                _smallest(row, head, wanted, low, who)
            total = constant[n, j]
            if own:
                total += row[head]
            for i in range(j + 1 - own):
                total += low[i]
            if total < value[n]:
                value[n], size[n] = total, j + 1
                if own:
                    members[n, 0] = head
                for i in range(j + 1 - own):
                    members[n, own + i] = who[i]
    return value, size, members


@compiled()
def _smallest(row: Array, head: int, wanted: int, low: Array, who: Array) -> None:
    """The ``wanted`` smallest of a row but for the head, in order, and where they are."""
    count = 0
    for u in range(len(row)):
        cost = row[u]
        if u == head or wanted == 0 or (count == wanted and cost >= low[count - 1]):
            continue
        place = min(count, wanted - 1)
        while place > 0 and low[place - 1] > cost:
            low[place], who[place] = low[place - 1], who[place - 1]
            place -= 1
        low[place], who[place] = cost, u
        count = min(count + 1, wanted)


@compiled()
def move_tangents(
    tangents: Array, rows: Array, size: Array, members: Array, smoothing: float
) -> None:
    """Move the tangent of every found cluster towards the mean of its rows, in place.

    Parameters
    ----------
    tangents : (N, J, p) array
    rows : (U, p) array
    size, members
        From ``cheapest``.
    smoothing : float
        Share of the way.
    """
    for n in range(len(size)):
        if size[n] > 0:
            mean = np.zeros(rows.shape[1])
            for i in range(size[n]):
                mean += rows[members[n, i]]
            tangent = tangents[n, size[n] - 1]
            tangent += smoothing * (mean / size[n] - tangent)
