"""Takes the place of ``pina_app/node.py`` in the bundle of the fault tests.

Client k adds 1 to number k of the model and nothing else: the model then says in how many rounds
each client was counted. Whoever finds a number in the file ``hold`` beside its data waits from that
round on, until the file is gone.
"""

import time
from pathlib import Path

import numpy as np
from flwr.app import Context, RecordDict

from strategies import wire


def contribution(content: RecordDict, context: Context) -> RecordDict:
    """The reply to a round's request."""
    request, clients, _, _ = wire.read_round(content)
    folder = Path(str(context.node_config["data"])).parent
    (folder / f"working-{request.round}").touch()
    while (folder / "hold").exists() and request.round >= int((folder / "hold").read_text()):
        time.sleep(0.1)
    updates = np.zeros((len(clients), request.width))
    updates[np.arange(len(clients)), clients] = 1.0
    total, _ = request.layout.encode(updates, np.zeros(len(clients), dtype=np.intp))
    return wire.contribution(total)
