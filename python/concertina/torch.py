"""Concertina for PyTorch: a Run whose world is a torch.distributed process group.

    import concertina.torch as elastic

    run = elastic.Run(state={"net": net, "opt": opt}, epochs=30, global_batch=128, micro_batch=64, seed=0)

    def train(world):
        ddp = DistributedDataParallel(net, init_sync=False)
        for epoch in run.epochs():
            for step in run.steps(data):
                opt.zero_grad()
                for (x, y), weight in step.micro_batches(ddp):
                    (weight * F.cross_entropy(ddp(x), y)).backward()
                opt.step()
                step.report(loss=loss)

    run(train)

When a rank is lost the others make the step that it was in again, with the state that they have. They can as
long as no optimizer has begun its step, so what changes the state besides an optimizer comes after it.

Gradients are those of the whole batch for any number of ranks. What a model computes across the
samples of a batch (BatchNorm) or draws at random (dropout, augmentation) still depends on how the
batch was divided.
"""

import contextlib
import datetime
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import Dataset, TensorDataset, default_collate

from concertina import run as _run
from concertina.agent import AgentError
from concertina.loader import Loader
from concertina.session import WorldChanged
from concertina.tensors import Buffers, Random, TensorCodec, copy_groups
from concertina.world import Assignment, World

__all__ = ["AgentError", "Loader", "Run", "Step", "World", "WorldChanged"]

