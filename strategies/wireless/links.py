"""The transfers of an aggregation, and what they cost (wireless CFL paper, Section 5).

Uplink (device to head, or to the server), relay (head to server) and downlink (broadcasts back) are
separate lines of the account. Rates and energies are those of ``strategies.wireless.channel``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from strategies.wireless.channel import Channel
from strategies.wireless.problem import Clustering, FloatArray, IntArray


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
    participants: IntArray | None = None,
) -> Links:
    """One aggregation inside all clusters (Eq. 3): members to heads, and the broadcast back.

    ``participants``: the devices that take part (default: all).
    """
    own_head = clustering.heads[clustering.labels]
    everyone = np.arange(len(own_head))
    members = everyone if participants is None else np.sort(participants)
    members = members[own_head[members] != members]
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


def round_account(
    channel: Channel,
    positions_m: FloatArray,
    server_m: FloatArray,
    clustering: Clustering | None,
    *,
    across: bool,
    participants: IntArray | None = None,
    skipped: Iterable[int] = (),
    rng: np.random.Generator | None = None,
) -> EnergyAccount:
    """Energy and delay of one training round: links inside clusters, then from heads to server.

    ``across``: whether it ends with Eq. 4; ``participants``: devices that took part (default: all);
    ``skipped``: clusters that did not.
    """
    if participants is None:
        participants = np.arange(len(positions_m))
    if clustering is None:
        if not len(participants):
            return EnergyAccount()
        return account(server_links(channel, positions_m, server_m, participants, "uplink", rng))
    live = np.setdiff1d(np.arange(len(clustering.heads)), list(skipped))
    taking_part = participants[np.isin(clustering.labels[participants], live)]
    total = account(cluster_links(channel, positions_m, clustering, rng, taking_part))
    if across and len(live):
        heads = clustering.heads[live]
        total += account(server_links(channel, positions_m, server_m, heads, "relay", rng))
    return total


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
    for iteration in range(tau1, iterations + 1, tau1):
        across = clustering is None or iteration % tau2 == 0
        total += round_account(channel, positions_m, server_m, clustering, across=across, rng=rng)
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
