"""Wireless clustered federated learning as a Flower app: devices, cluster heads, server."""
