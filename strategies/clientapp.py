"""Flower's ClientApp with the client's side of our strategies in front.

``from strategies.clientapp import ClientApp`` in place of ``from flwr.clientapp import ClientApp``
is all that a client needs: its functions stay as they are, and Flower's own strategies still work.
"""

from typing import Any

from flwr import clientapp
from flwr.app import Context, Message
from flwr.clientapp.typing import Mod

from strategies.client_mod import ClientMod, Embedding, Loss


class ClientApp(clientapp.ClientApp):
    """A ClientApp that takes part in the rounds of ``strategies``.

    Parameters
    ----------
    client_fn, mods
        As for Flower's ClientApp. Mods see the plain messages of FedAvg.
    embedding, loss, prototype_weight, private
        See ``strategies.client_mod.ClientMod``.
    """

    def __init__(
        self,
        client_fn: Any = None,
        mods: list[Mod] | None = None,
        *,
        embedding: Embedding | None = None,
        loss: Loss | None = None,
        prototype_weight: float = 1.0,
        private: bool = False,
    ) -> None:
        super().__init__(client_fn, mods)
        self._mod = ClientMod(
            embedding=embedding,
            loss=loss,
            prototype_weight=prototype_weight,
            private=private,
            evaluates=lambda: client_fn is not None or "evaluate.default" in self._registered_funcs,
            legacy=client_fn is not None,
        )

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message: rounds and queries of our strategies here, all else as Flower does."""
        return self._mod(message, context, super().__call__)
