"""The processes of one worker that share a model, and the same model on all workers.

The group of a worker's processes lives as long as they do, as torch.distributed's default group, because modules that are sharded
over it keep it. What exchanges something in it is made anew after a world that was broken off: who waited there was freed by that,
and others may have left something half done. The groups across workers are those of one world.
"""

import atexit
import contextlib
import ctypes
import datetime
import errno
import functools
import hashlib
import math
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from concertina.connections import Connections
from concertina.groups import Groups, find_store
from concertina.session import WorldChanged
from concertina.shards import Rank
from concertina.world import World

MOST = 32
"""Processes of a worker that share a model, at most: a snapshot has so many shares."""
_NAME = "concertina"
_LIMIT = datetime.timedelta(minutes=5)
_POLL = 0.001
_ANSWER = 10.0
"""Seconds in which a process says its local rank, so that one that hangs keeps no other one waiting."""
_LINE = 32
_ROUNDING, _NOTHING = 1e-2, 1e-3
"""So far apart losses may be that are computed of the same samples, as a part of them, and where they are next to nothing."""
_APART, _TINY = 0.05, 1e-3
"""So far apart norms of one gradient may be, as a part of the norm, and nobody looks at those below this part of the largest one."""
_RANDOM = "torch.distributed.tensor._random"
_FORWARDED = (
    "allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce", "allreduce_coalesced",
    "alltoall", "alltoall_base", "barrier", "broadcast", "gather", "recv", "recv_anysource", "reduce", "reduce_scatter",
    "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "scatter", "send",
    # as they are called in later versions of PyTorch
    "all_gather_single", "all_gather_single_coalesced", "all_to_all_single", "gather_into_tensor", "gather_single",
    "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "_start_coalescing", "_end_coalescing",
)  # fmt: skip
"""What a group exchanges, by the names that PyTorch's versions have for it."""


def local_mesh(*, backend: str | None = None) -> DeviceMesh:
    """The processes of this worker, for models that they share: a mesh of one dimension, "local", which lives as long as they do.

    Every process of the worker calls it, before it builds the model and join()s; LOCAL_RANK and LOCAL_WORLD_SIZE say which
    processes these are. It waits for the others, 5 minutes at most. From then on torch.distributed's default group is
    that of these processes. Further calls return the same mesh.

    backend: as torch.distributed names it; by default nccl where there is a CUDA device (each process then uses the one of its local
    rank), gloo otherwise.

    Raises RuntimeError where the program has made a default group, and when the others do not come, ValueError for LOCAL_RANK and
    LOCAL_WORLD_SIZE out of range.
    """
    global _present
    if _present is None:
        _present = Local(backend)
    elif backend not in (None, _present.backend):
        raise ValueError(f"local_mesh(backend={backend!r}): the mesh is there already, with backend={_present.backend!r}")
    return _present.mesh


def local_of(mesh: DeviceMesh, backend: str | None) -> "Local":
    """What is behind a mesh. Raises ValueError for one that is not local_mesh()'s, or of another backend."""
    if _present is None or mesh is not _present.mesh:
        raise ValueError(
            f"mesh is {mesh}: give that of local_mesh(), which are the processes of this worker. A mesh over several workers is another "
            "one in each world: concertina.fsdp has one of all ranks"
        )
    if backend not in (None, _present.backend):
        raise ValueError(f"backend={backend!r} and a mesh of local_mesh(backend={_present.backend!r}): give it to that alone")
    return _present


