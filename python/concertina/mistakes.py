"""What is usually forgotten or done twice, looked for in the variables of the function that loops over the steps."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.amp import GradScaler
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset

from concertina.loader import Loader
from concertina.streams import Stream
from concertina.tensors import is_sharded

_WRAPPED = "DistributedDataParallel"


def refuse_data(data: Any) -> None:
    """Raises TypeError for what is neither a data set with samples by number nor a stream in shards."""
    if isinstance(data, Stream):
        return
    if isinstance(data, Loader):
        data = data.data
    if isinstance(data, Stream):
        raise TypeError("a Loader around a Stream: give the stream itself, which each rank reads by itself, without workers")
    if isinstance(data, DataLoader):
        raise TypeError("data is a DataLoader: give its data set, or concertina.torch.Loader(dataset, num_workers=…)")
    if isinstance(data, IterableDataset):
        raise TypeError(
            f"data is a {type(data).__name__}, a stream, which cannot be dealt out as it is: say how a part of it is opened, with "
            "concertina.torch.Stream(open, shards=…), or give a data set with a length and samples by number"
        )
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise TypeError(f"data is a {type(data).__name__}: it must have a length and samples by number")
    parts = data.values() if isinstance(data, Mapping) else data if isinstance(data, tuple) else ()
    if isinstance(data, Mapping) or any(isinstance(part, torch.Tensor) and part.dim() for part in parts):
        raise TypeError(f"data is a {type(data).__name__} of columns: give samples by number, such as TensorDataset(x, y)")


def unwrapped(name: str, thing: Any) -> Any:
    """A thing of the state without what torch.compile puts around a module. Raises TypeError for a module that
    exchanges its gradients by itself."""
    if isinstance(thing, DistributedDataParallel):
        raise TypeError(f"state[{name!r}] is a {_WRAPPED}: give the module in it, whose gradients step.backward() exchanges")
    return getattr(thing, "_orig_mod", thing) if isinstance(thing, Module) else thing


def all_unwrapped(state: Any) -> Any:
    """A state of which each thing is unwrapped()."""
    if not isinstance(state, Mapping):
        return state
    return {name: unwrapped(name, thing) for name, thing in state.items()}


def shared(state: Any, mesh: Any) -> bool:
    """Whether the processes of a worker compute one result together, of the same samples, as with parallelize_module(): those of
    fully_shard() have samples of their own. Raises ValueError for modules that are not shared as the program says, or some in this
    way and some in the other."""
    found = [
        (name, at, module, parameter)
        for name, module in (state.items() if isinstance(state, Mapping) else ())
        if isinstance(module, Module)
        for at, parameter in module.named_parameters()
        if is_sharded(parameter)
    ]
    if mesh is None:
        for name, at, _, parameter in found:
            raise ValueError(
                f"state[{name!r}]: {at} is sharded over {parameter.device_mesh}: say so with join(…, mesh=local_mesh()), where that is of "
                "the processes of a worker; what is sharded over all ranks is the business of concertina.fsdp"
            )
    elif not found:
        raise ValueError(
            "a mesh, and nothing in the state is sharded over it: call fully_shard(module, mesh=mesh), or "
            "parallelize_module(module, mesh, …), before join()"
        )
    for name, at, module, parameter in found:
        if parameter.device_mesh != mesh:
            raise ValueError(
                f"state[{name!r}]: {at} is sharded over {parameter.device_mesh}, and not over {mesh}, which are the processes of this worker"
            )
    apart = {id(p) for _, _, module, _ in found for part in _fully_sharded(module) for p in part.parameters()}
    together = [(name, at) for name, at, _, parameter in found if id(parameter) not in apart]
    if apart and together:
        (name, at), *_ = together
        raise ValueError(
            f"state[{name!r}]: {at} is sharded, and not by fully_shard(), as others in the state are: these have samples of their own on "
            "each rank, and processes that compute one result together, as with parallelize_module(), need the same"
        )
    return bool(together)


def refuse_mixed(state: Any) -> None:
    """Raises ValueError for an optimizer that has DTensors and plain parameters in one call of PyTorch, which fails in its first step: those of
    one device and type in each group, where it is to take many at once, and in all groups with a GradScaler."""
    things = dict(state) if isinstance(state, Mapping) else {}
    scaler = next((name for name, thing in things.items() if isinstance(thing, GradScaler) and thing.is_enabled()), None)
    for name, thing in things.items():
        if not isinstance(thing, Optimizer):
            continue
        for group in thing.param_groups:
            mixed = _mixed(group["params"])
            cuda = any(device.type == "cuda" for device in mixed)
            if mixed and (group.get("foreach") or group.get("fused") or (cuda and group.get("foreach", False) is None and group.get("fused") is None)):
                raise ValueError(
                    f"state[{name!r}] has DTensors and plain parameters, which PyTorch cannot update in one call, as it does with foreach or "
                    f"fused, and by default on GPUs: {type(thing).__name__}(…, foreach=False), or make DTensors of the rest, with "
                    "distribute_module(module, mesh), or give each kind an optimizer of its own"
                )
        if scaler is not None and _mixed(parameter for group in thing.param_groups for parameter in group["params"]):
            raise ValueError(
                f"state[{name!r}] has DTensors and plain parameters, whose gradients a GradScaler (state[{scaler!r}]) cannot look through in one "
                "call: give each kind an optimizer of its own, or make DTensors of the rest, with distribute_module(module, mesh)"
            )


def _mixed(parameters: Iterable[torch.nn.Parameter]) -> set[torch.device]:
    """The devices on which trained parameters of one type are of both kinds."""
    kinds: dict[tuple[torch.device, torch.dtype], set[bool]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            kinds.setdefault((parameter.device, parameter.dtype), set()).add(is_sharded(parameter))
    return {device for (device, _), both in kinds.items() if len(both) > 1}


def _fully_sharded(module: Module) -> list[Module]:
    """The parts of a module that fully_shard() has sharded, with all that is in them."""
    return [part for part in module.modules() if hasattr(part, "set_requires_gradient_sync")]


def refuse(variables: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raises TypeError for a wrapper around a module of the state that would exchange its gradients as well."""
    modules = _modules(state.values())
    for name, value in variables.items():
        if isinstance(value, DistributedDataParallel) and id(value.module) in modules:
            raise TypeError(f"{name} is a {_WRAPPED} around a module of the state: use it bare, step.backward() exchanges")


