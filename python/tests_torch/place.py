"""Where the members of a world compute, for the tests: TEST_DEVICE, by default cpu, and TEST_BACKEND, which exchanges for them, by default
gloo."""

import os

import torch


def device() -> torch.device:
    return torch.device(os.environ.get("TEST_DEVICE", "cpu"))


def backend() -> str:
    return os.environ.get("TEST_BACKEND", "gloo")


def share_one_device() -> None:
    """Has this process exchange by NCCL with others on the same device, which it refuses two ranks of one machine."""
    if backend() == "nccl":
        os.environ["NCCL_HOSTID"] = str(os.getpid())
        torch.cuda.set_device = lambda of: None  # the only one, whatever the local rank