class Local:
    """The group of a worker's processes."""

    def __init__(self, backend: str | None):
        if dist.is_initialized():
            raise RuntimeError("a process group is there already: call local_mesh() in place of dist.init_process_group()")
        self.rank, self.size = place_of(os.environ)
        self.backend = Groups(backend).backend
        if "nccl" in self.backend:
            torch.cuda.set_device(self.rank)
            if os.environ.get("CONCERTINA_SOCKET"):  # Alone a process that waits for one that has gone is to end.
                Groups.prepare()
        self._connections = Connections()
        self._port = 0
        self._serving, self._store = self._meet()
        self._whole = True
        self._naming = f"{_NAME}-local"
        dist.Backend.register_backend(_NAME, self._create, devices=["cpu", "cuda"])
        self._connections.begin()
        dist.init_process_group(_NAME, store=self._store, rank=self.rank, world_size=self.size)
        self._connections.close()
        self._group: _Group = dist.group.WORLD
        device = "cuda" if "nccl" in self.backend else "cpu"
        self.mesh = init_device_mesh(device, (self.size,), mesh_dim_names=("local",))
        atexit.register(self._end)

    def renew(self, world: World, aborted: Callable[[], bool]) -> None:
        """Makes sure that the processes can exchange something in a world: that none of them was freed of it, or left it half done.
        Raises WorldChanged once the world has been aborted."""
        if self.size == 1 or not world.round:
            return
        name = f"{world.term}.{world.round}"
        self._store.set(f"{name}/{self.rank}", "whole" if self._whole else "broken")
        all_of_them = [f"{name}/{rank}" for rank in range(self.size)]
        while not self._store.check(all_of_them):
            if aborted():
                raise WorldChanged
            time.sleep(_POLL)
        if all(self._store.get(key) == b"whole" for key in all_of_them):
            return
        self._whole = False
        self._group.empty()
        self._fill(f"{_NAME}-local-{name}", _client(self._port))  # A store of its own, whose connection an abort ends.
        self._whole = True

    def break_off(self) -> None:
        """Frees whoever waits for another process of the worker. May be called in another thread."""
        self._whole = False
        self._connections.shut_down()

    def make(self, name: str, store: dist.Store, rank: Rank) -> "_Group":
        """A group beside that of the worker's processes, whose own need not be in that."""
        self._naming, timeout = f"{_NAME}-{name}", c10d._get_default_timeout(self.backend)
        name = f"{self._naming}-outer"
        group, _ = c10d._new_process_group_helper(rank.of, rank.number, [], _NAME, dist.PrefixStore(name, store), name, timeout=timeout)
        c10d._world.pg_group_ranks[group] = {number: number for number in range(rank.of)}
        return group

    def _create(self, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> "_Group":
        group = _Group(rank, size)
        group.fill(self._naming, self.backend, store)
        return group

    def _fill(self, name: str, store: dist.Store) -> None:
        self._connections.begin()
        self._group.fill(name, self.backend, store)
        self._connections.close()

    def _meet(self) -> tuple[Any, dist.Store]:
        """What serves the store of this worker's processes, where this one does, and the store."""
        if self.size == 1:
            return None, dist.HashStore()
        by = time.monotonic() + _LIMIT.total_seconds()
        if self.rank:
            self._port = _ask(self.rank, by)
            store = _client(self._port)
            store.set(f"here/{self.rank}", "")
            return None, store
        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        serving = _client(self._port, is_master=True, master_listen_fd=listener.detach())
        _tell(self._port, self.size, by)
        # Once their connections are there, none of them is taken for one that a world has made, and ends with it.
        serving.wait([f"here/{rank}" for rank in range(1, self.size)], _LIMIT)
        return serving, serving

    def _end(self) -> None:
        self._group.outlive()


class _Group(dist.ProcessGroup):
    """A group whose exchanges another one makes, which may be replaced, and nobody else holds."""

    _inner: dist.ProcessGroup | None = None

    def fill(self, name: str, backend: str, store: dist.Store) -> None:
        """Connects the processes of the group, which know it under the same name."""
        self._backend = backend
        timeout = c10d._get_default_timeout(backend)
        self._inner, _ = c10d._new_process_group_helper(self.size(), self.rank(), [], backend, store, name, timeout=timeout)
        c10d._world.pg_group_ranks[self._inner] = {number: number for number in range(self.size())}

    def outlive(self) -> None:
        """Keeps the connections until the process has ended. Whatever is left of a module then may be the last that holds them, and would
        wait for their threads, which wait for the interpreter's lock."""
        if self._inner is not None and "gloo" in self._backend:
            backend = self._inner._get_backend(torch.device("cpu"))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(backend))

    def empty(self) -> None:
        """Lets go of the connections."""
        if self._inner is None:
            return
        # The backend object lets the interpreter's lock go before its threads are waited for, so it has to be the last one: see
        # Groups.leave().
        backend = self._inner._get_backend(torch.device("cpu")) if "gloo" in self._backend else None
        dist.destroy_process_group(self._inner)
        self._inner = None
        del backend

    def getBackendName(self) -> str:
        return _NAME

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def _forward(self, call: str, *arguments: Any, **options: Any) -> Any:
        if self._inner is None:
            raise RuntimeError("the world of this group is over: exchange something in the with block of a step alone")
        return getattr(self._inner, call)(*arguments, **options)


for _call in _FORWARDED:
    setattr(_Group, _call, functools.partialmethod(_Group._forward, _call))

_present: Local | None = None


