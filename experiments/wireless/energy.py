"""Radio energy of a run against the number of devices (Figure 4).

    python experiments/wireless/energy.py --data DIR

Fashion-MNIST's gradients at the initial model; no training. Two accountings: a band for each device
(plain), and one shared by the simultaneous transmitters of a hop.
"""

from collections import defaultdict
from typing import Any

import numpy as np
from runs import FILES, HERE, METHODS, lines_figure, options, spread, write_csv

from app_kit.run_config import read_preset
from strategies.wireless.channel import Channel
from strategies.wireless.links import run_account
from strategies.wireless.similarity import unit_gradients
from wireless_cfl_app.config import PRESETS, WirelessConfig, from_run_config
from wireless_cfl_app.data import simulated_device, task
from wireless_cfl_app.local import gradient
from wireless_cfl_app.model import create_model, parameters
from wireless_cfl_app.network import clustering, topology

DEVICES = (20, 40, 60, 80, 100, 150, 200)
BANDS = ("per-device", "shared")


def gradients(config: WirelessConfig) -> np.ndarray:
    """(U, p) unit gradients of all devices at the initial model."""
    model = create_model(task(config), config.partition_seed)
    rows = [gradient(model, simulated_device(config, device)) for device in range(config.devices)]
    return unit_gradients(np.stack(rows))


def main() -> None:
    """Plan, account, write table and figures."""
    arguments = options(__doc__ or "").parse_args()
    rows: list[dict[str, Any]] = []
    for devices in DEVICES:
        for seed in range(arguments.seeds):
            for method in METHODS:
                values = {
                    **read_preset(PRESETS, "fashion_mnist"),
                    "dataset": str((arguments.data / FILES["fashion_mnist"]).resolve()),
                    "devices": devices,
                    "seed": seed,
                    "method": method,
                }
                config = from_run_config(values)
                where = topology(config)
                found = clustering(config, where)
                if callable(found):
                    found = found(gradients(config))
                bits = 32.0 * parameters(create_model(task(config), seed))
                for band in BANDS:
                    channel = Channel(model_bits=bits, band=band)  # type: ignore[arg-type]
                    total = run_account(channel, where.positions_m, where.server_m, found)
                    rows.append(
                        {
                            "devices": devices,
                            "method": method,
                            "seed": seed,
                            "band": band,
                            "energy_j": total.total_j,
                            "delay_s": total.delay_s,
                        }
                    )
        write_csv("figure4.csv", rows)
        for band in BANDS:
            for method in METHODS:
                own = [
                    row["energy_j"]
                    for row in rows
                    if (row["devices"], row["method"], row["band"]) == (devices, method, band)
                ]
                print(f"{devices} devices, {band}, {method}: {spread(own)} J", flush=True)
    for band in BANDS:
        series: dict[str, dict[float, list[float]]] = {m: defaultdict(list) for m in METHODS}
        for row in rows:
            if row["band"] == band:
                series[row["method"]][row["devices"]].append(row["energy_j"])
        labels = ("devices", f"energy in J ({band} band)")
        lines_figure(HERE / f"figure4_{band}.png", series, labels, logarithmic=True)


if __name__ == "__main__":
    main()
