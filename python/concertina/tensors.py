"""What PyTorch adds to the state of a run: tensors, and its random numbers."""

import ctypes
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from concertina import snapshot


_SMALL = 64 << 10
"""Tensors below this size in bytes are copied at once."""


class TensorCodec(snapshot.Codec):
    """Keeps dense tensors of any device, and the few other types of PyTorch that a state has.

    modules: those in the state. Their buffers are written to by the forward pass; other tensors are expected to be
    written to by optimizers alone, and to tell when they are not.
    """

    def __init__(self, modules: Callable[[], Iterable[torch.nn.Module]] = tuple):
        self._modules = modules

    def watcher(self) -> Callable[[Any], Callable[[], Any] | None]:
        buffers = {_storage(buffer) for module in self._modules() for buffer in module.buffers()}

        def watch(value: Any) -> Callable[[], Any] | None:
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
                return None
            if value.is_inference() or value.numel() * value.element_size() < _SMALL or _storage(value) in buffers:
                return None
            return lambda: value._version

        return watch

    def buffer(self, value: Any) -> tuple[dict, memoryview] | None:
        if isinstance(value, torch.dtype):
            return {"dtype": _name(value)}, memoryview(b"")
        if isinstance(value, torch.Size):
            return {"shape of": list(value)}, memoryview(b"")
        if not isinstance(value, torch.Tensor):
            return super().buffer(value)
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.is_quantized:
            return None
        try:
            plain = value.detach().cpu().contiguous().resolve_conj().resolve_neg()
        except RuntimeError as error:
            if isinstance(error, torch.cuda.OutOfMemoryError) or "can't allocate memory" in str(error):
                raise MemoryError(str(error)) from error
            raise
        return {"tensor": _name(value.dtype), "shape": list(value.shape)}, _memory(plain)

    def identity(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.numel():
            return value.device, value.data_ptr(), value.dtype, value.shape, value.stride()
        return super().identity(value)

    def prepare(self, tag: Mapping, size: int, existing: Any) -> tuple[memoryview, Callable[[], Any]]:
        if "dtype" in tag:
            return memoryview(bytearray()), lambda: _dtype(tag["dtype"])
        if "shape of" in tag:
            return memoryview(bytearray()), lambda: torch.Size(tag["shape of"])
        if "tensor" not in tag:
            return super().prepare(tag, size, existing)
        dtype, shape = _dtype(tag["tensor"]), tuple(tag["shape"])
        if not isinstance(existing, torch.Tensor) or existing.dtype != dtype or tuple(existing.shape) != shape:
            existing = None
        if existing is not None and existing.device.type == "cpu" and existing.is_contiguous():
            return _memory(existing.detach()), lambda: existing
        made = torch.empty(shape, dtype=dtype)
        return _memory(made), lambda: made if existing is None else _fill(existing, made)


class Random:
    """PyTorch's random numbers, of the CPU and of the devices in use."""

    def state_dict(self) -> dict[str, Any]:
        state = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        torch.set_rng_state(state["cpu"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])

    def seed(self, seed: int) -> None:
        """Begins anew, on all devices; seed: 0 … 2^64-1."""
        torch.manual_seed(seed)


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

    @torch.no_grad()
    def copy(self) -> Callable[[], None]:
        """Copies them, and returns what puts them back as they were, until the next call."""
        there = [(owner, name, owner._buffers[name]) for owner, name in self._places]
        tensors = [tensor for _, _, tensor in there if tensor is not None]
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


def _memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor of the CPU, which live as long as anybody looks at them."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(bytearray())
    array = (ctypes.c_char * size).from_address(tensor.data_ptr())
    array.tensor = tensor
    return memoryview(array).cast("B")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise snapshot.SnapshotError(f"a tensor of an unknown type: {name}")
    return dtype
