"""Noise that clients add themselves, before anything leaves them: to sketches, or to updates."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pina_app.config import PinaConfig
from pina_app.model import LORA_B
from pina_app.task import ClientData
from strategies import wire
from strategies.clustering.sketch import sketch
from strategies.privacy.mechanisms import gaussian_on_grid
from strategies.randomness import noise_stream, stream


def local_noise(
    config: PinaConfig, request: wire.RoundRequest, clients: Sequence[int]
) -> NDArray[np.int64]:
    """Noise on the grid that these clients add themselves; also those without a usable update."""
    seed = config.seed if config.simulation else None
    total = np.zeros(request.layout.size, dtype=np.int64)
    for client in clients if request.noise_multiplier > 0 else ():
        rng = noise_stream(seed, "local-noise", request.round, client)
        total += gaussian_on_grid(len(total), request.noise_multiplier, rng)
    return total


def sketches(
    config: PinaConfig,
    request: wire.RoundRequest,
    ids: Sequence[int],
    usable: dict[int, ClientData],
    updates: NDArray[np.float64],
    models: Sequence[wire.Model],
) -> NDArray[np.float64]:
    """A noised sketch (h,) of B's update for each client asked; of zeros for an unusable one."""
    zero = np.zeros(request.width)
    computed = wire.unflatten(np.nan_to_num(updates), models[0])
    rows = dict(zip(usable, (update[LORA_B].ravel() for update in computed), strict=True))
    seed = config.seed if config.simulation else None
    return np.stack(
        [
            sketch(
                rows.get(client, zero),
                request.threshold,
                request.noise_multiplier,
                stream(seed, "sketch-noise", request.round, client),
            )
            for client in ids
        ]
    )
