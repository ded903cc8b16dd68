"""The process group of torch.distributed in each world."""

import contextlib
import datetime
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
import torch.distributed as dist

from concertina.session import WorldChanged
from concertina.shards import Rank
from concertina.world import World

_CONNECT_TIMEOUT = datetime.timedelta(seconds=2)
_STORE_TIMEOUT = datetime.timedelta(minutes=5)
_GIVE_UP = 150  # connection attempts of two seconds
_MEETING = 30.0
"""Seconds for which ranks that know how to do something wait for the others to say whether they do, where a group is made before all are there."""
_LOOK = 0.05
_ALL, _SOME = "all", "some"
# A thread of PyTorch's watches NCCL's exchanges, and ends the process when a peer has gone. Here the agent breaks them off, and
# the process lives on. Before it does anything about an exchange that has failed that thread sleeps for four times as long as
# it has to write down what happened, a minute, and who takes the group apart waits for it; one that is to see to the writing
# sleeps for 8 minutes more. So it has no time for that, and nothing is written. PyTorch reads these when a group is made.
_WATCHDOG = {"ASYNC_ERROR_HANDLING": "0", "RETHROW_CUDA_ERRORS": "0", "DUMP_ON_TIMEOUT": "0", "WAIT_TIMEOUT_DUMP_MILSEC": "0"}


class Groups:
    """Makes one group after another, of which one is there at a time: torch.distributed's default group."""

    def __init__(self, backend: str | None):
        """backend: as torch.distributed names it; by default nccl where there is a CUDA device, gloo otherwise."""
        self.backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        self._launched = _launcher_has_store()
        self.everyone: dist.ProcessGroup | None = None
        """The group of all ranks of the world; None where that is the default group."""
        self.together = False
        """Whether the processes of a worker compute one result together, of the same samples."""
        self.lockstep = False
        """Whether ranks that have samples of their own wait for each other within the model."""
        self.kind = ""
        """Ranks of a world meet where they have been told the same of it."""
        self.knows = ""
        """What this rank knows how to do with others, where all of them do; empty for nothing."""
        self.says = ""
        """What it tells the others of that."""
        self.heard: list[str] | None = None
        """What each rank of the world that was formed has told of what this one knows; None where not all know it. All that know it have
        heard the same."""
        self.store: dist.Store | None = None
        """Where the ranks of that world meet; None where it has none of its own."""

    @property
    def by_device(self) -> bool:
        """Whether only the devices know how an exchange has ended."""
        return "nccl" in self.backend

    @property
    def by_gloo(self) -> bool:
        """Whether gloo alone exchanges, whatever a tensor is on."""
        return {name.rpartition(":")[2] for name in self.backend.lower().split(",")} == {"gloo"}

    @property
    def device(self) -> torch.device | None:
        """The device of this process that they exchange between; None where they do so between processors as well."""
        return torch.device("cuda", torch.cuda.current_device()) if self.by_device else None

    def dealt(self, world: World) -> Rank:
        """Which one of those that samples are dealt out to this process is."""
        return Rank(world.rank, world.size)

    def repeats(self, world: World) -> int:
        """How many ranks compute each sample."""
        return 1

    @property
    def alike(self) -> dist.ProcessGroup | None:
        """The group of those that have the same shards; None where nobody has."""
        return None

    def replicas(self, world: World) -> tuple[Rank, dist.ProcessGroup | None]:
        """Which one of those that have the same state this process is, and the group of these; None for the default group."""
        return Rank(world.rank, world.size), self.everyone

    def means(self, world: World) -> int:
        """Over how many ranks gradients of shards are means when a backward pass has ended."""
        return world.size

    def form(self, world: World, listener: socket.socket | None, aborted: Callable[[], bool]) -> None:
        """Connects the ranks of a world. Raises WorldChanged once that has been aborted, and RuntimeError beside a default group that
        the program has made."""
        if dist.is_initialized():
            raise RuntimeError("a process group is there already: leave dist.init_process_group() out, the loop makes one in each world")
        if torch.cuda.is_available() and self.by_device:
            torch.cuda.set_device(world.local_rank)
        if world.round and self.by_device:
            self.prepare()
        self.heard = self.store = None
        if world.size == 1:
            if listener:
                listener.close()
            _init_group(self.backend, store=dist.HashStore(), rank=0, world_size=1)
            self.heard = [self.says] if self.knows else None
        elif world.round == 0 or self._launched:
            # The launcher's store serves the first world; later ones are the agent's.
            self._launched = False
            _init_group(self.backend, init_method="env://")
        else:
            # The round alone: an operator that takes over tells the same world under a term of its own to those who have not entered it yet.
            store = dist.PrefixStore(f"{world.round}{self.kind}", find_store(world, listener, aborted))
            if self.knows:
                # Before it says there where its peers find it: once they have found each other, all have said so, or never will.
                store.set(f"concertina-{self.knows}-{world.rank}", self.says)
                store.add(f"concertina-{self.knows}", 1)
            _init_group(self.backend, store=store, rank=world.rank, world_size=world.size)
            self.store = store
            if self.knows:
                self.heard = hear(store, f"concertina-{self.knows}", world.size, aborted)

    @staticmethod
    def prepare() -> None:
        """Has the process outlive its peers."""
        outlive_peers(os.environ)

    def reseed(self, seed: int) -> None:
        """Begins anew what devices draw for several ranks together."""

    def agree(self, weight: float, losses: torch.Tensor | float, norms: Mapping[str, torch.Tensor]) -> None:
        """Waits until all that have shards of one model know that an exchange has ended. Those that compute together compare the sums of
        their weights, and of losses times these, and the norms of gradients of whole parameters by name; see compare()."""

    def compare(self) -> None:
        """Raises RuntimeError where processes that compute one result together have told different ones."""

    def leave(self) -> None:
        """Takes the group apart, or as much of it as is there."""
        self.store = None
        if not dist.is_initialized():
            return
        for group in _groups():  # those of the program's own as well, which may hold them for longer
            _outlive(group)
        dist.destroy_process_group()

    def abort(self, limit: float | None = None) -> None:
        """Breaks off what its devices exchange, in the groups of the program as well. May be called in another thread, and
        in two at a time. Returns after so many seconds at the latest: a device that hangs lets nobody break anything off."""
        if not self.by_device or not dist.is_initialized():
            return
        # All at once: the exchange of one may stand behind that of another on a device.
        threads = [threading.Thread(target=_abort, args=(group,), daemon=True) for group in _groups()]
        for thread in threads:
            thread.start()
        by = None if limit is None else time.monotonic() + limit
        for thread in threads:
            thread.join(None if by is None else max(0.0, by - time.monotonic()))


