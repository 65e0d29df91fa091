"""Energy and delay of the links (wireless CFL paper, Section 5).

Shannon rate R = B log2(1 + P g / (N0 B)) with path loss 128.1 + 37.6 log10(d_km) dB; a transfer
of s bits takes s / R seconds and P s / R joules. What the paper leaves open is an option here:

* ``band``: "per-device" (each transmitter has the whole ``bandwidth_hz``, the plain reading of
  "each device is allocated 1 Mbps") or "shared" (split over the simultaneous transmitters of a
  hop: the members of a cluster, or all heads).
* ``fading``: Rayleigh, drawn anew for every link by an explicit generator. Deep fades make the
  expected energy of a transfer infinite: sample means do not settle.
* ``directions``: uplink only (the paper's energy formula) or also the broadcasts back.

Distances below ``minimum_distance_m`` count as that (the path-loss formula has no meaning at 0).
The reported 101 J to 168 J are not reached by any plain reading; see the project's notes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from strategies.wireless.problem import FloatArray

Band = Literal["per-device", "shared"]
Directions = Literal["uplink", "both"]


@dataclass(frozen=True)
class Channel:
    """Parameters of all links, with the paper's defaults.

    ``model_bits``: 28 kB = 224,000 bits. ``server_power_w`` is used for the server's broadcast.
    """

    bandwidth_hz: float = 1e6
    transmit_power_w: float = 0.01
    server_power_w: float = 0.01
    noise_dbm_per_hz: float = -173.0
    path_loss_1km_db: float = 128.1
    path_loss_slope_db: float = 37.6
    model_bits: float = 28_000 * 8.0
    minimum_distance_m: float = 1.0
    band: Band = "per-device"
    directions: Directions = "uplink"
    fading: bool = False

    def __post_init__(self) -> None:
        positive = ("bandwidth_hz", "transmit_power_w", "server_power_w", "model_bits")
        for name in (*positive, "minimum_distance_m", "path_loss_slope_db"):
            value = getattr(self, name)
            if not 0 < value < np.inf:
                raise ValueError(f"{name} = {value}: must be > 0 and finite")
        for name in ("noise_dbm_per_hz", "path_loss_1km_db"):
            if not np.isfinite(getattr(self, name)):
                raise ValueError(f"{name} = {getattr(self, name)}: must be finite")
        if self.band not in ("per-device", "shared"):
            raise ValueError(f'band = {self.band!r}: must be "per-device" or "shared"')
        if self.directions not in ("uplink", "both"):
            raise ValueError(f'directions = {self.directions!r}: must be "uplink" or "both"')

    def path_loss_db(self, distance_m: FloatArray) -> FloatArray:
        """Path loss in dB."""
        distance_km = np.maximum(distance_m, self.minimum_distance_m) / 1000.0
        return np.asarray(self.path_loss_1km_db + self.path_loss_slope_db * np.log10(distance_km))

    def rate_bit_s(
        self,
        distance_m: FloatArray,
        *,
        bandwidth_hz: float | FloatArray,
        power_w: float,
        rng: np.random.Generator | None = None,
    ) -> FloatArray:
        """Shannon rate in bit/s. ``ValueError`` if fading is on and no generator is given."""
        gain = 10.0 ** (-self.path_loss_db(distance_m) / 10.0)
        if self.fading:
            if rng is None:
                raise ValueError("rng = None: fading needs a random generator")
            gain = gain * rng.standard_exponential(gain.shape)
        noise_w = 10.0 ** (self.noise_dbm_per_hz / 10.0) / 1000.0 * bandwidth_hz
        return np.asarray(bandwidth_hz * np.log2(1.0 + power_w * gain / noise_w))
