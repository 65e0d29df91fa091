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

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from strategies.wireless.problem import Clustering, FloatArray, IntArray

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


@dataclass(frozen=True)
class Links:
    """The transfers of one aggregation, one entry a transmission, all arrays of one length.

    ``kind``: "uplink" (device to head, or to the server without clusters), "relay" (head to
    server), "downlink" (broadcast by a head or the server to its farthest receiver). ``sender``
    and ``receiver`` are device indices, -1 for the server.
    """

    kind: tuple[str, ...]
    sender: IntArray
    receiver: IntArray
    distance_m: FloatArray
    energy_j: FloatArray
    delay_s: FloatArray


@dataclass(frozen=True)
class EnergyAccount:
    """Joules by kind of link, and seconds of communication on the critical path."""

    uplink_j: float = 0.0
    relay_j: float = 0.0
    downlink_j: float = 0.0
    delay_s: float = 0.0

    @property
    def total_j(self) -> float:
        return self.uplink_j + self.relay_j + self.downlink_j

    def __add__(self, other: EnergyAccount) -> EnergyAccount:
        return EnergyAccount(
            *(getattr(self, f.name) + getattr(other, f.name) for f in fields(self))
        )


def cluster_links(
    channel: Channel,
    positions_m: FloatArray,
    clustering: Clustering,
    rng: np.random.Generator | None = None,
) -> Links:
    """One aggregation inside all clusters (Eq. 3): members to heads, and the broadcast back."""
    own_head = clustering.heads[clustering.labels]
    members = np.flatnonzero(own_head != np.arange(len(own_head)))
    receivers = own_head[members]
    distance = np.linalg.norm(positions_m[members] - positions_m[receivers], axis=1)
    crowd = np.bincount(clustering.labels[members], minlength=len(clustering.heads))
    sharing = crowd[clustering.labels[members]]
    parts = [_transfer(channel, "uplink", members, receivers, distance, sharing, rng)]
    if channel.directions == "both":
        farthest = np.zeros(len(clustering.heads))
        np.maximum.at(farthest, clustering.labels[members], distance)
        busy = np.flatnonzero(crowd > 0)
        target = np.array(
            [
                members[clustering.labels[members] == k][
                    distance[clustering.labels[members] == k].argmax()
                ]
                for k in busy
            ],
            dtype=np.int64,
        )
        alone = np.ones(len(busy), dtype=np.int64)
        senders = clustering.heads[busy]
        parts.append(_transfer(channel, "downlink", senders, target, farthest[busy], alone, rng))
    return _joined(parts)


def server_links(
    channel: Channel,
    positions_m: FloatArray,
    server_m: FloatArray,
    senders: IntArray,
    kind: Literal["uplink", "relay"] = "relay",
    rng: np.random.Generator | None = None,
) -> Links:
    """One aggregation at the server (Eq. 4): ``senders`` (heads, or all devices) to the server,
    and the broadcast back.
    """
    distance = np.linalg.norm(positions_m[senders] - server_m, axis=1)
    server = np.full(len(senders), -1)
    sharing = np.full(len(senders), len(senders))
    parts = [_transfer(channel, kind, senders, server, distance, sharing, rng)]
    if channel.directions == "both":
        far = int(distance.argmax())
        one = np.array([1])
        parts.append(
            _transfer(
                channel, "downlink", -one, senders[[far]], distance[[far]], one, rng, server=True
            )
        )
    return _joined(parts)


def account(links: Links) -> EnergyAccount:
    """Energies by kind; transfers of one kind are simultaneous, kinds follow each other."""
    energy = dict.fromkeys(("uplink", "relay", "downlink"), 0.0)
    delay = 0.0
    kinds = np.array(links.kind, dtype=object)
    for kind in energy:
        these = kinds == kind
        energy[kind] = float(links.energy_j[these].sum())
        delay += float(links.delay_s[these].max(initial=0.0))
    return EnergyAccount(energy["uplink"], energy["relay"], energy["downlink"], delay)


def run_account(
    channel: Channel,
    positions_m: FloatArray,
    server_m: FloatArray,
    clustering: Clustering | None,
    *,
    iterations: int = 200,
    tau1: int = 1,
    tau2: int = 2,
    rng: np.random.Generator | None = None,
) -> EnergyAccount:
    """Energy and delay of a whole run; ``clustering = None`` is FedAvg (all devices to the server
    every tau1 local iterations).

    ``ValueError`` unless tau2 is a positive multiple of tau1.
    """
    check_periods(tau1, tau2)
    total = EnergyAccount()
    everyone = np.arange(len(positions_m))
    for iteration in range(tau1, iterations + 1, tau1):
        if clustering is None:
            links = server_links(channel, positions_m, server_m, everyone, "uplink", rng)
            total += account(links)
            continue
        total += account(cluster_links(channel, positions_m, clustering, rng))
        if iteration % tau2 == 0:
            links = server_links(channel, positions_m, server_m, clustering.heads, "relay", rng)
            total += account(links)
    return total


def check_periods(tau1: int, tau2: int) -> None:
    """Raise ``ValueError`` unless tau1 >= 1 and tau2 is a multiple of it (Section 2.1)."""
    if tau1 < 1:
        raise ValueError(f"tau1 = {tau1}: must be >= 1")
    if tau2 < tau1 or tau2 % tau1:
        raise ValueError(f"tau2 = {tau2}: must be a multiple of tau1 = {tau1}")


def _transfer(
    channel: Channel,
    kind: str,
    sender: IntArray,
    receiver: IntArray,
    distance_m: FloatArray,
    sharing: IntArray,
    rng: np.random.Generator | None,
    *,
    server: bool = False,
) -> Links:
    power_w = channel.server_power_w if server else channel.transmit_power_w
    split = sharing if channel.band == "shared" else np.ones(len(sender))
    band = channel.bandwidth_hz / np.maximum(split, 1)
    rate = channel.rate_bit_s(distance_m, bandwidth_hz=band, power_w=power_w, rng=rng)
    delay = channel.model_bits / rate
    return Links((kind,) * len(sender), sender, receiver, distance_m, power_w * delay, delay)


def _joined(parts: list[Links]) -> Links:
    return Links(
        tuple(kind for part in parts for kind in part.kind),
        *(
            np.concatenate([getattr(part, f.name) for part in parts])
            for f in fields(Links)
            if f.name != "kind"
        ),
    )
