"""Clustered federated learning strategies for Flower's Message API.

Importing this package pulls in neither torch nor timm nor an app.
"""

from strategies.clustered import ClusteredStrategy
from strategies.hierarchical import HierarchicalFedAvg
from strategies.pina import PINA

__all__ = ["PINA", "ClusteredStrategy", "HierarchicalFedAvg"]
