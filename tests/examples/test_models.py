"""Any model whose trainable arrays fit an ArrayRecord, written as a plain Flower app."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from torch import nn
from torch.nn import functional as F

from app_kit.in_process_grid import InProcessGrid
from strategies import PINA, ClusteredStrategy, cluster_arrays
from strategies.clientapp import ClientApp
from tests.strategies.plain_apps import client_of

CLIENTS = 8


def reply(message: Message, arrays: ArrayRecord | None, **metrics: float) -> Message:
    content = RecordDict(
        {"metrics": MetricRecord({k.replace("_", "-"): v for k, v in metrics.items()})}
    )
    if arrays is not None:
        content["arrays"] = arrays
    return Message(content=content, reply_to=message)


# --- scikit-learn -----------------------------------------------------------------------------


def linear_model(arrays: ArrayRecord) -> SGDClassifier:
    """A linear classifier with given weights; float64, as scikit-learn has them."""
    model = SGDClassifier(loss="log_loss", alpha=1e-4, learning_rate="constant", eta0=0.02)
    model.classes_ = np.arange(10)
    model.coef_ = np.array(arrays["coef"].numpy())
    model.intercept_ = np.array(arrays["intercept"].numpy())
    model.t_ = 1.0
    return model


def digits(client: int) -> tuple[np.ndarray, np.ndarray]:
    """Digits of a client; every second one inverts black and white. -1: test data."""
    x, y = load_digits(return_X_y=True)
    part = np.arange(len(y)) % (CLIENTS + 1) == (CLIENTS if client < 0 else client)
    return (1 - x[part] / 16 if client % 2 and client > 0 else x[part] / 16), y[part]


def sklearn_app() -> ClientApp:
    app = ClientApp(embedding=lambda context: (digits(client_of(context))[0].mean(0) - 0.5) / 8)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x, y = digits(client_of(context))
        model = linear_model(message.content["arrays"])
        for _ in range(3):
            model.partial_fit(x, y)
        arrays = {"coef": Array(model.coef_), "intercept": Array(model.intercept_)}
        return reply(message, ArrayRecord(arrays), num_examples=len(y))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        x, y = digits(client_of(context))
        model = linear_model(message.content["arrays"])
        loss = log_loss(y, model.predict_proba(x), labels=range(10))
        return reply(message, None, loss=loss, num_examples=len(y))

    return app


def test_a_scikit_learn_model_in_two_clusters() -> None:
    start = ArrayRecord({"coef": Array(np.zeros((10, 64))), "intercept": Array(np.zeros(10))})
    strategy = PINA.planned(
        clients=CLIENTS, rounds=11, epsilon=None, embedding_size=64, init_rounds=3, seed=0
    )
    result = strategy.start(InProcessGrid(sklearn_app(), CLIENTS), start, num_rounds=11)
    x, y = digits(-1)
    scores = []
    for arrays in cluster_arrays(result.arrays):
        assert arrays["coef"].dtype == "float64"
        model = linear_model(arrays)
        scores.append([model.score(x, y), model.score(1 - x, y)])
    best = np.array(scores)
    assert sorted(best.argmax(axis=0)) == [0, 1]
    assert best.max(axis=0).min() > 0.8


# --- a peft adapter of a text transformer -------------------------------------------------------

WORDS, LENGTH = 20, 8


class TextClassifier(nn.Module):
    """One layer of a transformer over word ids; from a configuration, nothing is downloaded."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layer(self.embed(ids)).mean(dim=1))
        return logits


def adapted() -> Any:
    """The frozen model, equal everywhere, with a LoRA adapter and a trained head."""
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["linear1", "linear2"], modules_to_save=["head"])
    return get_peft_model(TextClassifier(), config)


def texts(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sentences; the label says whether most words are of the first half of the dictionary."""
    rng = torch.Generator().manual_seed(100 + client)
    label = torch.randint(0, 2, (80,), generator=rng)
    low = torch.rand((80, LENGTH), generator=rng) < torch.where(label == 1, 0.85, 0.15)[:, None]
    word = torch.randint(0, WORDS // 2, (80, LENGTH), generator=rng)
    return torch.where(low, word, word + WORDS // 2), label


def adapter_of(model: Any) -> ArrayRecord:
    return ArrayRecord({n: v.detach().clone() for n, v in get_peft_model_state_dict(model).items()})


def peft_app() -> ClientApp:
    app = ClientApp(embedding=lambda context: np.ones(4) * 0.1)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = adapted()
        set_peft_model_state_dict(model, message.content["arrays"].to_torch_state_dict())
        ids, labels = texts(client_of(context))
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.3)
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(model(ids), labels).backward()
            optimizer.step()
        return reply(message, adapter_of(model), num_examples=len(labels))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = adapted()
        set_peft_model_state_dict(model, message.content["arrays"].to_torch_state_dict())
        ids, labels = texts(client_of(context))
        with torch.no_grad():
            loss = float(F.cross_entropy(model.eval()(ids), labels))
        return reply(message, None, eval_loss=loss, num_examples=len(labels))

    return app


@pytest.mark.parametrize("private", [False, True])
def test_a_peft_adapter_of_a_text_transformer(private: bool) -> None:
    """Only the adapter and the head travel; with privacy PINA runs the same app."""
    start = adapter_of(adapted())
    everything = sum(p.numel() for p in adapted().parameters())
    travelling = sum(array.numpy().size for array in start.values())
    assert any("lora_B" in name for name in start)
    assert travelling < everything / 4
    grid = InProcessGrid(peft_app(), CLIENTS)
    strategy: ClusteredStrategy
    if private:
        strategy = PINA.planned(
            clients=CLIENTS,
            rounds=10,
            epsilon=8,
            embedding_size=4,
            noise_cohort_size=10_000,
            seed=0,
        )
    else:
        strategy = ClusteredStrategy.planned(clients=CLIENTS, rounds=5, epsilon=None, seed=0)
    result = strategy.start(grid, start, num_rounds=strategy.total_rounds)
    ids, labels = texts(99)
    best = 0.0
    for arrays in cluster_arrays(result.arrays):
        model = adapted()
        set_peft_model_state_dict(model, arrays.to_torch_state_dict())
        with torch.no_grad():
            best = max(best, float((model.eval()(ids).argmax(1) == labels).float().mean()))
    assert best > 0.85
