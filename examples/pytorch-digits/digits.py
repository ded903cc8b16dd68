"""Handwritten digits: the data, the model and its accuracy, for all the training programs."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset


def load() -> tuple[TensorDataset, TensorDataset]:
    """1437 images to train on and 360 to test with, 8×8 pixels each: every fifth is for testing."""
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images).float() / 16
    y = torch.from_numpy(labels)
    test = torch.arange(len(x)) % 5 == 0
    return TensorDataset(x[~test], y[~test]), TensorDataset(x[test], y[test])


def network(seed: int) -> torch.nn.Module:
    """A small fully connected network; the same seed gives the same one."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )


def ballast(mib: int) -> torch.nn.Module:
    """A module that makes a training's state larger: it holds so many MiB that never change."""
    module = torch.nn.Module()
    module.values = torch.nn.Parameter(torch.ones(mib, 2**18), requires_grad=False)
    return module


def correct(net: torch.nn.Module, data: TensorDataset, rank: int, size: int) -> torch.Tensor:
    """How many of this rank's images of data (every size-th) the network recognises."""
    device = next(net.parameters()).device
    x, y = (tensor[rank::size].to(device) for tensor in data.tensors)
    with torch.no_grad():
        return (net(x).argmax(dim=1) == y).sum()
