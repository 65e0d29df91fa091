"""ServerApp: plans the clusters, trains, and writes the run directory."""

from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from app_kit import run_files
from app_kit.progress import say
from app_kit.run_command import DEFAULT_RUN_DIR
from strategies.checkpoint import RunDirectory
from strategies.report.write import write_report
from wireless_cfl_app import preflight, results
from wireless_cfl_app.config import WirelessConfig, from_run_config
from wireless_cfl_app.data import task
from wireless_cfl_app.model import create_model, parameters
from wireless_cfl_app.network import create_strategy, topology
from wireless_cfl_app.rounds import Rounds

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or resume, and report."""
    config = from_run_config(context.run_config)
    path = Path(config.run_dir).expanduser().resolve()
    if not config.resume and config.run_dir == DEFAULT_RUN_DIR:
        path = path / str(context.run_id)
    directory = RunDirectory(path)
    try:
        say("run directory: %s", path)
        values = config.to_run_config()
        preflight.check(config)
        run_files.check_same_run(directory, "wireless_cfl_app", values)
        run_files.write_config(path, "wireless", values)
        for sentence in [] if config.simulation else results.trust(config):
            say("%s", sentence)
        run(grid, config, directory)
        for line in write_report(path).splitlines():
            say("%s", line)
    finally:
        directory.close()


def run(grid: Grid, config: WirelessConfig, directory: RunDirectory) -> None:
    """Train from the last committed round to the end."""
    where = topology(config)
    results.write_devices(directory.path, where)
    model = create_model(task(config), config.run_seed)
    strategy = create_strategy(config, where, parameters(model))
    state = directory.restore(config.method, replay=True)
    if state is None:
        arrays = ArrayRecord(model.state_dict())
    else:
        arrays = strategy.load_state(state)
        say("%s resumes after round %d", config.method, strategy.completed)
    remaining = strategy.rounds(config.iterations)
    if remaining > 0:
        strategy.start(
            grid,
            arrays,
            num_rounds=remaining,
            timeout=config.round_timeout_s,
            evaluate_fn=Rounds(config, directory, strategy).commit,
        )
    results.save_result(config, directory, strategy)
