"""What PyTorch adds to the state of a job: tensors, buffers, and optimizers."""

import contextlib
import ctypes
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from concertina import snapshot
from concertina.codec import Coming, Elsewhere, Load, Local, Piece
from concertina.devices import Devices
from concertina.shardgradients import local_of
from concertina.shards import Rank, Table, by_rows

_SMALL = 64 << 10
"""Tensors below this size in bytes are copied at once."""

_DTENSOR = "torch.distributed.tensor"

_NO_MEMORY = "can't allocate memory", "CUDA error: out of memory", "std::bad_alloc"
"""What PyTorch says where a processor has no memory, where a device has none for what no allocator of PyTorch gets, and where C++ has none."""

_AT_ONCE = 25 << 20
"""So many bytes are sent to other ranks in one message."""


class TensorCodec(snapshot.Codec):
    """Keeps dense tensors of any device, and the few other types of PyTorch that a state has.

    modules: those in the state. Their buffers are written to by the forward pass; other tensors are expected to be
    written to by optimizers alone, and to tell when they are not.
    """

    def __init__(
        self, modules: Callable[[], Iterable[torch.nn.Module]] = tuple, devices: Devices | None = None, *, local: Rank | None = None
    ):
        """local: which one of its worker's processes this is, where values are in the shards of these, along any dimension, or whole in
        each of them; None where they are not."""
        self._modules = modules
        self._local = local
        self._devices = devices or Devices()

    def private(self) -> Callable[[Any], bool]:
        buffers = self._buffers()
        return lambda value: isinstance(value, torch.Tensor) and value.layout == torch.strided and _storage(own_part(value)) in buffers

    def _buffers(self) -> set[tuple]:
        """Where the buffers are: the forward pass writes them, on each rank with what it has seen."""
        return {_storage(own_part(buffer)) for module in self._modules() for buffer in module.buffers()}

    def watcher(self) -> Callable[[Any], Callable[[], Any] | None]:
        buffers = self._buffers()

        def watch(value: Any) -> Callable[[], Any] | None:
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
                return None
            if value.is_inference() or value.numel() * value.element_size() < _SMALL or _storage(value) in buffers:
                return None
            return lambda: value._version

        return watch

    def buffer(self, value: Any) -> tuple[dict, memoryview | Elsewhere] | None:
        if isinstance(value, torch.dtype):
            return {"dtype": _name(value)}, memoryview(b"")
        if isinstance(value, torch.Size):
            return {"shape of": list(value)}, memoryview(b"")
        if not isinstance(value, torch.Tensor):
            return super().buffer(value)
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.is_quantized:
            return None
        tag = {"tensor": _name(value.dtype), "shape": list(value.shape)}
        if self._devices.has(value) and value.numel():
            return tag, Elsewhere(value, 0, value.numel() * value.element_size())
        with out_of_memory():
            plain = value.detach().cpu().contiguous().resolve_conj().resolve_neg()
        return tag, memory_of(plain)

    def shard(self, value: Any, where: str, rank: Rank | None) -> Local | None:
        if not is_sharded(value):
            return None
        if rank is None:
            raise snapshot.SnapshotError(
                f"{where} is a DTensor: a state in shards is built anew in each world, and concertina.fsdp keeps it, or shared by "
                "the processes of a worker, with join(…, mesh=local_mesh())"
            )
        dim = _dim_of(value, where, rank, self._local is not None)
        own = _rows(value, dim)
        tag, part = self.buffer(own)
        return Local(Table(where, tag["tensor"], by_rows(tuple(value.shape), dim), value.element_size(), dim), part)

    def own(self, table: Table, existing: Any, rank: Rank) -> Any:
        if existing is None:
            return None
        if not is_sharded(existing):
            return super().own(table, existing, rank)
        dim = _dim_of(existing, table.name, rank, self._local is not None)
        if tuple(existing.shape) != table.whole or _name(existing.dtype) != table.tensor:
            raise snapshot.SnapshotError(
                f"{table.name} is a {table.tensor} of {list(table.whole)} in the snapshot, and a {_name(existing.dtype)} of "
                f"{list(existing.shape)} in this job: a model has the same shape in each world"
            )
        if dim != table.dim:
            raise snapshot.SnapshotError(
                f"{table.name} is {_along(table.dim)} in the snapshot, and {_along(dim)} in this job: share the model as it was"
            )
        return _rows(existing, dim)

    def joined(self, table: Table, own: Any, existing: Any) -> Any:
        if existing is not None:
            there = _rows(existing, table.dim)
            if own.numel() and (there.data_ptr() != own.data_ptr() or _place(there) != _place(own) or there.stride() != own.stride()):
                _fill(there, own)  # The bytes have come elsewhere.
            return existing
        with torch.no_grad():
            own = own[0] if table.dim is None else own.movedim(0, table.dim).contiguous()
        return self._whole(own, table.whole, table.dim, table.name)

    def _whole(self, own: torch.Tensor, shape: Sequence[int], dim: int | None, name: str) -> Any:
        """The DTensor of this shape and name of which this rank has its own."""
        like = next((p for module in self._modules() for p in module.parameters() if is_sharded(p)), None)
        if like is None:
            raise snapshot.SnapshotError(
                f"{name} is in shards where the state is from, and no module of the state is in this job: call fully_shard(module) first"
            )
        tensor, stride = sys.modules[_DTENSOR], [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        with torch.no_grad():
            return tensor.DTensor.from_local(
                own.to(like._local_tensor.device), like.device_mesh, [tensor.Replicate() if dim is None else tensor.Shard(dim)],
                run_check=False, shape=torch.Size(shape), stride=tuple(stride),
            )  # fmt: skip

    def alike(self) -> snapshot.Codec:
        return self if self._local is None else AlikeCodec(self._modules, self._devices, local=self._local)

    def room(self, size: int) -> memoryview:
        return self._devices.room(size)

    def bring(self, pieces: Sequence[Piece]) -> Coming:
        with out_of_memory():
            return self._devices.bring(pieces)

    @contextlib.contextmanager
    def loading(self, read: Callable[[memoryview, int], None]) -> Iterator[Load]:
        with super().loading(read) as otherwise, self._devices.filling(read) as fill:

            def load(tag: Mapping, at: int, size: int, existing: Any) -> Any:
                if is_sharded(existing):
                    raise snapshot.SnapshotError(
                        f"a tensor of {list(existing.shape)} is whole in the snapshot, and in shards in this job: it goes on only from states "
                        "whose values are in shards where its own are"
                    )
                if not isinstance(existing, torch.Tensor) or not self._devices.has(existing) or not fits(existing, tag):
                    return otherwise(tag, at, size, existing)
                if size != existing.numel() * existing.element_size():
                    raise snapshot.SnapshotError(f"a file has {size} bytes for a tensor of {list(existing.shape)}")
                if existing.is_contiguous():
                    fill(existing, at)
                    return existing
                try:
                    made = torch.empty(existing.shape, dtype=existing.dtype, device=existing.device)
                except torch.cuda.OutOfMemoryError:
                    return otherwise(tag, at, size, existing)  # through the processor's
                fill(made, at, lambda: _fill(existing, made))
                return existing

            yield load

    def identity(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.numel():
            lazy = value.is_conj(), value.is_neg()
            return value.device, value.data_ptr(), value.dtype, value.shape, value.stride(), lazy
        return super().identity(value)

    def prepare(self, tag: Mapping, size: int, existing: Any) -> tuple[memoryview, Callable[[], Any]]:
        if "dtype" in tag:
            return memoryview(bytearray()), lambda: _dtype(tag["dtype"])
        if "shape of" in tag:
            return memoryview(bytearray()), lambda: torch.Size(tag["shape of"])
        if "tensor" not in tag:
            return super().prepare(tag, size, existing)
        dtype, shape = _dtype(tag["tensor"]), tuple(tag["shape"])
        if not isinstance(existing, torch.Tensor) or not fits(existing, tag):
            existing = None
        if existing is not None and existing.device.type == "cpu" and existing.is_contiguous():
            return memory_of(existing.detach()), lambda: existing
        made = torch.empty(shape, dtype=dtype, device="cpu")  # whatever the program has for a default
        return memory_of(made), lambda: made if existing is None else _fill(existing, made)


class AlikeCodec(TensorCodec):
    """Keeps of a DTensor what this process has of it, in one piece, for those of other workers that have the same of it."""

    def alike(self) -> snapshot.Codec:
        return self

    def shard(self, value: Any, where: str, rank: Rank | None) -> Local | None:
        if is_sharded(value):
            _dim_of(value, where, self._local, True)
        return None

    def buffer(self, value: Any) -> tuple[dict, memoryview | Elsewhere] | None:
        if not is_sharded(value):
            return super().buffer(value)
        found = super().buffer(local_of(value))
        if found is None:
            return None
        tag, part = found
        return tag | {"whole": list(value.shape), "dim": getattr(value.placements[0], "dim", None)}, part

    def identity(self, value: Any) -> Any:
        if not is_sharded(value) or not own_part(value).numel():
            return super().identity(value)
        # It is none with the tensor that this process has of it, which a program may keep as well.
        return super().identity(own_part(value)), tuple(value.shape), getattr(value.placements[0], "dim", None)

    def own_of(self, tag: Mapping, existing: Any) -> tuple[Any, Callable[[Any], Any]]:
        if "whole" not in tag:
            if is_sharded(existing):
                raise snapshot.SnapshotError(
                    f"a tensor of {list(existing.shape)} is in shards in this job, and not on the ranks that have the state: share the model as they do"
                )
            return super().own_of(tag, existing)
        there, shape, dim = None, tuple(tag["whole"]), tag["dim"]
        name = f"a tensor of {tag['whole']}"
        if existing is not None:
            found = None
            if is_sharded(existing):
                own_shape = tuple(local_of(existing).shape)
                found = _name(existing.dtype), tuple(existing.shape), _dim_of(existing, name, self._local, True), own_shape
            if found != (tag["tensor"], shape, dim, tuple(tag["shape"])):
                raise snapshot.SnapshotError(
                    f"{name} is a {tag['tensor']} {_along(dim)} on the ranks that have the state, and another one in this job, or in no shards: "
                    "build and share the model as they do"
                )
            there = local_of(existing)

        def whole(own: torch.Tensor) -> Any:
            if there is None:
                return self._whole(own, shape, dim, name)
            if own is not there:  # as of one that has to be made first
                _fill(there, own)
            return existing

        return there, whole

    @contextlib.contextmanager
    def loading(self, read: Callable[[memoryview, int], None]) -> Iterator[Load]:
        with super().loading(read) as otherwise:

            def load(tag: Mapping, at: int, size: int, existing: Any) -> Any:
                own, whole = self.own_of(tag, existing)
                return whole(otherwise(tag, at, size, own))

            yield load


class Buffers:
    """The persistent buffers of modules, such as the running means of BatchNorm, which the forward pass writes."""

    def __init__(self, modules: Iterable[torch.nn.Module] = ()):
        self._places: list[tuple[torch.nn.Module, str]] = []
        self._whose: list[tuple] = []
        self._copies: list[torch.Tensor] = []
        self.watch(modules)

    def watch(self, modules: Iterable[torch.nn.Module]) -> None:
        """Copies the buffers of these modules from now on. The memory of earlier copies is used again, if they fit."""
        places = {}
        for module in modules:
            for owner in module.modules():
                for name in sorted(owner._buffers.keys() - owner._non_persistent_buffers_set):
                    places[id(owner), name] = owner, name
        self._places = list(places.values())

    def present(self) -> list[torch.Tensor]:
        """The tensors that are there now."""
        there = (owner._buffers[name] for owner, name in self._places)
        return [tensor for tensor in there if tensor is not None]

    def copy(self) -> Callable[[], None]:
        """Copies them, and returns what puts them back as they were, until the next call."""
        if not self._places:
            return _nothing
        with torch.no_grad():
            return self._copy()

    def _copy(self) -> Callable[[], None]:
        there = [(owner, name, owner._buffers[name]) for owner, name in self._places]
        tensors = [own_part(tensor) for _, _, tensor in there if tensor is not None]
        if [*map(_place, tensors)] == self._whose:
            _fill_all(self._copies, tensors)
        else:
            self._whose, self._copies = [*map(_place, tensors)], [tensor.clone() for tensor in tensors]
        copies = self._copies

        def put_back() -> None:
            # A forward pass may have put other tensors in their places.
            for owner, name, tensor in there:
                owner._buffers[name] = tensor
            _fill_all(tensors, copies)

        return put_back


class InPlace:
    """An optimizer whose state is loaded into the dicts and tensors that are there, as far as they fit: a program may
    hold on to its groups."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        optimizer = self._optimizer
        groups, states = optimizer.param_groups, dict(optimizer.state)
        optimizer.load_state_dict(state)
        if len(groups) == len(optimizer.param_groups):
            for group, loaded in zip(groups, optimizer.param_groups, strict=True):
                _update(group, loaded)
            optimizer.param_groups = groups
        for parameter, loaded in optimizer.state.items():
            if isinstance(states.get(parameter), dict) and isinstance(loaded, dict):
                optimizer.state[parameter] = _update(states[parameter], loaded)


def _update(there: dict, loaded: Mapping) -> dict:
    """Makes a dict the same as another one, and keeps tensors that are of the same kind."""
    for name in there.keys() - loaded.keys():
        del there[name]
    for name, value in loaded.items():
        own = there.get(name)
        if isinstance(own, torch.Tensor) and isinstance(value, torch.Tensor) and _place(own) == _place(value):
            _fill(own, value)
        else:
            there[name] = value
    return there


@torch.no_grad()
def spread(
    tensors: Iterable[torch.Tensor], through: torch.device | None = None, group: dist.ProcessGroup | None = None, *, shards: bool = False
) -> None:
    """Gives all ranks of a group the values that rank 0 has, but for those in shards, or what it has of these alone. Raises what
    torch.distributed raises when a rank is gone.

    through: the device that they are exchanged between, where that is none of all: a model on a GPU may have a few tensors
    elsewhere, such as the counter of an AveragedModel.
    """
    groups: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and is_sharded(tensor) == shards:
            tensor = tensor._local_tensor if shards else tensor
        else:
            continue
        if tensor.numel() and tensor.layout == torch.strided:
            groups.setdefault(tensor.device, []).append(tensor)
    for device, together in groups.items():
        while together:
            some: list[torch.Tensor] = []
            size = 0
            while together and (not some or size + together[-1].nbytes <= _AT_ONCE):
                some.append(together.pop())
                size += some[-1].nbytes
            flat = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in some])
            flat = flat.to(through if through and device.type != through.type else device)
            dist.broadcast(flat, 0, group=group)
            for tensor, part in zip(some, flat.split([tensor.nbytes for tensor in some]), strict=True):
                # A copy of the part, since it may begin anywhere in the bytes.
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


def copy_groups(opt: torch.optim.Optimizer) -> Callable[[], None]:
    """Copies the learning rates and other options of an optimizer, which schedulers change, and returns what puts
    them back, in the same groups."""
    kept = [(group, {name: _copied(value) for name, value in group.items()}) for group in opt.param_groups]

    def put_back() -> None:
        opt.param_groups[:] = [group for group, _ in kept]
        for group, values in kept:
            for name, value in values.items():
                if isinstance(value, torch.Tensor) and isinstance(group.get(name), torch.Tensor):
                    _fill(group[name], value)
                else:
                    group[name] = value

    return put_back


def copy_scaler(scaler: torch.amp.GradScaler) -> Callable[[], None]:
    """Copies the scale of a GradScaler without waiting for its device, and returns what puts it back. It changes in a
    step that the optimizer leaves out, since its gradients are not finite."""
    kept = scaler._scale, scaler._growth_tracker
    copies = [_copied(tensor) for tensor in kept]

    def put_back() -> None:
        scaler._scale, scaler._growth_tracker = kept
        for tensor, copy in zip(kept, copies, strict=True):
            if tensor is not None:
                _fill(tensor, copy)

    return put_back


def wake_scaler(scaler: torch.amp.GradScaler) -> None:
    """Has a GradScaler make the tensor of its scale. It does so when it first scales something, and whatever else it is
    asked to do fails until then: a rank whose first steps have no samples for it scales nothing."""
    if scaler._scale is None:
        scaler.scale(torch.zeros((), device=scaler._device))


@contextlib.contextmanager
def out_of_memory() -> Iterator[None]:
    """Has PyTorch raise MemoryError where there is not enough memory, as Python does."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.cuda.OutOfMemoryError) or any(text in str(error) for text in _NO_MEMORY):
            raise MemoryError(str(error)) from error
        raise


def is_sharded(value: Any) -> bool:
    """Whether each rank has its own part of a value: whether it is a DTensor. Who has none has not imported what makes them."""
    made = sys.modules.get(_DTENSOR)
    return made is not None and isinstance(value, made.DTensor)


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor that may be a DTensor."""
    return local_of(tensor) if is_sharded(tensor) else tensor


def _dim_of(value: Any, where: str, rank: Rank, local: bool) -> int | None:
    """The dimension that a DTensor is cut along over all ranks of the world, or all processes of the worker; None where each of
    these has all of it. Raises SnapshotError for another one."""
    mesh, placements, tensor = value.device_mesh, value.placements, sys.modules[_DTENSOR]
    if len(placements) == 1 and mesh.mesh.tolist() == [*range(rank.of)] and (*(mesh.get_coordinate() or ()),) == (rank.number,):
        (placement,) = placements
        if type(placement) is tensor.Shard and (local or placement.dim == 0):
            return placement.dim
        if local and type(placement) is tensor.Replicate:
            return None
    kept = (
        "sharded along a dimension over all processes of the worker, or the same on each of them, with local_mesh()"
        if local
        else "sharded along dimension 0 over all ranks of the world, as fully_shard(module, mesh=job.mesh) does"
    )
    raise snapshot.SnapshotError(
        f"{where} is a DTensor with the placements {placements} on the mesh {mesh.mesh.tolist()}, and this is rank {rank.number} of "
        f"{rank.of}: what can be kept is {kept}"
    )


def _rows(value: Any, dim: int | None) -> torch.Tensor:
    """What this rank has of a DTensor, in rows along this dimension."""
    own = local_of(value).detach()
    return own.unsqueeze(0) if dim is None else own.movedim(dim, 0)


def _along(dim: int | None) -> str:
    return "whole in each process" if dim is None else f"sharded along dimension {dim}"


def fits(tensor: torch.Tensor, tag: Mapping) -> bool:
    """Whether a tensor is of the kind that a tag describes, and has bytes that are what its values are."""
    if tensor.is_conj() or tensor.is_neg():
        return False
    return _name(tensor.dtype) == tag.get("tensor") and list(tensor.shape) == tag.get("shape")


def _nothing() -> None:
    """Puts nothing back."""


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _storage(tensor: torch.Tensor) -> tuple:
    return tensor.device, tensor.untyped_storage().data_ptr()


def _place(tensor: torch.Tensor) -> tuple:
    return tensor.device, tensor.dtype, tensor.shape


@torch.no_grad()
def _fill_all(tensors: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    if tensors:
        torch._foreach_copy_(tensors, sources)  # One call for hundreds of small ones.


def _fill(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return tensor.copy_(source)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor of the CPU, which live as long as anybody looks at them."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(bytearray())
    array = (ctypes.c_char * size).from_address(tensor.data_ptr())
    array.tensor = tensor
    return memoryview(array).cast("B")


def is_there(memory: memoryview) -> bool:
    """Whether a tensor still has the bytes that memory_of() gave: whoever has it may have given its memory back."""
    if not len(memory):
        return True
    array: Any = memory.obj
    end = array.tensor.storage_offset() * array.tensor.element_size() + len(array)
    return array.tensor.data_ptr() == ctypes.addressof(array) and end <= array.tensor.untyped_storage().nbytes()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise snapshot.SnapshotError(f"a tensor of an unknown type: {name}")
    return dtype
