"""Planning of wireless clustered federated learning: network, similarity, association, heads.

From "Data- and distance-aware clustering for scalable wireless federated learning". The gradients
and positions of the devices go to the server in the clear, without differential privacy.
"""

from strategies.wireless.association import associate
from strategies.wireless.channel import Channel
from strategies.wireless.head_selection import select_heads
from strategies.wireless.links import EnergyAccount, run_account
from strategies.wireless.problem import (
    Clustering,
    ClusteringProblem,
    InfeasibleCapacityError,
    load_instance,
    objective,
    representativeness,
    total_distance_m,
)
from strategies.wireless.similarity import sketch, unit_gradients
from strategies.wireless.solution import Solution
from strategies.wireless.solve import solve
from strategies.wireless.topology import Topology, devices_in_disc, read_devices

__all__ = [
    "Channel",
    "Clustering",
    "ClusteringProblem",
    "EnergyAccount",
    "InfeasibleCapacityError",
    "Solution",
    "Topology",
    "associate",
    "devices_in_disc",
    "load_instance",
    "objective",
    "read_devices",
    "representativeness",
    "run_account",
    "select_heads",
    "sketch",
    "solve",
    "total_distance_m",
    "unit_gradients",
]