class Replicas(Groups):
    """The groups of a world in which each worker has a whole model, of which each of its processes has its shards."""

    def __init__(self, local: Local, together: bool):
        """together: the processes of a worker compute one result together, of the same samples; otherwise each has samples of its own."""
        super().__init__(local.backend)
        self._local, self.together, self.lockstep = local, together, not together
        self._across: _Group | None = None
        self._told: torch.Tensor | None = None  # what the processes have told and nobody has looked at yet
        self._names: list[str] = []

    @property
    def alike(self) -> dist.ProcessGroup | None:
        return self._across

    def dealt(self, world: World) -> Rank:
        return Rank(world.worker_rank, world.workers) if self.together else super().dealt(world)

    def repeats(self, world: World) -> int:
        return world.local_size if self.together else 1

    def replicas(self, world: World) -> tuple[Rank, dist.ProcessGroup | None]:
        return Rank(world.worker_rank, world.workers), self._across

    def means(self, world: World) -> int:
        return world.local_size

    def form(self, world: World, listener: socket.socket | None, aborted: Callable[[], bool]) -> None:
        local = self._local
        if not dist.is_initialized():
            raise RuntimeError("the group of local_mesh() is gone: leave dist.destroy_process_group() out")
        if (world.local_rank, world.local_size) != (local.rank, local.size):
            raise RuntimeError(
                f"local_mesh() has rank {local.rank} of {local.size}, and this is local rank {world.local_rank} of {world.local_size}: "
                "LOCAL_RANK and LOCAL_WORLD_SIZE are not those of the worker's processes"
            )
        if world.round and local.size == 1:
            raise RuntimeError("a worker of one process shares nothing: set processesPerWorker, or leave mesh and fully_shard() out")
        if world.round and self.by_device:
            self.prepare()
        local.renew(world, aborted)
        store: dist.Store
        if world.size == 1:
            if listener:
                listener.close()
            store = dist.HashStore()
        elif world.round == 0 or self._launched:
            self._launched = False
            store, _, _ = next(iter(dist.rendezvous("env://", world.rank, world.size)))
        else:
            store = find_store(world, listener, aborted)
        store = dist.PrefixStore(f"{world.round}{self.kind}", store)  # as in Groups
        name = f"{world.round}"
        self.everyone = local.make(f"{name}-all", store, Rank(world.rank, world.size))
        self._across = local.make(f"{name}-local-{local.rank}", store, Rank(world.worker_rank, world.workers))

    def reseed(self, seed: int) -> None:
        """PyTorch counts what has been drawn for DTensors, which is not the same any more on processes that were broken off. The seed is to be
        another one than that of plain tensors, which would draw the same numbers."""
        if self.together and self.by_device:
            sys.modules[_RANDOM].manual_seed(seed, self._local.mesh)  # It is there since there are DTensors.

    def agree(self, weight: float, losses: torch.Tensor | float, norms: Mapping[str, torch.Tensor]) -> None:
        """One that goes on alone after an exchange would have another state than the others of its worker, which have not heard the
        end of theirs: so nobody goes on before all have."""
        if self._local.size == 1:
            return
        self.compare()  # of the step before, where a device has told it and nobody has waited for that
        told = torch.zeros(4 + 2 * len(norms), dtype=torch.float64, device=self.device or "cpu")
        if self.together:
            told[0], told[2] = weight, losses / weight if weight else 0.0
            if norms:
                told[4::2] = torch.stack([norm.to(told) for norm in norms.values()])
            told[1::2] = -told[::2]
        dist.all_reduce(told, dist.ReduceOp.MAX)
        if self.together:
            self._told, self._names = told, [*norms]
        if not self.by_device:
            self.compare()

    def compare(self) -> None:
        told, self._told = self._told, None
        if told is not None:
            numbers = told.tolist()
            differ(*numbers[:4])
            differ_in_norms(dict(zip(self._names, zip(numbers[4::2], numbers[5::2], strict=True), strict=True)))

    def leave(self) -> None:
        self._told = None
        groups, self.everyone, self._across = (self._across, self.everyone), None, None
        for group in groups:
            if group is not None:
                group.empty()
                dist.destroy_process_group(group)

    def abort(self, limit: float | None = None) -> None:
        self._local.break_off()
        super().abort(limit)


def differ(weight: float, least_weight: float, loss: float, least_loss: float) -> None:
    """Raises RuntimeError where processes that compute one result together have not seen the same: told are the largest of each number, and
    the least as the largest negative one. What is not finite says nothing."""
    least_weight, least_loss = -least_weight, -least_loss
    far = loss - least_loss > _ROUNDING * max(abs(loss), abs(least_loss)) + _NOTHING
    if weight != least_weight or (far and math.isfinite(loss - least_loss)):
        what, one, other = ("weight", least_weight, weight) if weight != least_weight else ("loss", least_loss, loss)
        raise RuntimeError(
            f"the processes of this worker compute together, and their {what} in this step is from {one:g} to {other:g}: all of them need "
            "the same samples from step.micro_batches(), with the same order and number in each batch. Draw what augments a sample "
            "from the step's random numbers, which are the same on them, and from nothing that each process has of its own; a loss is to "
            "be whole on each, or a DTensor"
        )


