"""Which member takes over when a cluster head fails; the paper assumes that none does."""

import numpy as np

from strategies.wireless.problem import Clustering, IntArray
from strategies.wireless.topology import Topology


def successor(topology: Topology, members: IntArray, size: int) -> int | None:
    """The member that leads its cluster from now on, or None if none can.

    Parameters
    ----------
    topology : Topology
    members : (M,) devices of the cluster that are alive.
    size : int
        Devices of the cluster, alive or not: its next head must have room for all.

    Returns
    -------
    The able candidate with the least total distance to members and server (its medoid).
    """
    able = topology.candidates[topology.capacities >= size]
    able = np.intersect1d(able, members)
    if len(able) == 0:
        return None
    place = topology.positions_m
    to_members = np.linalg.norm(place[able][:, None] - place[members][None], axis=2).sum(axis=1)
    to_server = np.linalg.norm(place[able] - topology.server_m, axis=1)
    return int(able[(to_members + to_server).argmin()])


def replace_failed_heads(
    topology: Topology, clustering: Clustering, alive: IntArray
) -> tuple[Clustering, list[int], list[str]]:
    """New heads where the old ones are not ``alive``.

    Returns
    -------
    The clustering with its heads from now on, the clusters that nobody can lead in this round (they
    keep their head), and sentences that say what happened.
    """
    heads, skipped, said = clustering.heads.copy(), [], []
    for cluster, head in enumerate(heads):
        everyone = np.flatnonzero(clustering.labels == cluster)
        members = np.intersect1d(everyone, alive)
        if head in members:
            continue
        following = successor(topology, members, len(everyone))
        if following is not None:
            old, new = topology.ids[head], topology.ids[following]
            said.append(f"head {old} of cluster {cluster} is replaced by {new}")
            heads[cluster] = following
        else:
            why = "no member can replace its head" if len(members) else "no member answered"
            said.append(f"cluster {cluster} is skipped: {why}")
            skipped.append(cluster)
    return Clustering(clustering.labels, heads), skipped, said
