"""ClientApp: tells which devices a node hosts, and computes their gradients and local steps.

On a device every message starts a new process. What a round needs is therefore imported in
``train`` alone: the query answers without torch.
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from strategies.clients import hosted_clients
from strategies.wire import QUERY_CLIENTS, hosted_content
from wireless_cfl_app.config import from_run_config

app = ClientApp()


@app.query(QUERY_CLIENTS)
def query_devices(message: Message, context: Context) -> Message:
    """Say which devices live here. Touches no data."""
    config = from_run_config(context.run_config)
    devices, nodes = hosted_clients(
        context.node_config,
        simulation=config.simulation,
        clients_per_node=config.clients_per_node,
        clients=config.devices,
    )
    return Message(content=hosted_content(devices, nodes), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer for the devices asked; one without usable data is left out and named in the log."""
    from wireless_cfl_app.node import answer

    return Message(content=answer(message.content, context), reply_to=message)
