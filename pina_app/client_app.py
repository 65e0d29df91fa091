"""ClientApp: tells which clients a node hosts, and computes their part of a round.

On a device every message starts a new process. What a round needs is therefore imported in
``train`` alone: the query answers without torch.
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pina_app.config import from_run_config
from strategies import wire
from strategies.clients import hosted_clients

app = ClientApp()


@app.query(wire.QUERY_CLIENTS)
def query_clients(message: Message, context: Context) -> Message:
    """Say which clients live here, and keep the public arrays. Touches no data."""
    config = from_run_config(context.run_config)
    wire.keep_public(context.state, message.content)
    clients, nodes = hosted_clients(
        context.node_config,
        simulation=config.simulation,
        clients_per_node=config.clients_per_node,
        clients=config.clients,
    )
    return Message(content=wire.hosted_content(clients, nodes), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Compute this node's contribution to a round."""
    if not wire.has_public(context.state):
        return Message(content=wire.lost_state(), reply_to=message)
    from pina_app.node import contribution

    return Message(content=contribution(message.content, context), reply_to=message)