def warn(variables: Mapping[str, Any], state: Mapping[str, Any], where: str, stacklevel: int) -> None:
    """Warns of what changes in training and is not in the state, which is named where: who joins later would not have it."""
    known = _modules(state.values()) | {id(thing) for thing in state.values()}
    for name, value in list(variables.items()):  # A warning adds one to those of a module.
        if id(value) in known or not _changes(value, known):
            continue
        warnings.warn(
            f"{name} is a {type(value).__name__} and not in the state: whoever joins later, and everybody after a loss, "
            f"begins with a fresh one. Name it in {where}(state={{…, {name!r}: {name}}})",
            stacklevel=stacklevel,
        )


def _changes(value: Any, known: set[int]) -> bool:
    if isinstance(value, Optimizer | LRScheduler | ReduceLROnPlateau):
        return True
    if isinstance(value, GradScaler):
        return value.is_enabled()
    if not isinstance(value, Module):
        return False
    # A wrapper, such as that of torch.compile, has nothing of its own; a frozen module does not change.
    mine = {id(p) for module in value.modules() if id(module) in known for p in module.parameters()}
    return any(p.requires_grad and id(p) not in mine for p in value.parameters())


def _modules(things: Iterable[Any]) -> set[int]:
    return {id(module) for thing in things if isinstance(thing, Module) for module in thing.modules()}