def outlive_peers(env: MutableMapping[str, str]) -> None:
    """Has a process outlive its peers in groups of NCCL, unless the user wants it otherwise."""
    for name, value in _WATCHDOG.items():
        if f"NCCL_{name}" not in env:  # as it was called once
            env.setdefault(f"TORCH_NCCL_{name}", value)


def _groups() -> list[dist.ProcessGroup]:
    """All groups that there are, those of the program as well."""
    return [*dist.distributed_c10d._world.pg_names]


def _outlive(group: dist.ProcessGroup) -> None:
    """Has the backend by which processors exchange in a group be the last that goes of it, whoever lets go of the group, and when.

    A group ends gloo's threads while it holds the interpreter's lock, and one of them may be waiting for that lock to let go of a tensor: then
    both wait for ever. A backend's own object lets the lock go first.
    """
    if backend := _of_processors(group):
        weakref.finalize(group, lambda _: None, backend).atexit = False


def _of_processors(group: dist.ProcessGroup) -> Any:
    """The backend by which processors exchange in a group; None where it has none."""
    with contextlib.suppress(RuntimeError):
        return group._get_backend(torch.device("cpu"))
    return None


def _abort(group: dist.ProcessGroup) -> None:
    # Of a library that is broken off in the middle of anything, or a group that has no such backend: it is tried again.
    with contextlib.suppress(Exception):
        backend = group._get_backend(torch.device("cuda"))
        abort = getattr(backend, "abort", None) or getattr(backend, "_abort", None)
        if abort:
            abort()


def _init_group(backend: str, **where: Any) -> None:
    """Makes the process group of a world.

    PyTorch counts the groups that a process has begun to make, and ranks find each other under that
    number; only the end of a group that was made sets it back. So when this one fails another is made
    and ended, of this process alone: a rank that was on its way into a world that broke would wait for
    ever in the next one for those that were not.
    """
    try:
        dist.init_process_group(backend, **where)
    except BaseException as error:
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            dist.destroy_process_group()
        if isinstance(error, dist.DistStoreError):  # It says which key, and not what that means.
            raise RuntimeError(f"peers of this world have not come: {' '.join(str(error).split())}") from error
        raise


def hear(store: dist.Store, key: str, size: int, aborted: Callable[[], bool]) -> list[str] | None:
    """What each of so many ranks has said under a key, of which one has as many say so; None where some say nothing, since they know nothing
    of it. All that know of it call it, and get the same. Raises WorldChanged once the world is aborted, and RuntimeError when its store is gone.

    As a rule the ranks have found each other by then, and who has said nothing never will. Not so where gloo connects a rank with another one
    only once they exchange something. So the first one that has seen them all, or has waited for long enough, decides for all.
    """
    by = time.monotonic() + (_MEETING if _connects_late(os.environ) else 0.0)
    decided = f"{key}-by"
    while True:
        if store.add(key, 0) >= size:
            found = store.compare_set(decided, "", _ALL)
        elif time.monotonic() >= by:
            found = store.compare_set(decided, "", _SOME)
        elif store.check([decided]):
            found = store.get(decided)
        elif aborted():
            raise WorldChanged
        else:
            time.sleep(_LOOK)
            continue
        break
    return [told.decode() for told in store.multi_get([f"{key}-{rank}" for rank in range(size)])] if found == _ALL.encode() else None


def _connects_late(env: Mapping[str, str]) -> bool:
    """Whether gloo makes a group before its ranks have found each other. PyTorch reads it so."""
    return env.get("TORCH_GLOO_LAZY_INIT", "").lower() in ("y", "yes", "1", "t", "true")


def find_store(world: World, listener: socket.socket | None, aborted: Callable[[], bool]) -> dist.TCPStore:
    """The store of a world; a rank 0 that is not there yet is tried again, in short attempts,
    so that an abort is noticed between two."""
    for attempt in range(_GIVE_UP):
        try:
            store = _open_store(world, listener, _CONNECT_TIMEOUT)
            store.set_timeout(_STORE_TIMEOUT)
            return store
        except dist.DistError:
            if aborted():
                raise WorldChanged from None
            if listener or world.rank == 0 or attempt == _GIVE_UP - 1:
                raise
    raise AssertionError("unreachable")


def _open_store(world: World, listener: socket.socket | None, timeout: datetime.timedelta) -> dist.TCPStore:
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
