"""Clustered federated learning strategies for Flower's Message API.

Importing this package pulls in neither torch nor timm nor an app.
"""

from strategies.clustered import ClusteredStrategy
from strategies.fednova import FedNova
from strategies.hierarchical import HierarchicalFedAvg
from strategies.ifca import IFCA
from strategies.pina import PINA
from strategies.starts import cluster_arrays

__all__ = [
    "IFCA",
    "PINA",
    "ClusteredStrategy",
    "FedNova",
    "HierarchicalFedAvg",
    "cluster_arrays",
]