def differ_in_norms(norms: Mapping[str, tuple[float, float]]) -> None:
    """Raises RuntimeError where a parameter that each process has whole has another gradient on each: told are the largest norm of each, and
    the least as a negative one. Those that are next to nothing beside others may be what rounding has left."""
    largest = max((norm for norm, _ in norms.values() if math.isfinite(norm)), default=0.0)
    for name, (norm, least) in norms.items():
        if math.isfinite(norm) and norm + least > _APART * norm and norm > _TINY * largest:
            raise RuntimeError(
                f"{name} is a plain parameter, and the processes of this worker, which compute together, have gradients of it with norms from "
                f"{-least:g} to {norm:g}: each of them sees a part of the heads, features, sequence or samples, and has a part of its gradient. "
                "Make a DTensor of it, as SequenceParallel() does or distribute_tensor(…, [Shard(…)]) for one value for each head, or have it "
                "see whole tensors"
            )


def place_of(env: Mapping[str, str]) -> Rank:
    """Which of its worker's processes this one is. Raises ValueError for one that cannot be."""
    numbers = []
    for name, default in ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"):
        try:
            numbers.append(int(env.get(name, default)))
        except ValueError:
            raise ValueError(f"{name} is {env[name]!r}: it must be a number") from None
    rank, size = numbers
    if not 1 <= size <= MOST or not 0 <= rank < size:
        raise ValueError(f"LOCAL_RANK is {rank} and LOCAL_WORLD_SIZE {size}: a worker has 1 to {MOST} processes that share a model")
    return Rank(rank, size)


def _client(port: int, **options: Any) -> dist.TCPStore:
    options = {"is_master": False, "timeout": _LIMIT, "wait_for_workers": False, "use_libuv": False} | options
    return dist.TCPStore("127.0.0.1", port, **options)


# Where the processes of a worker find the store of theirs: the one of local rank 0 says it, at a socket whose name all of them know. The name is
# in no folder, which workers on one node may share, but in the network of the pod, and ends with the process.


def _door(env: Mapping[str, str] = os.environ) -> str:
    worker = env.get("CONCERTINA_SOCKET", "")
    if worker:
        # Pods in the network of their node have the same path: the folder behind it is another one.
        with contextlib.suppress(OSError):
            found = os.stat(os.path.dirname(worker) or ".")
            worker += f":{found.st_dev}:{found.st_ino}"
    else:
        worker = ":".join(env.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"))
        if not env.get("MASTER_PORT"):
            worker += f":{os.getppid()}"  # What has a port is nobody else's here, and may start each process through a script of its own.
    return f"\0{_NAME}-{os.getuid()}-{hashlib.sha256(worker.encode()).hexdigest()[:32]}"


def _ours(caller: socket.socket) -> bool:
    """Whether at the other end is a process of the same user: such a name has no permissions."""
    peer = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", peer)[1] == os.getuid()


def _left(by: float) -> float:
    return max(0.001, by - time.monotonic())


def _tell(port: int, size: int, by: float) -> None:
    waiting = set(range(1, size))
    with socket.socket(socket.AF_UNIX) as door:
        try:
            _open(door, by)
            door.listen(size)
            while waiting:
                door.settimeout(_left(by))
                caller, _ = door.accept()
                with caller:
                    waiting.discard(_greet(caller, port, min(_ANSWER, _left(by))))
        except TimeoutError:
            raise RuntimeError(
                f"local_mesh() has waited {_LIMIT} for the local ranks {sorted(waiting)} of this worker: each of its processes calls it"
            ) from None
        except OSError as error:
            raise RuntimeError(f"local_mesh() cannot be found by the other processes of this worker: {error}") from error


def _open(door: socket.socket, by: float) -> None:
    """Takes the name, which a process that was here before may have until it has ended."""
    while True:
        try:
            return door.bind(_door())
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > by:
                raise
        time.sleep(0.01)


def _greet(caller: socket.socket, port: int, limit: float) -> int:
    """Tells a process the port; its local rank, or 0 when it has not heard it: it asks again then."""
    try:
        if not _ours(caller):
            return 0
        caller.settimeout(limit)
        with caller.makefile("rwb") as lines:
            lines.write(b"%d\n" % port)
            lines.flush()
            return int(lines.readline(_LINE) or b"0")
    except (OSError, ValueError):
        return 0


def _ask(rank: int, by: float) -> int:
    why: Exception | None = None
    while time.monotonic() < by:
        try:
            with socket.socket(socket.AF_UNIX) as door:
                door.settimeout(_left(by))
                door.connect(_door())
                if not _ours(door):
                    raise PermissionError("another user's process has the name of its socket")
                with door.makefile("rwb") as lines:
                    if line := lines.readline(_LINE):
                        port = int(line)
                        lines.write(b"%d\n" % rank)
                        lines.flush()
                        return port
        except (OSError, ValueError) as error:
            why = error  # As a rule it is not there yet.
        time.sleep(0.01)
    raise RuntimeError(
        f"local_mesh() has waited {_LIMIT} for local rank 0 of this worker: each of its processes calls it (last: {why})"
    ) from why
