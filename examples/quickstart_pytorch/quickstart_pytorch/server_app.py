"""quickstart-pytorch: A Flower / PyTorch app."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart_pytorch.task import Net, load_test_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, evaluate and save the model."""
    num_rounds = context.run_config["num-server-rounds"]
    lr = context.run_config["learning-rate"]
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())

    strategy = FedAvg(fraction_train=context.run_config["fraction-train"])
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=num_rounds,
        evaluate_fn=global_evaluate,
    )

    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy of the model on images of no client, upright and upside down."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    _, upright = test(model, load_test_data(upside_down=False), device)
    _, upside_down = test(model, load_test_data(upside_down=True), device)
    return MetricRecord({"upright": upright, "upside-down": upside_down})
