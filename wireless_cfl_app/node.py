"""What a node does in a round: its devices' gradients (Step 1), or local steps and their mean."""

from functools import lru_cache
from logging import ERROR

import torch
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.common import log
from torch import nn

from strategies import hierarchical_wire as wire
from strategies.wireless.similarity import sketch
from wireless_cfl_app import local
from wireless_cfl_app.config import WirelessConfig, from_run_config
from wireless_cfl_app.data import DeviceData, Task, own_data, simulated_device, task
from wireless_cfl_app.model import create_model

# One thread a process: several busy torch threads on few cores are slower than one.
torch.set_num_threads(1)


def answer(content: RecordDict, context: Context) -> RecordDict:
    """The reply to a round's request."""
    config = from_run_config(context.run_config)
    request, arrays = wire.read_request(content)
    state = arrays.to_torch_state_dict()
    data = {device: _data(config, context, device) for device in request.devices}
    usable = {device: found for device, found in data.items() if found is not None}
    if not usable:
        raise RuntimeError(f"none of the devices {list(request.devices)} has usable data")
    model = _network(_task(config, usable, state))
    samples = {device: len(found.labels) for device, found in usable.items()}
    if request.phase == wire.GRADIENT:
        (device,) = usable
        model.load_state_dict(state)
        vector = local.gradient(model, usable[device])
        if request.sketch_dimension:
            vector = sketch(vector, request.sketch_dimension, request.sketch_seed)
        result = wire.gradient_arrays(vector)
    else:
        optimiser = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
        steps = local.LocalSteps(
            steps=request.local_steps,
            iteration=request.iteration,
            batch_size=config.batch_size,
            seed=config.seed if config.simulation else None,
        )
        result = ArrayRecord(local.train(model, optimiser, state, usable, steps))
    return wire.reply_content(result, sum(samples.values()), list(usable))


@lru_cache(maxsize=1)
def _network(task: Task) -> nn.Module:
    """The network, whose values are replaced for every device."""
    return create_model(task, seed=0)


def _data(config: WirelessConfig, context: Context, device: int) -> DeviceData | None:
    try:
        if config.simulation:
            found = simulated_device(config, device)
        else:
            found = own_data(str(context.node_config["data"]))
        if len(found.labels) == 0:
            raise ValueError("it has no images")
    except Exception as error:
        log(ERROR, "device %d has no usable data: %s: %s", device, type(error).__name__, error)
        return None
    return found


def _task(
    config: WirelessConfig, usable: dict[int, DeviceData], state: dict[str, torch.Tensor]
) -> Task:
    """What the model must fit; a real device knows its images' shape and the model's classes."""
    if config.simulation:
        return task(config)
    channels, height, width = next(iter(usable.values())).images.shape[1:]
    return Task((height, width, channels), len(list(state.values())[-1]))
