"""The gradients of a step: added up over the ranks, in buckets, while the last backward pass still makes others. Those of
parameters in shards fully_shard() exchanges, and makes a mean of them over the ranks, of which only the factor is left to do. Where ranks
compute each sample together a shard's gradient is whole on one of them, and the sample counts once for each: that is as a mean over them.

A rank adds up w/n·g over its micro-batches: w is the weight of one, g the gradient of its mean loss, n the same number on
all ranks. The exchange adds these up over the ranks, and W, the sum of all weights, with them; times n/W it is the
gradient of the weighted mean over the whole batch. With samples as weights n is W, and nothing is left to do. The numbers
stay those of a mean all the way, so that half precision does not overflow.
"""

import functools
import math
import operator
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn import Parameter

from concertina.shardgradients import add_up_shards, complete, local_of
from concertina.tensors import is_sharded, memory_of
from concertina.worktime import Waited

_FIRST_BUCKET = 1 << 20  # Small, so that the exchange begins early.
_BUCKET = 25 << 20
_ALIGN = 16  # bytes
_grad = operator.attrgetter("grad")
_EXACT = (torch.float32, torch.float64)


class Among(NamedTuple):
    """Between whom gradients are exchanged. No group is the default one."""

    size: int
    """How many of them compute samples of their own."""
    group: dist.ProcessGroup | None = None
    """The group of these."""
    alike: dist.ProcessGroup | None = None
    """The group of those that have the same shards; None where nobody has."""
    means: int = 1
    """Over how many ranks gradients of shards are means when a backward pass has ended."""


