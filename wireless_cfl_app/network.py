"""Where the devices are, and how each method groups them."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from strategies.hierarchical import HierarchicalFedAvg, Planner
from strategies.randomness import stream
from strategies.wireless.baselines import random_clustering, similarity_clustering
from strategies.wireless.problem import Clustering
from strategies.wireless.solve import solve
from strategies.wireless.topology import Topology, devices_in_disc, read_devices
from wireless_cfl_app.config import WirelessConfig


def topology(config: WirelessConfig) -> Topology:
    """Devices from the file that ``positions`` names, or drawn in a disc.

    Raises
    ------
    ValueError
        If the file is unusable or names another number of devices.
    """
    server = (config.server_x_m, config.server_y_m)
    if config.positions != "none":
        found = read_devices(config.positions, server, config.capacity)
        if len(found.ids) != config.devices:
            raise ValueError(
                f"devices = {config.devices}: positions = {config.positions!r} names "
                f"{len(found.ids)} devices"
            )
        return found
    drawn = devices_in_disc(
        stream(config.partition_seed, "positions"),
        devices=config.devices,
        radius_m=config.radius_m,
        candidates=config.candidates or None,
        capacity=config.capacity,
    )
    return replace(drawn, server_m=np.array(server))


def clustering(config: WirelessConfig, where: Topology) -> Clustering | Planner | None:
    """How the devices are grouped: at once, from their gradients, or (FedAvg) not at all.

    Raises
    ------
    InfeasibleCapacityError
        If the candidates cannot serve all devices.
    """
    if config.method == "fedavg":
        return None
    rng = stream(config.run_seed, f"plan-{config.method}")
    blind = where.problem(np.zeros((config.devices, 1), dtype=np.float32), alpha=0.0)
    if config.method == "random":
        return random_clustering(blind, rng)

    def plan(gradients: NDArray[np.float32]) -> Clustering:
        problem = where.problem(gradients, alpha=config.alpha, weighting=config.weighting)  # type: ignore[arg-type]
        if config.method == "similarity":
            return similarity_clustering(problem, rng)
        seed = int(rng.integers(2**31))
        return solve(problem, seconds=None, sweeps=config.plan_sweeps, seed=seed).clustering

    if config.method == "proposed" and config.alpha == 0:
        return plan(np.zeros((config.devices, 1), dtype=np.float32))
    return plan


def create_strategy(config: WirelessConfig, where: Topology, parameters: int) -> HierarchicalFedAvg:
    """The strategy of a method for a model of so many parameters."""
    return HierarchicalFedAvg(
        topology=where,
        clustering=clustering(config, where),
        tau1=config.tau1,
        tau2=config.tau2,
        channel=config.channel(parameters),
        sketch_dimension=config.gradient_sketch,
        seed=config.run_seed,
    )
