"""Concertina for PyTorch: a Run whose world is a torch.distributed process group.

    import concertina.torch as elastic

    run = elastic.Run(epochs=30, global_batch=128, micro_batch=64, seed=0)

    def train(world):
        ddp = DistributedDataParallel(net)
        for epoch in run.epochs():
            for step in run.steps(data):
                opt.zero_grad()
                for (x, y), weight in step.micro_batches(ddp):
                    (weight * F.cross_entropy(ddp(x), y)).backward()
                opt.step()
                step.report(loss=loss)

    run(train)

Gradients are those of the whole batch for any number of ranks. What a model computes across the
samples of a batch (BatchNorm) or draws at random (dropout, augmentation) still depends on how the
batch was divided.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.utils.data import TensorDataset, default_collate

from concertina import run as _run
from concertina.agent import AgentError
from concertina.world import World

__all__ = ["AgentError", "Run", "Step", "World"]


class Step(_run.Step):
    """One optimizer update, as one rank sees it."""

    def micro_batches(self, model: Module | None = None) -> Iterator[tuple[Any, float]]:
        """This rank's part of the step in pieces: (batch, weight) pairs; see concertina.Step.

        model is the DistributedDataParallel or similar whose gradients are exchanged: that then
        happens in the last piece only.
        """
        last = len(self._pieces) - 1
        for i, piece in enumerate(super().micro_batches()):
            with model.no_sync() if model is not None and i < last else contextlib.nullcontext():
                yield piece


class Run(_run.Run):
    """A training run in a torch.distributed process group; see concertina.Run.

    The group is there when the training function is called, and gone when the run has returned.
    """

    def __init__(
        self,
        *,
        epochs: int,
        global_batch: int,
        micro_batch: int | None = None,
        seed: int = 0,
        backend: str | None = None,
    ):
        """backend: as torch.distributed names it; by default nccl where there is a CUDA device
        (each process then uses the one of its local rank), gloo otherwise."""
        super().__init__(epochs=epochs, global_batch=global_batch, micro_batch=micro_batch, seed=seed)
        self._backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")

    def steps(self, data: Sequence, collate: Callable[[list], Any] | None = None) -> Iterator[Step]:
        """The steps of the present epoch over data, a map-style data set; see concertina.Run.

        collate makes a batch of a list of samples (default: torch.utils.data.default_collate).
        """
        return super().steps(data, collate)

    def _form(self, world: World, listener: socket.socket | None) -> None:
        if torch.cuda.is_available() and self._backend == "nccl":
            torch.cuda.set_device(world.local_rank)
        if world.size == 1:
            if listener:
                listener.close()
            dist.init_process_group(self._backend, store=dist.HashStore(), rank=0, world_size=1)
        elif world.round == 0 or _launcher_has_store():
            dist.init_process_group(self._backend, init_method="env://")
        else:
            store = dist.PrefixStore(f"{world.term}/{world.round}", open_store(world, listener))
            dist.init_process_group(self._backend, store=store, rank=world.rank, world_size=world.size)

    def _leave(self) -> None:
        # A process group ends gloo's threads while it holds the interpreter's lock, and one of them
        # may be waiting for that lock to let go of a tensor: then both wait for ever. The backend
        # object lets the lock go first, so it has to be the last one.
        backend = dist.group.WORLD._get_backend(torch.device("cpu")) if "gloo" in self._backend else None
        dist.destroy_process_group()
        del backend

    def _fetcher(self, data: Sequence, collate: Callable[[list], Any] | None) -> Callable[[list[int]], Any]:
        if isinstance(data, TensorDataset) and collate is None:
            # One gather per tensor instead of one small tensor per sample.
            return lambda numbers: tuple(tensor[numbers] for tensor in data.tensors)
        join = collate or default_collate
        if hasattr(data, "__getitems__"):
            return lambda numbers: join(data.__getitems__(numbers))
        return super()._fetcher(data, join)

    def _make_step(self, *args: Any) -> Step:
        return Step(self, *args)


def open_store(world: World, listener: socket.socket | None) -> dist.TCPStore:
    """The store at the world's master port; rank 0 serves it.

    listener is the master port's socket where the agent has handed it over; the store takes it.
    """
    serve = {"master_listen_fd": listener.detach()} if listener else {}
    # Without libuv: that server takes no socket that is bound already, some builds lack it, and
    # the protocol is the same.
    return dist.TCPStore(
        world.master_address,
        world.master_port,
        world_size=world.size,
        is_master=world.rank == 0,
        wait_for_workers=False,
        use_libuv=False,
        **serve,
    )


def _launcher_has_store() -> bool:
    """Whether torchrun started this process: the master port is its own then."""
    return "TORCHELASTIC_USE_AGENT_STORE" in os.environ
