"""Federated learning strategies for Flower, and what they are built from."""
