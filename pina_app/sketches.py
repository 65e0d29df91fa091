"""The noised sketches of the printed PINA's first stage, one for each client."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pina_app.config import PinaConfig
from pina_app.model import LORA_B
from pina_app.task import ClientData
from strategies import wire
from strategies.clustering.sketch import sketch
from strategies.randomness import stream


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
