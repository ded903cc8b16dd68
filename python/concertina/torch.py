"""Concertina for PyTorch: a job whose world is a torch.distributed process group.

    import concertina.torch as elastic

    job = elastic.join(state={"net": net, "opt": opt}, seed=0)
    for step in job.steps(data, global_batch=128, micro_batch=64, epochs=30, evaluate="epoch"):
        with step:
            if step.evaluates:
                step.report(accuracy=evaluate(net))
                continue
            for x, y in step.micro_batches():
                step.backward(F.cross_entropy(net(x), y))
            opt.step()
            step.report(loss=step.loss)

There is no wrapper around the model: step.backward() exchanges the gradients of the modules in the state, while the last
backward pass goes on. They are those of the whole batch, for any number of ranks. What a model computes across the
samples of a batch (BatchNorm) or draws at random (dropout, augmentation) still depends on how the batch was divided.

When a rank is lost the others make the step that it was in again, with the state that they have. They can as
long as no optimizer has begun its step, so what changes the state besides an optimizer comes after it.
"""

import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import TensorDataset, default_collate

from concertina import job as _job
from concertina import mistakes, randomness, recorder, samples, streams
from concertina import plan as plans
from concertina.agent import AgentError
from concertina.codec import SnapshotError
from concertina.gate import Phase
from concertina.gradients import Among, Gradients
from concertina.groups import Groups
from concertina.handover import Handover, with_room, without_memory
from concertina.loader import Loader, Part
from concertina.local import Replicas, local_mesh, local_of
from concertina.member import copy_whole
from concertina.session import WorldChanged
from concertina.shardgradients import forget_passes, keep_shards
from concertina.shards import Rank
from concertina.streams import Reader, Stream, StreamPlan
from concertina.torchstep import Step
from concertina.tensors import Buffers, InPlace, TensorCodec, copy_groups, copy_scaler, out_of_memory, spread, wake_scaler
from concertina.world import Change, World
from concertina.worktime import Waited

__all__ = ["AgentError", "Change", "Job", "Loader", "Step", "Stream", "World", "join", "local_mesh"]


def join(
    state: Mapping[str, Any], *, seed: int = 0, backend: str | None = None, mesh: DeviceMesh | None = None
) -> "Job":
    """Greets the agent, if there is one, and returns the job whose steps this program makes; see Job.

    state: what training changes, by name: the modules (not wrapped ones), the optimizers, schedulers, a GradScaler, an
    average of the weights, and whatever else has state_dict() and load_state_dict(). A state_dict() may hold numbers, texts,
    containers, NumPy arrays and dense tensors. All ranks begin with the parameters of rank 0.

    seed: 0 … 2^64-1, of the order of the samples and of random numbers: those of Python, NumPy and PyTorch begin anew
    in each step, different ones on each rank, or each worker whose processes get the same samples.

    backend: as torch.distributed names it; by default nccl where there is a CUDA device (each process then uses the
    one of its local rank), gloo otherwise.

    mesh: that of local_mesh(), where the processes of each worker share the modules of the state over it: with fully_shard() of PyTorch,
    where each has samples of its own, or with parallelize_module(), or whatever makes DTensors, where all of them get the same samples.
    Workers are replicas of each other. What is not sharded is the same on all ranks.

    Raises AgentError when the agent cannot be talked to or is of another version, TypeError for an object without those
    methods or a DistributedDataParallel, ValueError for a seed out of range, for a module that is sharded over another mesh, for
    modules of which some are shared in one way and some in the other, and for an optimizer that would fail with DTensors and plain parameters.
    """
    return Job(state, seed=seed, backend=backend, mesh=mesh)


