"""Checks that need more than the configuration: data, positions, capacities, the model.

They run before a run is submitted and again where it starts, so that bad input ends in one clear
message before any device is asked.
"""

from wireless_cfl_app.config import WirelessConfig
from wireless_cfl_app.data import label_counts, task
from wireless_cfl_app.model import create_model, parameters
from wireless_cfl_app.network import create_strategy, topology


def check(config: WirelessConfig) -> list[str]:
    """Raise ValueError for whatever would fail later; returns lines that describe the run."""
    size = parameters(create_model(task(config), config.run_seed))
    if config.simulation:
        label_counts(config)
    where = topology(config)
    create_strategy(config, where, size).rounds(config.iterations)
    return [
        f"{config.method}: {config.devices} devices, {config.iterations} local iterations, "
        f"tau1 = {config.tau1}, tau2 = {config.tau2}; model of {4 * size / 1000:.1f} kB",
    ]
