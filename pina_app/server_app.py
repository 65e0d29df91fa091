"""ServerApp: runs the configured methods one after another and writes the run directory."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from app_kit import run_files
from app_kit.progress import say
from pina_app import choices, preflight, results
from pina_app.classifier import Classifier
from pina_app.config import PinaConfig, from_run_config
from pina_app.methods import create_strategy, entry_of, initial_models, train_config
from pina_app.rounds import Rounds
from pina_app.task import frozen_model, number_of_classes, public_statistics, server_points
from strategies import wire
from strategies.checkpoint import RunDirectory
from strategies.clustering.public_statistics import PublicStatistics
from strategies.privacy.ledger import BudgetExhaustedError
from strategies.report.write import write_report

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or resume, and report."""
    config = from_run_config(context.run_config)
    path = Path(config.run_dir).expanduser().resolve()
    if not config.resume and config.run_dir == PinaConfig.run_dir:
        path = path / str(context.run_id)
    directory = RunDirectory(path)
    try:
        say("run directory: %s", path)
        preflight.check(config)
        values = config.to_run_config()
        run_files.check_same_run(directory, "pina_app", values, results.MAY_CHANGE)
        run_files.write_config(path, "pina", values)
        for sentence in [] if config.simulation else results.trust(config):
            say("%s", sentence)
        statistics = public_statistics(config)
        results.save_statistics(path, statistics)
        classifier = Classifier(frozen_model(config).tail, statistics)
        for method in config.method_list:
            run_method(grid, config, directory, method, statistics, classifier)
            table = write_report(path)
        for line in table.splitlines():
            say("%s", line)
    finally:
        directory.close()


def run_method(
    grid: Grid,
    config: PinaConfig,
    directory: RunDirectory,
    method: str,
    statistics: PublicStatistics,
    classifier: Classifier,
) -> None:
    """Train one method from its last committed round to its end."""
    seeded = config.simulation and config.seed is not None
    state = directory.restore(method, replay=seeded)
    if method == "pina":
        say("pina: %s", choices.explain(config))
    classes = number_of_classes(config)
    by_points = entry_of(config, method).init == "server-points"
    points = server_points(config, statistics) if by_points else None
    strategy = create_strategy(config, method, statistics, directory.ledger_path, points, classes)
    if state is not None:
        arrays = strategy.load_state(state)
        strategy.check_ledger()
        say("%s resumes after round %d", method, strategy.completed)
    else:
        width = statistics.mean.size
        strategy.models = initial_models(config, method, width, classes, classifier.tail.lora.size)
        arrays = wire.pack_models(strategy.models)
    stopped = None
    if strategy.remaining_rounds > 0:
        rounds = Rounds(config, directory, strategy, classifier)
        try:
            strategy.start(
                grid,
                arrays,
                num_rounds=strategy.remaining_rounds,
                timeout=config.round_timeout_s,
                train_config=train_config(config, method),
                evaluate_fn=rounds.commit,
            )
        except BudgetExhaustedError as error:
            stopped = f"stopped early: {error}"
            say("%s", stopped)
    results.save_models(config, directory.path, strategy, classifier)
    results.summarise(config, directory, strategy, statistics, stopped)
