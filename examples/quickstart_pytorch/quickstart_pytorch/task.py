"""quickstart-pytorch: A Flower / PyTorch app."""

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TEST_IMAGES = 297


class Net(nn.Module):
    """A small CNN for images of 8 x 8 pixels."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 2 * 2, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


@cache
def load_images():
    """All images (1797, 1, 8, 8) in [0, 1] and their labels, in a fixed shuffled order."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16, dtype=torch.float32).unsqueeze(1)
    return images, torch.tensor(digits.target[order])


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    """A client's train and validation data; clients of odd number hold their images upside down."""
    images, labels = load_images()
    mine = slice(TEST_IMAGES + partition_id, None, num_partitions)
    images, labels = images[mine], labels[mine]
    if partition_id % 2:
        images = images.flip(2, 3)
    cut = len(images) * 4 // 5
    train = TensorDataset(images[:cut], labels[:cut])
    validation = TensorDataset(images[cut:], labels[cut:])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(validation, batch_size)


def load_test_data(upside_down: bool):
    """Images of no client, to evaluate on the server."""
    images, labels = load_images()
    images, labels = images[:TEST_IMAGES], labels[:TEST_IMAGES]
    return DataLoader(TensorDataset(images.flip(2, 3) if upside_down else images, labels), 99)


def train(net, trainloader, epochs, lr, device):
    """Train the model; returns the sum of the losses and the number of steps."""
    net.to(device).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    running_loss, steps = 0.0, 0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
            steps += 1
    return running_loss, steps


def test(net, testloader, device):
    """Mean loss and accuracy."""
    net.to(device).eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images.to(device))
            loss += F.cross_entropy(outputs, labels.to(device), reduction="sum").item()
            correct += (outputs.argmax(1).cpu() == labels).sum().item()
    count = len(testloader.dataset)
    return loss / count, correct / count