class Job(_job.Job):
    """A training job in a torch.distributed process group; see concertina.Job.

    In the loop over its steps the group is there, as the default group; between two steps it may be another one. After
    the loop it is gone.
    """

    _step_type = Step

    def __init__(
        self,
        state: Mapping[str, Any],
        *,
        seed: int = 0,
        backend: str | None = None,
        mesh: DeviceMesh | None = None,
    ):
        state = mistakes.all_unwrapped(state)
        self._groups = Groups(backend)
        together = not self._sharded and mistakes.shared(state, mesh)
        if mesh is not None:
            mistakes.refuse_mixed(state)
            local = local_of(mesh, backend)
            self._local, self._groups = Rank(local.rank, local.size), Replicas(local, together)
        self._lockstep = self._sharded or self._groups.lockstep
        self._gradients = Gradients()
        self._buffers = Buffers()
        self._fillers = False
        self._looked = False
        self._modes: list[tuple[Module, bool]] = []
        self._watched = -1
        self._compared = True  # norms of gradients, by the processes of a worker
        self._reader: Reader | None = None  # of a stream
        super().__init__(state, seed=seed)
        self._look_through()
        self._hook = register_optimizer_step_pre_hook(lambda optimizer, *_: self._optimizer_steps(optimizer))

    def _look_through(self) -> None:
        """Finds what there is in the state."""
        self._optimizers = [thing for thing in self._state.values() if isinstance(thing, Optimizer)]
        scalers = (thing for thing in self._state.values() if isinstance(thing, torch.amp.GradScaler))
        self._scalers = [scaler for scaler in scalers if scaler.is_enabled()]  # Another one has nothing to keep.

    def steps(
        self,
        data: Sequence | Loader | Stream,
        *,
        global_batch: int,
        micro_batch: int | None = None,
        epochs: int | None = None,
        max_steps: int | None = None,
        evaluate: str | int | None = None,
        collate: Callable[[list], Any] | None = None,
        fillers: bool = False,
    ) -> Iterator[Step]:
        """The steps of the training that are left; see concertina.Job.steps().

        data is a map-style data set, a Loader around one, or a Stream; collate makes a batch of a list of samples (default:
        torch.utils.data.default_collate; a Loader has its own).

        An epoch of a Stream ends when all of its shards have; its last step has what is left of them. The order of its
        samples is that of the shards: seed changes nothing in it.

        fillers: a rank that has fewer micro-batches than others computes the first sample of the step at weight 0
        instead, so that all do the same: for models that exchange something themselves, such as SyncBatchNorm.

        Raises TypeError for other data, and where the calling function has wrapped a module of the state in a
        DistributedDataParallel. Warns of an optimizer, scheduler, GradScaler or model there that is not in the state.
        """
        if collate and isinstance(data, Loader):
            raise ValueError("collate with a Loader: give Loader(…, collate_fn=…) instead")
        if fillers and isinstance(data, Stream):
            raise ValueError("fillers with a Stream: a rank that has no samples of it has none to fill in either")
        if self._lockstep and isinstance(data, Stream):
            raise TypeError("a Stream with fully_shard(): a rank without samples has nothing to compute along with the others")
        self._look_around(sys._getframe(1).f_locals, "join")
        self._fillers = fillers or self._lockstep
        return super().steps(  # type: ignore[return-value]
            data, global_batch=global_batch, micro_batch=micro_batch, epochs=epochs, max_steps=max_steps,  # type: ignore[arg-type]
            evaluate=evaluate, collate=collate,
        )  # fmt: skip

    def _look_around(self, variables: Mapping[str, Any], where: str) -> None:
        mistakes.refuse(variables, self._state)
        if not self._looked:
            self._looked = True
            mistakes.warn(variables, self._state, where, stacklevel=4)

    def _refuse_data(self, data: Any) -> None:
        mistakes.refuse_data(data)

    @property
    def group(self) -> dist.ProcessGroup | None:
        """All ranks of the present world, for what the program exchanges: dist.all_reduce(correct, group=job.group). None, which is
        torch.distributed's default group, but with a mesh, where that one has the processes of this worker alone."""
        return self._groups.everyone

    # What is done in a step.

    def _dealt(self) -> Rank:
        return self._groups.dealt(self.world)

    def _planned(self, data: Any, **options: Any) -> plans.Plan | StreamPlan:
        if not isinstance(data, Stream):
            self._reader = None
            return super()._planned(data, **options)
        if self._reader is None or self._reader.stream is not data:
            self._reader = Reader(data)
        return streams.plan(data, **options)

    def _coming(self) -> plans.Batch:
        if not self._place.step and self.world.size > 1:
            self._compare_plans()
        if self._reader is None:
            return super()._coming()
        self.gate.phase(Phase.DATA)
        batch = self._reader.batch(self._plan, self._place, self.world, self._dealt(), self._largest)
        after = self._plan.after(self._place, batch)
        if self._plan.over(after):
            self.gate.last_step(after.step)
        return batch

    def _largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest that any rank has at each place of a list."""
        told = self._numbers(numbers)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self._groups.everyone)
        found = told.tolist()
        if self._session.aborted:
            raise WorldChanged  # Between devices it says nothing when it was broken off.
        return found

    def _begin_step(self, step: Step) -> None:
        if not step.evaluates:
            self._watch()
            groups = self._groups
            among = Among(step.world.size, groups.everyone, groups.alike, groups.means(step.world))
            self._gradients.begin(step.samples * groups.repeats(step.world), among)
            # Where a plan of parallelize_module() is wrong it is so in each step.
            self._gradients.looks = groups.together and not self._compared
            return
        # Who is thrown out of an evaluation does not come to net.train().
        self._modes = [(module, module.training) for thing in self._modules() for module in thing.modules()]
        if step.world.size > 1:
            # All evaluate the same model, whatever each has seen of the batches.
            self._spread_all(self._buffers.present())

    def _watch(self) -> None:
        """Has the gradients of all parameters exchanged that optimizers of the state have by now."""
        there = self._optimized()
        if there != self._watched:
            keep_shards(self._modules())  # A forward pass without a backward one may have left whole parameters in them.
            self._gradients.watch(self._trained())
            self._watched, self._compared = there, False

    def _optimized(self) -> int:
        """How many parameters the optimizers of the state have."""
        there = 0
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                there += len(group["params"])
        return there

    def _compare_plans(self) -> None:
        """Refuses what would have ranks wait for each other for ever, or use samples twice. Raises RuntimeError."""
        mine = self._plan.compared() | {"seed": self._seed >> 1}  # of 64 bits
        first = self._numbers(mine.values())
        dist.broadcast(first, 0, group=self._groups.everyone)
        for (name, own), other in zip(mine.items(), first.tolist(), strict=True):
            if own != other:
                numbers = "" if name in ("seed", "evaluate") else f" ({own}, {other} there)"
                raise RuntimeError(
                    f"{name} is not what it is on rank 0{numbers}: give the same on all ranks, and all of the data; the loop "
                    "deals the samples out"
                )

    def _numbers(self, values: Iterable[int]) -> torch.Tensor:
        """Whole numbers, where they can be exchanged."""
        return torch.tensor([*values], dtype=torch.int64, device=self._groups.device or torch.device("cpu"))

    def _trained(self) -> Iterator[torch.nn.Parameter]:
        """All parameters whose gradients are exchanged."""
        for thing in self._state.values():
            if isinstance(thing, AveragedModel):
                continue  # It has copies of parameters, which are averaged and not trained.
            if isinstance(thing, Module):
                yield from thing.parameters()
            elif isinstance(thing, Optimizer):
                for group in thing.param_groups:
                    yield from group["params"]

    def _whole(self, step: Step) -> bool:
        if step.evaluates or not self._gradients.missing:
            self._modes = []
            self._gradients.settled()
            return True
        if self._session.aborted:
            return False
        raise RuntimeError("a step has to go through step.micro_batches() to its end: its gradients are exchanged there")

    def _exchange(self) -> None:
        self._work.knows()
        self._gradients.exchange()
        self._groups.agree(*self._gradients.told, self._norms())
        self._compared = True

    def _norms(self) -> dict[str, torch.Tensor]:
        """The norms of gradients that are compared in this step, by the names of their parameters."""
        found = self._gradients.norms
        if not found:
            return {}
        modules = [(name, thing) for name, thing in self._state.items() if isinstance(thing, Module)]
        names = {id(parameter): f"state[{name!r}]: {at}" for name, module in modules for at, parameter in module.named_parameters()}
        return {names.get(id(parameter), f"parameter {i} of the optimizers"): norm for i, (parameter, norm) in enumerate(found)}

    def _wake_scalers(self) -> None:
        """This rank has scaled no loss, and goes on like those that have."""
        for scaler in self._scalers:
            wake_scaler(scaler)

    def _waited(self) -> Waited:
        return self._gradients.stall

    def _optimizer_steps(self, optimizer: Optimizer) -> None:
        """An optimizer is about to write. What it writes must not come of an exchange that was broken off. Of one
        between devices only they know: a communicator that is aborted leaves whatever was there."""
        if self._gradients.missing and self._gradients.trains(optimizer):
            raise RuntimeError(
                "an optimizer steps before the gradients are exchanged: call step.backward(loss) for each of "
                "step.micro_batches(), and step after that loop"
            )
        if self._there and self._present and not self._present.evaluates:
            self._gradients.refuse_strangers()
            if self._optimized() != self._watched:
                raise RuntimeError(
                    "an optimizer was given parameters in the middle of a step, whose gradients were not exchanged: give them "
                    "between two steps"
                )
        begins = self._session.agent is not None and self._there and not self._live.writing
        if begins and self._groups.by_device:
            torch.cuda.current_stream().synchronize()
            if self._session.aborted:
                raise WorldChanged
            self._groups.compare()
        self._keeper.fence()  # Not earlier: the program would wait there for a copy that only its device has to wait for.
        if begins:
            self._begin_update()

    def _copies(self) -> list[Callable[[], None]]:
        return [*super()._copies(), self._buffers.copy(), *map(copy_scaler, self._scalers)]

    def _copy_of(self, thing: Any) -> Callable[[], None] | None:
        if isinstance(thing, Optimizer):
            return copy_groups(thing)
        if isinstance(thing, LRScheduler):  # It may hold the rate as a tensor.
            return copy_whole(thing, thing.state_dict())
        return super()._copy_of(thing)

    def _forget_step(self) -> None:
        self._gradients.forget()
        if self._local is not None and self._lockstep:
            forget_passes(self._modules())
        for module, training in self._modes:
            module.training = training
        self._modes = []
        for thing in self._state.values():
            if isinstance(thing, Module | Optimizer):
                thing.zero_grad(set_to_none=True)
        for scaler in self._scalers:
            scaler._per_optimizer_states.clear()  # It takes a step for what it was in the middle of otherwise.

    def _reseed(self, seed: int) -> None:
        super()._reseed(seed)
        if torch.cuda.is_initialized():
            self._groups.reseed(randomness.seed_of(seed, "tensors"))  # Before: newer PyTorch has one generator for both.
        torch.default_generator.manual_seed(seed)  # torch.manual_seed() takes 50 times as long.
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(seed)

    # Samples.

    def _used(self, pieces: Sequence[samples.MicroBatch]) -> list[samples.MicroBatch]:
        return [piece for piece in pieces if piece.samples or self._fillers]

    def _loader_of(self, data: Sequence | Loader | Stream, collate: Callable | None) -> Callable[[Step, range], Any]:
        if isinstance(data, Stream):
            return self._reading(collate or default_collate)
        if not isinstance(data, Loader):
            return super()._loader_of(data, collate)

        def load(step: Step, positions: range) -> Any:
            def ahead() -> Iterator[Part]:
                order = samples.Order(self._seed, step.epoch, len(data))
                for coming in self._ahead(step):
                    # By the place in the epoch: a step that is made again draws the same, and no rank what another one draws.
                    seed = randomness.seed_of(self._seed, "samples", step.epoch, coming.start, len(coming))
                    yield Part(order.of(coming), coming, seed)

            return data.read(step, positions, ahead)

        return load

    def _reading(self, join: Callable[[list], Any]) -> Callable[[Step, range], Any]:
        def load(step: Step, positions: range) -> Any:
            dealt = self._dealt()
            mine = self._plan.mine(step.batch, dealt.of, dealt.number)
            return join(self._reader.take(mine[positions.start : positions.stop]))

        return load

    def _ahead(self, step: Step) -> Iterator[range]:
        """The positions of all micro-batches of this rank from a step to the end of its epoch."""
        plan, dealt, place = self._plan, self._dealt(), self._place
        while True:
            batch = plan.batch(place)
            if batch.epoch != step.epoch or plan.over(place):
                return
            for piece in self._used(plan.part(batch, dealt.of, dealt.number)):
                yield _job.used_positions(piece, batch.first)
            place = plan.after(place, batch)

    def _fetcher(self, data: Sequence, collate: Callable[[list], Any] | None) -> Callable[[list[int]], Any]:
        if isinstance(data, TensorDataset) and collate is None:
            # One gather per tensor instead of one small tensor per sample.
            return lambda numbers: tuple(tensor[numbers] for tensor in data.tensors)
        join = collate or default_collate
        if hasattr(data, "__getitems__"):
            return lambda numbers: join(data.__getitems__(numbers))
        return super()._fetcher(data, join)

    # Worlds.

    def _hands_over(self) -> bool:
        if self._sharded or self._groups.by_device:  # Between devices it was not tried yet.
            return False
        try:
            self._keeper.image_alike()
        except Exception:
            return False  # It cannot be kept, which is told where it is to be.
        return True

    def _handover(self) -> Handover:
        (number, of), group = self._groups.replicas(self.world)
        several = self._local is not None  # one for each local rank
        return Handover(number, of, self._groups.device, group, lambda: self._session.aborted, self._meet_all if several else None)

    def _meet_all(self) -> Any:
        """Begins an exchange between all ranks of the world, which ends once all have."""
        return dist.all_reduce(torch.zeros(1, device="cpu"), group=self._groups.everyone, async_op=True)

    def _give_state(self) -> None:
        image = why = None
        try:
            with out_of_memory():
                image = self._keeper.image_alike()
        except MemoryError as error:
            why = without_memory(error)
        except (SnapshotError, OSError):
            pass  # which is told where it is to be kept
        self._handover().give(image, why)

    def _get_state(self) -> Mapping[str, int]:
        handover = self._handover()

        def begins() -> None:
            self._keeper.settle()  # Not before: others wait for what this rank says that it lacks.
            self._live.doubt()

        with with_room():  # A snapshot needs less, and the state that is half there counts for nothing.
            return self._keeper.receive("what other ranks have", lambda codec, now: handover.get(codec, now, begins))

    def _enter_world(self, assigned: Any) -> None:
        self._groups.kind = "/handover" if assigned.handover else ""
        self._buffers.watch(self._modules())
        self._watched = -1
        super()._enter_world(assigned)
        if not self._sharded:
            self._watch()  # Before the program computes something in this world.

    def _form(self, world: World, listener: socket.socket | None) -> None:
        self._groups.form(world, listener, lambda: self._session.aborted)
        if world.size > 1:
            self._connections.formed(world.size)
        self._spread(world)

    def _spread(self, world: World) -> None:
        """Has a training begin with the same on all ranks."""
        if world.from_step == 0 and world.size > 1:
            self._live.doubt()
            with torch.no_grad():
                whole = [tensor for module in self._modules() for tensor in module.state_dict().values()]
                self._spread_all(whole)
            if not self._groups.by_device:  # Devices tell later: at the gate.
                self._live.settled()

    def _spread_all(self, tensors: list[torch.Tensor]) -> None:
        """Gives all ranks the values of rank 0, and those of its worker's processes where these have shards."""
        spread(tensors, self._groups.device, self._groups.everyone)
        if self._groups.alike is not None:
            spread(tensors, self._groups.device, self._groups.alike, shards=True)

    def _leave(self) -> None:
        self._groups.leave()

    def _break_off(self, limit: float | None = None) -> None:
        # A device waits for ever in an exchange with a peer that has gone, and whatever asks it for something waits as well: to
        # put values back, or to take the group apart.
        self._groups.abort(limit)

    def _settle(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def _interrupt(self) -> None:
        super()._interrupt()
        self._groups.abort()

    def _describe(self) -> str:
        return recorder.describe()

    def _close(self) -> None:
        try:
            super()._close()
        finally:
            self._gradients.close()
            self._hook.remove()

    def _modules(self) -> list[Module]:
        return [thing for thing in self._state.values() if isinstance(thing, Module)]

    def _make_codec(self) -> TensorCodec:
        return TensorCodec(self._modules, local=self._local)

    def _adapted(self, thing: Any) -> Any:
        return InPlace(thing) if isinstance(thing, Optimizer) else thing

    def _position(self) -> dict[str, int]:
        return super()._position() | {"scale": self._gradients.scale}

    def _brought(self, assigned: Any, at: Mapping[str, int]) -> None:
        super()._brought(assigned, at)
        self._gradients.scale = self._loaded.get("scale", 0)
