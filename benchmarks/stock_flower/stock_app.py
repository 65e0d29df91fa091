"""Flower's own FedAvg as its documentation has it: a SuperNode a client, the whole ViT a step.

Only B of the last block's LoRA and the head are trained and sent. peft's B sits on timm's fused
q, k, v, so it has 3 h numbers instead of h; that costs nothing measurable. Images are drawn.
"""

import json
import time
from functools import lru_cache
from pathlib import Path

import timm
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

torch.set_num_threads(1)

server_app = ServerApp()
client_app = ClientApp()


@lru_cache(maxsize=1)
def create_model(name: str, image_size: int) -> nn.Module:
    """The ViT with its LoRA and a head of 10 classes; created once a process."""
    torch.manual_seed(0)
    model = timm.create_model(name, img_size=image_size, num_classes=10).eval()
    attention = model.blocks[-1].attn
    inject_adapter_in_model(LoraConfig(r=1, lora_alpha=1, target_modules=["qkv"]), attention)
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_B" in parameter_name or parameter_name.startswith("head."))
    return model


def trained(model: nn.Module) -> dict[str, Tensor]:
    """What is trained and sent."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """E epochs of full batches."""
    config = context.run_config
    size, images = int(config["image-size"]), int(config["images"])
    model = create_model(str(config["model"]), size)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    pixels = torch.randn(images, 3, size, size, generator=generator)
    labels = torch.randint(10, (images,), generator=generator)
    optimizer = torch.optim.SGD(trained(model).values(), lr=float(config["learning-rate"]))
    for _ in range(int(config["epochs"])):
        loss = cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord({n: p.detach() for n, p in trained(model).items()}),
            "metrics": MetricRecord({"num-examples": images}),
        }
    )
    return Message(content=content, reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """All nodes in every round; the time of every round's end goes to a file."""
    config = context.run_config
    model = create_model(str(config["model"]), int(config["image-size"]))
    times: list[float] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        times.append(time.monotonic())
        return MetricRecord()

    arrays = ArrayRecord({name: p.detach() for name, p in trained(model).items()})
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0)
    strategy.start(grid, arrays, num_rounds=int(config["rounds"]), evaluate_fn=evaluate)
    Path(str(config["times"])).write_text(json.dumps(times), encoding="utf-8")
