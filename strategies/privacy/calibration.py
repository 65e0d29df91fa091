"""From noise to epsilon and back: Renyi accounting of (sampled) Gaussian releases.

Renyi divergences come from Opacus (Mironov, Talwar and Zhang, arXiv:1908.10530); the conversion
to (epsilon, delta) is that of Balle et al. (AISTATS 2020), Eq. 3 of PINA. Adjacency: one client
with all its data is added or removed. Opacus imports torch, so it is imported on first use.
"""

import dataclasses
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

ORDERS: tuple[float, ...] = (
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 64),
    *(2**k for k in range(6, 11)),
)
LARGEST_NOISE = 1e6
# Below this noise the series for fractional orders converges too slowly to be of use.
_SMALL_NOISE = 0.25


@dataclasses.dataclass(frozen=True)
class Event:
    """A Gaussian release: noise in units of the sensitivity, and the sampling probability."""

    noise_multiplier: float
    sampling: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        if not self.noise_multiplier >= 0:
            raise ValueError(f"noise_multiplier = {self.noise_multiplier}: must be >= 0")
        if not 0 < self.sampling <= 1:
            raise ValueError(f"sampling = {self.sampling}: must be in (0, 1]")


@lru_cache(maxsize=4096)
def _renyi(event: Event) -> NDArray[np.float64]:
    """Renyi divergences of one event at ORDERS."""
    handlers = logging.root.handlers[:]
    from opacus.accountants.analysis.rdp import compute_rdp

    logging.root.handlers[:] = handlers  # importing Opacus configures the root logger

    z = event.noise_multiplier
    if z == 0:
        return np.full(len(ORDERS), math.inf)
    plain = np.array(ORDERS) / (2 * z**2)
    if event.sampling == 1 or z < _SMALL_NOISE:
        return plain  # sampling never costs privacy, so this is an upper bound
    sampled = compute_rdp(q=event.sampling, noise_multiplier=z, steps=1, orders=list(ORDERS))
    return np.minimum(plain, np.asarray(sampled, dtype=np.float64))


def epsilon_of(events: Iterable[Event], delta: float) -> float:
    """Epsilon of a composition of events at ``delta``.

    Returns 0 for no events and infinity if an event has no noise.

    Raises
    ------
    ValueError
        If ``delta`` is not in (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}: must be in (0, 1)")
    counts = Counter(events)
    if not counts:
        return 0.0
    renyi = np.sum([count * _renyi(event) for event, count in counts.items()], axis=0)
    if not np.all(np.isfinite(renyi)):
        return math.inf
    orders = np.array(ORDERS)
    epsilons = renyi - (math.log(delta) + np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
    return max(0.0, float(epsilons.min()))


def calibrate(events_at: Callable[[float], Sequence[Event]], epsilon: float, delta: float) -> float:
    """Smallest noise multiplier whose events cost at most ``epsilon``.

    Parameters
    ----------
    events_at : callable
        The planned composition as a function of the noise multiplier, decreasing in cost.
    epsilon, delta : float
        The budget.

    Returns
    -------
    float
        A noise multiplier that meets the budget; never overshoots it, and stays within a
        relative 1e-6 of the smallest one that does.

    Raises
    ------
    ValueError
        If ``epsilon`` is not positive or no noise below 10^6 meets the budget.
    """
    if not epsilon > 0:
        raise ValueError(f"epsilon = {epsilon}: must be > 0")
    low, high = 0.0, 1.0
    if epsilon_of(events_at(LARGEST_NOISE), delta) > epsilon:
        raise ValueError(f"epsilon = {epsilon}: the other releases of the plan already exceed it")
    while epsilon_of(events_at(high), delta) > epsilon:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        if epsilon_of(events_at(middle), delta) > epsilon:
            low = middle
        else:
            high = middle
    return high