class Gradients:
    """The gradients of some parameters, which live in buckets from the beginning of a step on."""

    def __init__(self) -> None:
        self._everything: list[Parameter] = []
        self._wanted: list[bool] = []
        self._parameters: list[Parameter] = []  # those that want a gradient, without those in shards
        self._sharded: list[Parameter] = []  # those in shards
        self._passes = 0  # backward passes of a step
        self._buckets: list[_Bucket] = []
        self._told: torch.Tensor | None = None  # the sums of weights, and of losses times their weights
        self._tells: Any = None  # the same memory where it can be written without a tensor's detours
        self._half = False  # whether there are gradients in half precision
        self._apart = False  # these two are exchanged by themselves: the gradients' numbers are too coarse for them
        self._stepping = self._inside = self._last = False
        self._among = Among(1)
        self._samples = 1
        self._weight = 0.0
        self._losses: torch.Tensor | float = 0.0
        self._loss: torch.Tensor | float | None = None
        self._launched = 0
        self._spoiled = False
        self.scale = 0
        """How many times a sample's usual weight is doubled, as far as half precision has to know it."""
        self._next_scale = 0
        self.exchanged = False
        """Whether the gradients are those of the whole batch."""
        self.looks = False
        """Whether the norms of this rank's own gradients are looked at in the present step, without those in shards."""
        self.norms: list[tuple[Parameter, torch.Tensor]] = []
        """These, once the gradients are exchanged."""
        self._waited = 0
        self._stall: tuple[torch.cuda.Event, torch.cuda.Event] | None = None  # of a device: where it begins and ends to wait

    def watch(self, parameters: Iterable[Parameter]) -> None:
        """From now on these are the parameters; in the same order on all ranks. Those that want no gradient when a step
        begins have none in it."""
        everything = list({id(parameter): parameter for parameter in parameters}.values())
        if [*map(id, everything)] != [*map(id, self._everything)]:
            self.close()
            self._everything = everything

    def _divide(self, wanted: list[bool]) -> None:
        """Makes the buckets of the parameters that want a gradient."""
        everything = self._everything
        self.forget()  # A parameter that is frozen now would be updated with what it had.
        self.close()
        self._everything, self._wanted = everything, wanted
        found = [p for p, wants in zip(everything, wanted, strict=True) if wants]
        self._parameters = [p for p in found if not is_sharded(p)]
        self._sharded = [p for p in found if is_sharded(p)]
        self._buckets = [_Bucket(group) for group in _grouped(reversed(self._parameters))]
        for bucket in self._buckets:
            bucket.listen()
        for bucket in self._buckets[:-1]:  # Of the last one nobody has to tell: with it the backward pass ends.
            self._listen_to_last(bucket, bucket.views[-1][0])
        exact = [bucket for bucket in self._buckets if bucket.flat.dtype in _EXACT]
        self._apart = bool(found) and not exact
        self._half = any(parameter.dtype is torch.float16 for parameter in found)
        if exact:
            self._told = exact[-1].told
        elif found:
            self._told = torch.zeros(2, dtype=torch.float64, device=found[0].device)
        if self._told is not None and self._told.device.type == "cpu":
            self._tells = memory_of(self._told).cast("f" if self._told.dtype is torch.float32 else "d")

    def begin(self, samples: int, among: Among) -> None:
        """A step of so many samples begins, each counted as often as a rank computes it: all gradients are 0."""
        wanted = [parameter.requires_grad for parameter in self._everything]
        if wanted != self._wanted:
            self._divide(wanted)
        self._stepping, self._inside, self._last, self.exchanged, self._spoiled = True, False, False, False, False
        self._samples, self._among, self._launched = samples, among, 0
        self._weight, self._losses, self._loss = 0.0, 0.0, None
        self._waited, self._stall = 0, None
        self._next_scale = self.scale
        self._passes = 0
        self.looks, self.norms = False, []
        for bucket in self._buckets:
            bucket.begin()
        for parameter in self._sharded:
            parameter.grad = None

    def backward(self, loss: torch.Tensor, weight: float, last: bool) -> None:
        """Adds the gradient of a mean loss of this weight; the last one of a step is exchanged on its way."""
        self.refuse_strangers()
        self._weight += weight
        if weight:
            cpu = loss.device.type == "cpu"  # Of other devices a number would have to be waited for.
            self._losses += (loss.item() if cpu else loss.detach().double().squeeze()) * weight
        self._inside, self._last, self._spoiled = True, last, True
        self._passes += 1
        if last:
            self._tell()
        loss.backward(torch.full_like(loss, weight / (self._samples * 2.0**self.scale)))
        self._inside = self._spoiled = False
        for bucket in self._buckets:
            self._look_back(bucket)

    def exchange(self) -> None:
        """Exchanges what has not been, and waits until the gradients are those of the whole batch. Raises what
        torch.distributed raises when a rank is gone."""
        self.refuse_strangers()
        if self._spoiled:
            raise RuntimeError(
                "a backward pass of this step has failed, and left a part of its gradients: let its error end the step"
            )
        if not self._last:
            self._tell()
        self._last = False
        for bucket in self._buckets[self._launched :]:
            self._launch(bucket)
        since = time.perf_counter_ns()
        begins = self._mark()
        if self._apart and self._among.size > 1:
            dist.all_reduce(self._told, group=self._among.group)
        complete(self._sharded)
        if self._among.alike is not None and self._among.alike.size() > 1:
            add_up_shards(self._sharded, self._among.alike)
        for bucket in self._buckets:
            bucket.wait()
        ends = self._mark()
        self._stall = begins and ends and (begins, ends)
        self._waited = time.perf_counter_ns() - since
        self._scale_back()
        self.exchanged = True

    @property
    def told(self) -> tuple[float, torch.Tensor | float]:
        """The sum of this rank's own weights in the step, and of its losses times these."""
        return self._weight, self._losses

    @property
    def stall(self) -> Waited:
        """Nanoseconds of the step in which nothing was done but wait for the exchange. Of a device it is what says them, as
        soon as that has come so far, also when other steps have begun."""
        return self._waited if self._stall is None else functools.partial(_between, *self._stall)

    @property
    def waited(self) -> int | None:
        """The same as far as it is known now: None where a device has not come so far."""
        stall = self.stall
        return stall() if callable(stall) else stall

    def _mark(self) -> torch.cuda.Event | None:
        """Where a device has come by now; None for processors."""
        if self._told is None or self._told.device.type != "cuda":
            return None
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def settled(self) -> None:
        """The step is done."""
        self._stepping, self.scale = False, self._next_scale

    def forget(self) -> None:
        """Drops the gradients of a step that was not done."""
        self._stepping = self._inside = False
        for bucket in self._buckets:
            bucket.work = None
            bucket.seen.clear()
        for parameter in (*self._parameters, *self._sharded):
            parameter.grad = None

    def close(self) -> None:
        """Leaves the parameters alone."""
        for bucket in self._buckets:
            bucket.close()
        self._everything, self._wanted, self._parameters, self._sharded, self._buckets = [], [], [], [], []
        self._told, self._tells, self._apart = None, None, False

    @property
    def loss(self) -> torch.Tensor | None:
        """The mean loss of the whole batch, once they are."""
        if isinstance(self._loss, float):
            self._loss = torch.scalar_tensor(self._loss)  # A third of what torch.tensor() takes.
        return self._loss

    def trains(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer has one of these parameters."""
        mine = {id(parameter) for parameter in (*self._parameters, *self._sharded)}
        return any(id(parameter) in mine for group in optimizer.param_groups for parameter in group["params"])

    @property
    def missing(self) -> bool:
        """Whether a step has gradients that were not exchanged."""
        return self._stepping and not self.exchanged and bool(self._parameters or self._sharded)

    def refuse_strangers(self) -> None:
        """Raises RuntimeError when gradients have come by another way than backward()."""
        for strange in (*(bucket.seen for bucket in self._buckets), self._strange()):
            if strange:
                raise RuntimeError(
                    "loss.backward() in a step: use step.backward(loss), which weighs the loss and exchanges the gradients"
                )

    def _strange(self) -> bool:
        """Whether parameters in shards have gradients before the first backward pass of a step."""
        return not self._passes and any(parameter.grad is not None for parameter in self._sharded)

    def _listen_to_last(self, bucket: "_Bucket", parameter: Parameter) -> None:
        """Has the parameter whose gradient comes last tell when a bucket is whole."""
        if bucket.last is not None:
            bucket.hook(bucket.last, bucket.seen.append)
        bucket.hook(parameter, functools.partial(self._came_last, bucket))
        bucket.last = parameter

    def _look_back(self, bucket: "_Bucket") -> None:
        """Learns from a backward pass that has ended in which order gradients come."""
        seen = bucket.seen
        if bucket.launched and len(seen) != len(bucket.views):
            raise RuntimeError(
                "a gradient came twice in one backward pass, as it does with reentrant checkpoints: use "
                "torch.utils.checkpoint.checkpoint(…, use_reentrant=False)"
            )
        if bucket.last is not None and len(seen) == len(bucket.views) and seen[-1] is not bucket.last:
            self._listen_to_last(bucket, seen[-1])
        seen.clear()

    def _came_last(self, bucket: "_Bucket", parameter: Parameter) -> None:
        """The gradient is there that comes last in a bucket as a rule; autograd calls it in each backward pass."""
        bucket.seen.append(parameter)
        if not (self._inside and self._last) or len(bucket.seen) != len(bucket.views):
            return  # What is not launched here is when the pass has ended.
        bucket.whole = True
        while self._launched < len(self._buckets) and self._buckets[self._launched].whole:
            self._launch(self._buckets[self._launched])

    def _launch(self, bucket: "_Bucket") -> None:
        """Begins to exchange a bucket; in the same order on all ranks."""
        bucket.gather()
        if self.looks:
            parameters, grads = zip(*bucket.views, strict=True)
            self.norms += zip(parameters, torch._foreach_norm(list(grads)), strict=True)
        if self._among.size > 1:
            bucket.work = dist.all_reduce(bucket.flat, group=self._among.group, async_op=True)
        bucket.launched = True
        self._launched += 1

    def _tell(self) -> None:
        tells = self._told if self._tells is None else self._tells
        if tells is not None:
            tells[0] = self._weight
            tells[1] = self._losses

    def _scale_back(self) -> None:
        """The one factor after the exchange."""
        told = self._told
        if told is None:
            return
        nominal = self._samples * 2.0**self.scale
        if told.device.type != "cpu":
            # Without a look at the device, which would wait for it.
            factor = torch.where(told[0] > 0, nominal / told[0].double(), 0.0)
            self._loss = told[1] / told[0]
            for bucket in self._buckets:
                bucket.payload.mul_(factor)
            self._scale_shards(factor * self._among.means)
        else:
            weight, losses = self._tells
            self._loss = losses / weight if weight else math.nan
            if weight != nominal:
                for bucket in self._buckets:
                    bucket.payload.mul_(nominal / weight if weight else 0.0)
            self._scale_shards(nominal / weight * self._among.means if weight else 0.0)
        if self._half:
            weight = float(told[0])
            self._next_scale = round(math.log2(weight / self._samples)) if weight > 0 else self.scale

    @torch.no_grad()
    def _scale_shards(self, factor: torch.Tensor | float) -> None:
        """Of means over the ranks makes what the sums are, times a factor."""
        for parameter in self._sharded:
            if parameter.grad is not None:
                local_of(parameter.grad).mul_(factor)


class _Bucket:
    """The gradients of parameters of one kind, one after another in one piece of memory."""

    def __init__(self, parameters: list[Parameter]):
        first = parameters[0]
        step = max(1, _ALIGN // first.element_size())
        sizes = [-(-p.numel() // step) * step for p in parameters]
        self.flat = torch.zeros(sum(sizes) + 2, dtype=first.dtype, device=first.device)
        self.payload, self.told = self.flat[:-2], self.flat[-2:]
        places = self.payload.split(sizes)
        self.views = [(p, _like(p, place)) for p, place in zip(parameters, places, strict=True)]
        self._parameters = parameters
        self._places = [place for _, place in self.views]
        self.work: dist.Work | None = None
        self.launched = self.whole = False
        self.seen: list[Parameter] = []
        """Whose gradients have come in the present backward pass."""
        self.last: Parameter | None = None
        """Whose gradient comes last, and tells that all are there; None where nobody tells."""
        self._hooks: dict[int, Any] = {}

    def hook(self, parameter: Parameter, call: Callable[[Parameter], None]) -> None:
        """Has autograd call this one, and no other, when the parameter's gradient is there."""
        if earlier := self._hooks.pop(id(parameter), None):
            earlier.remove()
        self._hooks[id(parameter)] = parameter.register_post_accumulate_grad_hook(call)

    def listen(self) -> None:
        """Notes whose gradients come: a list's own method costs less than a function of Python."""
        for parameter, _ in self.views:
            self.hook(parameter, self.seen.append)

    def close(self) -> None:
        """Leaves the parameters alone."""
        for hook in self._hooks.values():
            hook.remove()

    def begin(self) -> None:
        self.flat.zero_()
        self.work = None
        self.launched = self.whole = False
        self.seen.clear()
        if self._in_place():
            return
        for parameter, view in self.views:
            if parameter.grad is not view:
                parameter.grad = view

    def gather(self) -> None:
        """Brings all gradients into the bucket, where zero_grad() has put them out of it. Who has none has 0."""
        if self._in_place():
            return
        for parameter, view in self.views:
            if (grad := parameter.grad) is not view:
                if grad is None:
                    view.zero_()
                else:
                    view.copy_(grad)
                parameter.grad = view

    def _in_place(self) -> bool:
        """Whether all gradients are in the bucket, as they are in most steps: seen without a loop of Python's own."""
        return all(map(operator.is_, map(_grad, self._parameters), self._places))

    def wait(self) -> None:
        work, self.work = self.work, None
        if work:
            work.wait()


def _between(begins: torch.cuda.Event, ends: torch.cuda.Event) -> int | None:
    """Nanoseconds between two marks of a device; None as long as it has not come to the second one."""
    return int(begins.elapsed_time(ends) * 1e6) if ends.query() else None


def _like(parameter: Parameter, place: torch.Tensor) -> torch.Tensor:
    """A view of a piece of memory in the shape, and where it is dense the layout, of a parameter."""
    place = place[: parameter.numel()]
    for dimensions, layout in (4, torch.channels_last), (5, torch.channels_last_3d):
        if parameter.dim() == dimensions and parameter.is_contiguous(memory_format=layout):
            return place.as_strided(parameter.size(), parameter.stride())
    return place.view(parameter.size())


def _grouped(parameters: Iterable[Parameter]) -> list[list[Parameter]]:
    """Parameters of one kind, in groups of so many bytes, in an order that depends on the parameters alone."""
    groups: list[list[Parameter]] = []
    open_groups: dict[tuple, tuple[list[Parameter], int]] = {}
    for parameter in parameters:
        kind = parameter.device, parameter.dtype
        size = parameter.numel() * parameter.element_size()
        group, room = open_groups.get(kind, ([], 0))
        if not group or room < size:
            room = _BUCKET if groups else _FIRST_BUCKET
            group = []
            groups.append(group)
        group.append(parameter)
        open_groups[kind] = group, room - size
    return groups
