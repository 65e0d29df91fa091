"""Local differential privacy: every client adds the noise of a whole release itself.

The server then need not be trusted with single updates, but the sum carries as many noises as
clients took part; a strategy asks for it with ``local_noise``.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from strategies.privacy.mechanisms import gaussian_on_grid
from strategies.randomness import noise_stream
from strategies.wire import RoundRequest


def local_noise(
    request: RoundRequest, clients: Sequence[int], seed: int | None
) -> NDArray[np.int64]:
    """Noise on the grid that these clients add; also those without a usable update.

    Parameters
    ----------
    request : RoundRequest
        Its ``noise_multiplier`` is that of every client, in sensitivities of its layout.
    clients : sequence of int
    seed : int or None
        For simulations; None takes the noise from the operating system.
    """
    total = np.zeros(request.layout.size, dtype=np.int64)
    for client in clients if request.noise_multiplier > 0 else ():
        rng = noise_stream(seed, "local-noise", request.round, client)
        total += gaussian_on_grid(len(total), request.noise_multiplier, rng)
    return total