_CONNECT_TIMEOUT = datetime.timedelta(seconds=2)
_STORE_TIMEOUT = datetime.timedelta(minutes=5)
_GIVE_UP = 150  # connection attempts of two seconds


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

    The group is there whenever the training function is called, and gone when the run has
    returned. In each world it is another one: make what depends on it, such as
    DistributedDataParallel, in the training function.
    """

    def __init__(
        self,
        *,
        epochs: int,
        global_batch: int,
        state: Mapping[str, Any] | None = None,
        micro_batch: int | None = None,
        seed: int = 0,
        backend: str | None = None,
    ):
        """state: the model (not the wrapped one), the optimizer and whatever else training
        changes; see concertina.Run. PyTorch's random numbers are kept with it, in the way of Python's.

        backend: as torch.distributed names it; by default nccl where there is a CUDA device
        (each process then uses the one of its local rank), gloo otherwise.
        """
        super().__init__(epochs=epochs, global_batch=global_batch, state=state, micro_batch=micro_batch, seed=seed)
        self._backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        self._launched = _launcher_has_store()
        self._buffers = Buffers()

    def __call__(self, train: Callable[[World], Any]) -> Any:
        hook = register_optimizer_step_pre_hook(lambda *_: self._optimizer_steps())
        try:
            return super().__call__(train)
        finally:
            hook.remove()

    __call__.__doc__ = _run.Run.__call__.__doc__

    def loader(self, data: Dataset, **options: Any) -> Loader:
        """A DataLoader over a map-style data set, for steps(): its workers read ahead.

        Make it once, outside of the training function: its workers live on from world to world.
        What they have read and nobody has used is read again in the next world. options are those
        of torch.utils.data.DataLoader, without batch_size, shuffle, sampler, batch_sampler and
        drop_last: the run decides these.
        """
        return Loader(data, options)

    def steps(self, data: Sequence | Loader, collate: Callable[[list], Any] | None = None) -> Iterator[Step]:
        """The steps of the present epoch that are not done, over data: a map-style data set, or
        what loader() has made; see concertina.Run.

        collate makes a batch of a list of samples (default: torch.utils.data.default_collate); a
        Loader has its own.
        """
        if collate and isinstance(data, Loader):
            raise ValueError("collate with a Loader: give run.loader(…, collate_fn=…) instead")
        return super().steps(data, collate)

    def _optimizer_steps(self) -> None:
        """An optimizer is about to write. What it writes must not come of an exchange that was broken off. Of one
        between devices only they know: a communicator that is aborted leaves whatever was there."""
        self._keeper.fence()
        if self._session is None or self._session.agent is None or self._live.writing:
            return
        if "nccl" in self._backend:
            torch.cuda.current_stream().synchronize()
            if self._session.aborted:
                raise WorldChanged
        self._begin_update()

    def _copies(self) -> list[Callable[[], None]]:
        return [*super()._copies(), self._buffers.copy()]

    def _copy_of(self, thing: Any) -> Callable[[], None] | None:
        if isinstance(thing, Optimizer):
            return copy_groups(thing)
        if isinstance(thing, LRScheduler):  # It may hold the rate as a tensor.
            return _run.copy_whole(thing, thing.state_dict())
        return super()._copy_of(thing)

    def _forget_step(self) -> None:
        for thing in (self._state or {}).values():
            if isinstance(thing, Module | Optimizer):
                thing.zero_grad(set_to_none=True)
            elif isinstance(thing, torch.amp.GradScaler):
                thing._per_optimizer_states.clear()  # It takes a step for what it was in the middle of otherwise.

    def _enter(self, assigned: Assignment) -> None:
        self._buffers.watch(thing for thing in (self._state or {}).values() if isinstance(thing, Module))
        super()._enter(assigned)
        if "nccl" in self._backend and assigned.world.size > 1:
            # What the training function exchanges before its first step may be written into the model, as
            # DistributedDataParallel does, and be half of it: devices do not tell.
            self._live.doubt()

    def _form(self, world: World, listener: socket.socket | None) -> None:
        if torch.cuda.is_available() and self._backend == "nccl":
            torch.cuda.set_device(world.local_rank)
        if world.size == 1:
            if listener:
                listener.close()
            _init_group(self._backend, store=dist.HashStore(), rank=0, world_size=1)
        elif world.round == 0 or self._launched:
            # The launcher's store serves the first world; later ones are the agent's.
            self._launched = False
            _init_group(self._backend, init_method="env://")
        else:
            store = dist.PrefixStore(f"{world.term}/{world.round}", self._open_store(world, listener))
            _init_group(self._backend, store=store, rank=world.rank, world_size=world.size)

    def _open_store(self, world: World, listener: socket.socket | None) -> dist.TCPStore:
        """The store of a world; a rank 0 that is not there yet is tried again, in short attempts,
        so that an abort is noticed between two."""
        for attempt in range(_GIVE_UP):
            try:
                store = open_store(world, listener, _CONNECT_TIMEOUT)
                store.set_timeout(_STORE_TIMEOUT)
                return store
            except dist.DistError:
                if self._session.aborted:
                    raise WorldChanged from None
                if listener or world.rank == 0 or attempt == _GIVE_UP - 1:
                    raise
        raise AssertionError("unreachable")

    def _leave(self) -> None:
        if not dist.is_initialized():
            return
        # A process group ends gloo's threads while it holds the interpreter's lock, and one of them
        # may be waiting for that lock to let go of a tensor: then both wait for ever. The backend
        # object lets the lock go first, so it has to be the last one.
        backend = dist.group.WORLD._get_backend(torch.device("cpu")) if "gloo" in self._backend else None
        dist.destroy_process_group()
        del backend

    def _settle(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def _interrupt(self) -> None:
        super()._interrupt()
        if "nccl" in self._backend and dist.is_initialized():
            backend = dist.group.WORLD._get_backend(torch.device("cuda"))
            abort = getattr(backend, "abort", None) or getattr(backend, "_abort", None)
            if abort:
                abort()

    def _make_codec(self) -> TensorCodec:
        return TensorCodec(lambda: [thing for thing in (self._state or {}).values() if isinstance(thing, Module)])

    def _random_state(self) -> dict[str, Any]:
        return super()._random_state() | {"concertina.torch": Random()}

    def _loader_of(self, data: Sequence | Loader, collate: Callable[[list], Any] | None) -> Callable[[range], Any]:
        if isinstance(data, Loader):
            return data.batches(lambda: self._ahead(len(data)), self._order(len(data)))
        return super()._loader_of(data, collate)

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


def _init_group(backend: str, **where: Any) -> None:
    """Makes the process group of a world.

    PyTorch counts the groups that a process has begun to make, and ranks find each other under that
    number; only the end of a group that was made sets it back. So when this one fails another is made
    and ended, of this process alone: a rank that was on its way into a world that broke would wait for
    ever in the next one for those that were not.
    """
    try:
        dist.init_process_group(backend, **where)
    except BaseException:
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            dist.destroy_process_group()
        raise


def open_store(world: World, listener: socket.socket | None, timeout: datetime.timedelta) -> dist.TCPStore:
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
        timeout=timeout,
        wait_for_workers=False,
        use_libuv=False,
        **serve,
    )


def _launcher_has_store() -> bool:
    """Whether torchrun started this process: the master port is its own then."""
    return "TORCHELASTIC_USE_AGENT_STORE" in os.environ
