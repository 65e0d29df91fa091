"""The compiled loops of ``heat_bath``: one device of one member after another.

With s_k the sum of the unit gradients of cluster k, n_k its size and w(n) the weight of |s|^2 in
Eq. 16, the look-up

    cost[k, u] = 2 w(n_k) s_k . g_u + beta' d(u, h_k)

gives the exact change of the objective by every step of a device u of cluster a:

    swap with v in c:  cost[a, v] - cost[c, v] + cost[c, u] - cost[a, u]
                       + (w(n_a) + w(n_c)) |g_u - g_v|^2
    move to k:         w(n_k + 1) |s_k + g_u|^2 - w(n_k) |s_k|^2 + beta' d(u, h_k)
                       + w(n_a - 1) |s_a - g_u|^2 - w(n_a) |s_a|^2 - beta' d(u, h_a)

A step that is made changes the rows of two clusters. Numba compiles at the first call, for the
precision of the arrays, and keeps the result on disk. It looks for changes in the file of a
function, not in what that calls elsewhere: all loops that call each other are in this one.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strategies.wireless.compiled import compiled

FORBIDDEN = 1e9
Array = NDArray[Any]


class State(NamedTuple):
    """A member with at most K clusters and n devices: what the loops read and change.

    Or B of them, with a leading axis; then the first five may have one entry that all share.
    """

    gram: Array  # (n, n) inner products of unit gradients
    norms: Array  # (n,) their squared lengths
    distance: Array  # (n, n) weighted distances
    to_server: Array  # (n,) weighted distances to the server
    able: Array  # (n,) devices served as a head
    table: Array  # (n + 2,) weight of |s|^2 by cluster size
    padding: Array  # (n,) no device
    labels: Array  # (n,) cluster of each device
    heads: Array  # (K,) device that leads each cluster, -1: no cluster
    counts: Array  # (K,) devices
    capacity: Array  # (K,) of the head
    squares: Array  # (K,) |s_k|^2
    products: Array  # (K, n) s_k . g_u
    weight: Array  # (K,) w(n_k)
    cost: Array  # (K, n)
    own_cost: Array  # (n,) cost in the own cluster; -FORBIDDEN for heads and padding
    own_weight: Array  # (n,) weight of the own cluster
    locked: Array  # (n,) heads and padding


@compiled()
def member(s: State, b: int) -> State:
    """A view of one member."""
    g = b if len(s.gram) > 1 else 0
    return State(
        s.gram[g], s.norms[g], s.distance[g], s.to_server[g], s.able[g],
        s.table[b], s.padding[b], s.labels[b], s.heads[b], s.counts[b], s.capacity[b],
        s.squares[b], s.products[b], s.weight[b], s.cost[b], s.own_cost[b], s.own_weight[b],
        s.locked[b],
    )  # fmt: skip


@compiled()
def rebuild(s: State) -> None:
    """All sums and look-ups from labels and heads."""
    for b in range(len(s.labels)):
        m = member(s, b)
        m.counts[:] = 0
        m.products[:] = 0
        m.squares[:] = 0
        for u in range(len(m.labels)):
            if not m.padding[u]:
                m.counts[m.labels[u]] += 1
                m.products[m.labels[u]] += m.gram[u]
        for u in range(len(m.labels)):
            if not m.padding[u]:
                m.squares[m.labels[u]] += m.products[m.labels[u], u]
        _refresh(m)


@compiled()
def _refresh(m: State) -> None:
    """Everything that depends on the heads."""
    m.locked[:] = m.padding
    for k in range(len(m.heads)):
        head = m.heads[k]
        m.weight[k] = m.table[m.counts[k]]
        m.capacity[k] = 0 if head < 0 else m.able[head]
        if head >= 0:
            m.locked[head] = True
        _refresh_cost(m, k)
    for u in range(len(m.labels)):
        m.own_cost[u] = -FORBIDDEN if m.locked[u] else m.cost[m.labels[u], u]
        m.own_weight[u] = m.weight[m.labels[u]]


@compiled()
def _refresh_cost(m: State, k: int) -> None:
    twice = m.weight[k] + m.weight[k]
    products, near, cost = m.products[k], m.distance[m.heads[k]], m.cost[k]
    for u in range(len(cost)):
        cost[u] = twice * products[u] + near[u]


@compiled(inline="always")
def changes(m: State, u: int, column: Array, out: Array) -> None:
    """Change of the objective by swapping u with each device and by moving it to each cluster.

    For a device that is not locked. ``out`` (n + K,) holds at least ``FORBIDDEN / 2`` where that
    is not allowed; ``column`` (K,) is scratch.
    """
    a, norm, two = m.labels[u], m.norms[u], out.dtype.type(2)  # a plain 2 would be double precision
    for k in range(len(column)):
        column[k] = m.cost[k, u] - m.cost[a, u]
    column[a] = FORBIDDEN
    labels, norms, own_cost, own_weight = m.labels, m.norms, m.own_cost, m.own_weight
    gram, cost, weight, n = m.gram[u], m.cost[a], m.weight[a], len(m.labels)
    for v in range(n):  # apart from the rest, which then is vectorised
        out[v] = column[labels[v]]
    for v in range(n):
        gap = norm + norms[v] - two * gram[v]
        out[v] += cost[v] - own_cost[v] + (weight + own_weight[v]) * gap
    left = m.table[m.counts[a] - 1] * (m.squares[a] - two * m.products[a, u] + norm)
    leave = left - weight * m.squares[a] - m.distance[m.heads[a], u]
    for k in range(len(column)):
        if k == a or m.counts[k] >= m.capacity[k]:
            out[n + k] = FORBIDDEN
            continue
        grown = m.table[m.counts[k] + 1] * (m.squares[k] + two * m.products[k, u] + norm)
        join = grown - m.weight[k] * m.squares[k] + m.distance[m.heads[k], u]
        out[n + k] = join + leave


@compiled()
def sweep(
    s: State, order: Array, offsets: Array, pool: Array, temperature: float, smallest: float
) -> None:
    """A step of every device: one of its changes, or "stay", drawn with Gumbel noise.

    Parameters
    ----------
    order : (B, n) devices of each member, in the order of their turns.
    offsets : (B, n) where the noise of a turn begins in ``pool``.
    temperature : 0 takes the best change.
    smallest : an improvement must exceed it at temperature 0.
    """
    n, width = s.labels.shape[1], s.heads.shape[1]
    out = np.empty(n + width, dtype=s.cost.dtype)
    column = np.empty(width, dtype=s.cost.dtype)
    heat, improvement = out.dtype.type(temperature), out.dtype.type(smallest)
    for b in range(len(s.labels)):
        m = member(s, b)
        for turn in range(n):
            u = order[b, turn]
            if m.locked[u]:
                continue
            changes(m, u, column, out)
            stay = -improvement
            if temperature > 0:
                first = offsets[b, turn]
                for i in range(n + width):
                    out[i] -= heat * pool[first + i]
                stay = -heat * pool[first + n + width]
            choice = _lowest(out, stay)
            if choice >= n:
                _move(m, u, choice - n)
            elif choice >= 0:
                _swap(m, u, choice)


@compiled(fastmath={"nnan", "nsz"})
def _lowest(keys: Array, limit: float) -> int:
    """Place of the lowest key if it is below the limit, else -1."""
    lowest = limit
    for i in range(len(keys)):
        lowest = min(lowest, keys[i])
    if lowest >= limit:
        return -1
    for i in range(len(keys)):
        if keys[i] == lowest:
            return i
    return -1


@compiled()
def _swap(m: State, u: int, v: int) -> None:
    a, c = m.labels[u], m.labels[v]
    shift = m.gram[u] - m.gram[v]
    length = m.norms[u] + m.norms[v] - 2 * m.gram[u, v]
    m.squares[a] += length - 2 * (m.products[a, u] - m.products[a, v])
    m.squares[c] += length + 2 * (m.products[c, u] - m.products[c, v])
    m.products[a] -= shift
    m.products[c] += shift
    m.labels[u], m.labels[v] = c, a
    _refresh_two(m, a, c)


@compiled()
def _move(m: State, u: int, c: int) -> None:
    a = m.labels[u]
    m.squares[a] += m.norms[u] - 2 * m.products[a, u]
    m.squares[c] += m.norms[u] + 2 * m.products[c, u]
    m.products[a] -= m.gram[u]
    m.products[c] += m.gram[u]
    m.labels[u] = c
    m.counts[a] -= 1
    m.counts[c] += 1
    m.weight[a] = m.table[m.counts[a]]
    m.weight[c] = m.table[m.counts[c]]
    _refresh_two(m, a, c)


@compiled()
def _refresh_two(m: State, a: int, c: int) -> None:
    _refresh_cost(m, a)
    _refresh_cost(m, c)
    for u in range(len(m.labels)):
        k = m.labels[u]
        if k in (a, c):
            m.own_weight[u] = m.weight[k]
            if not m.locked[u]:
                m.own_cost[u] = m.cost[k, u]


@compiled()
def draw_heads(s: State, offsets: Array, pool: Array, temperature: float) -> None:
    """Draw every head anew among the able candidates of its cluster.

    Noise of a member's devices begins at ``offsets`` (B,); temperature 0 takes the medoid.
    """
    heat = pool.dtype.type(temperature)
    for b in range(len(s.labels)):
        m = member(s, b)
        for k in range(len(m.heads)):
            if m.heads[k] < 0:
                continue
            devices = np.flatnonzero((m.labels == k) & ~m.padding)
            best = np.inf
            for u in devices:
                if m.able[u] == 0 or m.able[u] < len(devices):
                    continue
                key = m.to_server[u] - heat * pool[offsets[b] + u]
                for v in devices:
                    key += m.distance[u, v]
                if key < best:
                    best = key
                    m.heads[k] = u
        _refresh(m)


@compiled()
def exchange_heads(s: State, clusters: Array, devices: Array, most: Array) -> None:
    """Let the head of a cluster and a candidate of another cluster change places in each member.

    Done if the candidate may lead and the objective grows by at most ``most`` (B,): the step that
    swaps and ``draw_heads`` cannot make.
    """
    for b in range(len(s.labels)):
        m = member(s, b)
        k, d = clusters[b], devices[b]
        h, c = m.heads[k], m.labels[d]
        if m.locked[d] or c == k or m.able[d] < m.counts[k]:
            continue
        gap = m.norms[h] + m.norms[d] - 2 * m.gram[h, d]
        change = (m.weight[k] + m.weight[c]) * gap
        change += 2 * m.weight[k] * (m.products[k, d] - m.products[k, h])
        change += 2 * m.weight[c] * (m.products[c, h] - m.products[c, d])
        change += m.distance[m.heads[c], h] - m.distance[m.heads[c], d]
        change += m.to_server[d] - m.to_server[h]
        for u in range(len(m.labels)):
            if m.labels[u] == k and u != h and not m.padding[u]:
                change += m.distance[d, u] - m.distance[h, u]
        if change <= most[b]:
            _swap(m, h, d)
            m.heads[k] = d
            _refresh(m)


@compiled()
def block_distances(place: Array, weight: np.floating) -> Array:
    """(B, n, n) weighted distances within each block, from coordinates (B, n, 2)."""
    size, devices, _ = place.shape
    distance = np.empty((size, devices, devices), dtype=place.dtype)
    for b in range(size):
        xs, ys = place[b, :, 0].copy(), place[b, :, 1].copy()
        for u in range(devices):
            for v in range(devices):
                x, y = xs[u] - xs[v], ys[u] - ys[v]
                distance[b, u, v] = weight * np.sqrt(x * x + y * y)
    return distance
