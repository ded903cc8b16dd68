"""Gradients of parameters in shards, between those that have the same shards."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Parameter

_AT_ONCE = 25 << 20
"""So many bytes are exchanged in one message."""


def local_of(value: Any) -> torch.Tensor:
    """What this rank has of a DTensor, once it is there."""
    local = value._local_tensor
    return local.wait() if hasattr(local, "wait") else local


@torch.no_grad()
def complete(parameters: Iterable[Parameter]) -> None:
    """Has every parameter have a gradient, as those that are exchanged in buckets have: for an optimizer none is something else than 0.
    And each of them is cut as its parameter is. Autograd leaves it as the operation had it: a sum of which each process has a part, say;
    and where another worker had no samples it is cut in another way there."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.placements != parameter.placements:
            parameter.grad = parameter.grad.redistribute(placements=parameter.placements)


@torch.no_grad()
def add_up_shards(parameters: Sequence[Parameter], group: dist.ProcessGroup) -> None:
    """Adds up the gradients over the ranks of a group, as many bytes at once as pay. In the order of the parameters, which
    have the same shards on all of these ranks. What each process of a worker has whole goes first, apart from shards: those may be of other
    sizes there, and a sum is made in an order that its place decides, so that it would not stay the same in the worker. Raises what
    torch.distributed raises when a rank is gone."""
    waiting: list[tuple[Any, torch.Tensor, list[torch.Tensor]]] = []
    for together in _grouped(parameters):
        flat = torch.cat([local.reshape(-1) for local in together])
        waiting.append((dist.all_reduce(flat, group=group, async_op=True), flat, together))
        if len(waiting) == 2:
            _take(*waiting.pop(0))
    for exchange in waiting:
        _take(*exchange)


def _take(work: Any, flat: torch.Tensor, into: list[torch.Tensor]) -> None:
    if work:
        work.wait()
    for local, part in zip(into, flat.split([local.numel() for local in into]), strict=True):
        local.copy_(part.view(local.shape))


def _grouped(parameters: Sequence[Parameter]) -> list[list[torch.Tensor]]:
    groups: list[list[torch.Tensor]] = []
    kind: Any = None
    room = 0
    for parameter in sorted(parameters, key=_in_parts):
        local = local_of(parameter.grad)
        if not local.numel():
            continue
        if (found := (local.device, local.dtype, _in_parts(parameter))) != kind or local.nbytes > room:
            groups.append([])
            kind, room = found, _AT_ONCE
        groups[-1].append(local)
        room -= local.nbytes
    return groups


def _in_parts(parameter: Parameter) -> bool:
    """Whether ranks have different parts of a parameter, and of its gradient."""
    return not all(placement.is_replicate() for placement in parameter.grad.placements)


def keep_shards(modules: Iterable[torch.nn.Module]) -> None:
    """Has modules that fully_shard() has sharded have their shards as parameters, and not what a forward pass has gathered."""
    for part in (part for module in modules for part in module.modules() if hasattr(part, "_get_fsdp_state")):
        part.reshard()


def forget_passes(modules: Iterable[torch.nn.Module]) -> None:
    """Has fully_shard() forget what it keeps of a forward or backward pass that was broken off: it would go on in the middle of that one
    otherwise, with the parameters that it had gathered for it."""
    for part in (part for module in modules for part in module.modules() if hasattr(part, "_get_fsdp_state")):
        state = part._get_fsdp_state()
        idle = type(state._training_state).IDLE
        _set(state, _training_state=idle)
        _clear(state, "_modules_to_run_forward")
        _set(state._state_ctx, iter_forward_root=None, post_backward_final_callback_queued=False)
        _set(state._state_ctx, gradient_reduction_pending=False, manual_backward_finalization_active=None)
        for group in _groups_of(state):
            _set(group, _training_state=idle, _all_gather_result=None, _reshard_after_forward_event=None, _post_reduce_event=None)
            _set(group, _all_reduce_state=None, _partial_reduce_output=None, _post_backward_pending=False)
            _clear(group, "_post_forward_indices", "_partial_reduce_output_layout")
            _set(group.comm_ctx, all_gather_state=None, reduce_scatter_state=None, active_gradient_reduction=None)
            _clear(group.comm_ctx, "post_forward_order", "reduce_scatter_states", "_last_post_reduce_events")
            for parameter in group.fsdp_params:
                if "unsharded_accumulated_grad" in vars(parameter):  # Later versions reckon it from the other one.
                    parameter.unsharded_accumulated_grad = None
                if hasattr(parameter, "_unsharded_param"):
                    parameter._unsharded_param.grad = None
            if hasattr(group, "_set_unsharded_grad_dtypes"):
                group._set_unsharded_grad_dtypes(defer_upcast=False)
            group._to_sharded()


def _groups_of(state: Any) -> Sequence[Any]:
    """The groups of parameters of what fully_shard() keeps of a module, of which later versions have several."""
    several = getattr(state, "_fsdp_param_groups", None)
    return [group for group in [state._fsdp_param_group] if group] if several is None else several


def _set(thing: Any, **values: Any) -> None:
    """Sets those attributes that there are: PyTorch's versions differ in them, and some have none before the first pass."""
    for name, value in values.items():
        if hasattr(thing, name):
            setattr(thing, name, value)


def _clear(thing: Any, *names: str) -> None:
    """Empties those of these that there are."""
    for name in names:
        if hasattr(thing, name):
            getattr(thing, name).clear()
