"""Concertina for models that are sharded over all ranks with fully_shard() of PyTorch (FSDP2).

    import concertina.fsdp as elastic

    job = elastic.join(seed=0)
    for world in job.worlds():
        net = build()
        for layer in net.layers:
            fully_shard(layer, mesh=job.mesh)
        fully_shard(net, mesh=job.mesh)
        opt = torch.optim.AdamW(net.parameters())
        for step in job.steps(data, state={"net": net, "opt": opt}, global_batch=128, micro_batch=8, epochs=30):
            with step:
                for x, y in step.micro_batches():
                    step.backward(F.cross_entropy(net(x), y))
                opt.step()
                step.report(loss=step.loss)

Each rank has some rows of every parameter, others in a world of another size. So the model is built anew in each world, and when
the loop over its steps begins each rank gets the rows that it lacks from those that had them: over the links of the world, where those
are in it and still have them, or from snapshots. What was built in the world before is needed for that until then, so leave it as it is; what
refers to it may be used for something else. With join(handover=False) it is not needed, and snapshots serve alone. Each rank writes a
snapshot of its own rows, and nobody ever has all of them. Everything else is as in concertina.torch.
"""

import functools
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import Module

from concertina import mistakes, randomness
from concertina import plan as plans
from concertina import torch as _torch
from concertina.agent import AgentError
from concertina.loader import Loader
from concertina.member import checked
from concertina.session import WorldChanged
from concertina.shardhandover import KNOWS, NOTHING, Held, ShardHandover, hopes_of, said
from concertina.shards import MOST, Rank
from concertina.streams import Stream
from concertina.tensors import is_sharded
from concertina.torch import Step
from concertina.world import Assignment, Change, World

__all__ = ["AgentError", "Change", "Job", "Loader", "Step", "World", "join"]


def join(*, seed: int = 0, backend: str | None = None, handover: bool = True) -> "Job":
    """Greets the agent, if there is one, and returns the job whose steps this program makes; see Job.

    seed: 0 … 2^64-1, of the order of the samples and of random numbers: those of Python, NumPy and PyTorch begin anew in each
    step, different ones on each rank, and in each world before the state is built, the same ones on all ranks.

    backend: as torch.distributed names it; by default nccl where there is a CUDA device (each process then uses the
    one of its local rank), gloo otherwise.

    handover: whether those who stay give the others their rows at a planned change, over gloo. What a process had in the last world it
    keeps for that, as many bytes as its rows of the parameters and of the optimizer's state have, beside what the program builds anew, until
    all have what they lack; and all of it is read twice, to see that it is still what it was. With False that is let go of when a world ends,
    as soon as the program names it no more, and all rows come from snapshots. Give the same on all ranks.

    Raises AgentError when the agent cannot be talked to or knows no state in shards, ValueError for a seed out of range.
    """
    return Job(seed=seed, backend=backend, handover=handover)


class Job(_torch.Job):
    """A training job whose state is in shards; see concertina.torch.Job."""

    _sharded = True

    def __init__(self, *, seed: int = 0, backend: str | None = None, handover: bool = True):
        self._coming_in: Assignment | None = None  # a world whose state is not there yet
        self._gives = handover
        self._held: Held | None = None  # what the last world has left, until it is given to others
        self._first_values: Callable[[], None] | None = None
        self._mesh: DeviceMesh | None = None
        super().__init__({}, seed=seed, backend=backend)

    @property
    def mesh(self) -> DeviceMesh:
        """All ranks of the present world, for fully_shard(module, mesh=job.mesh). Raises RuntimeError before the first one.

        It is not the same as that of another world. PyTorch remembers which mesh came of what for meshes that are the same, and those
        that it makes without a name are, though a process may have another rank in them.
        """
        if self._mesh is None:
            raise RuntimeError("no mesh yet: it is there in `for world in job.worlds()`")
        return self._mesh

    def steps(
        self,
        data: Sequence | Loader,
        *,
        state: Mapping[str, Any],
        global_batch: int,
        micro_batch: int | None = None,
        epochs: int | None = None,
        max_steps: int | None = None,
        evaluate: str | int | None = None,
        collate: Callable[[list], Any] | None = None,
    ) -> Iterator[Step]:
        """The steps of the training that are left, as long as the world lasts; see concertina.torch.Job.steps().

        state: what training changes, by name, built in this world: modules with fully_shard() around them or within them, over
        job.mesh, optimizers of their parameters, schedulers, and whatever else has state_dict() and load_state_dict(). From the first
        item of the loop on it is that of the step after which the world begins, and so are job.values(). A DTensor in it is sharded
        along dimension 0. What is no DTensor is kept by every worker.

        All ranks compute as many micro-batches, since they wait for each other in them: one that has fewer computes the first
        sample of the step at weight 0. So a loss of weight 0 has to be finite.

        Raises RuntimeError outside of `for world in job.worlds()`, ValueError for a module that is sharded over another mesh, and
        TypeError for a Stream, whose samples nobody can fill in.
        """
        if isinstance(data, Stream):
            raise TypeError("a Stream with a state in shards: a rank without samples has nothing to compute along with the others")
        self._take_state(state)
        self._look_around(sys._getframe(1).f_locals, "steps")
        self._fillers = True
        return super(_torch.Job, self).steps(  # type: ignore[return-value]
            data, global_batch=global_batch, micro_batch=micro_batch, epochs=epochs, max_steps=max_steps,  # type: ignore[arg-type]
            evaluate=evaluate, collate=collate,
        )  # fmt: skip

    def _take_state(self, state: Mapping[str, Any]) -> None:
        """Takes the state that was built in the present world, which is brought to its step when the loop begins."""
        if not self._by_worlds or self._world is None:
            raise RuntimeError("loop over `for world in job.worlds()`, and build the state in it: it is cut otherwise in each")
        if self._there and not self._coming_in:
            raise RuntimeError("the state of this world is there already: one loop over job.steps(…) in each")
        state = checked(mistakes.all_unwrapped(state))
        for name, thing in state.items():
            for at, parameter in thing.named_parameters() if isinstance(thing, Module) else ():
                if is_sharded(parameter) and parameter.device_mesh != self._mesh:
                    raise ValueError(
                        f"state[{name!r}]: {at} is sharded over {parameter.device_mesh}, and not over {self._mesh}, which are the ranks "
                        "of this world: fully_shard(module, mesh=job.mesh)"
                    )
        if self._coming_in:
            self._state = state
            self._look_through()

    # Worlds.

    def _enter_world(self, assigned: Assignment) -> None:
        world = assigned.world
        if world.size > MOST:
            raise RuntimeError(
                f"a state in shards has at most {MOST} ranks, and this world has {world.size}, of which nobody could take a "
                "snapshot: set spec.workers.max to fewer workers"
            )
        # Of what was built in the last world no more is needed than its rows, until those are given. Another world may begin by now than the one
        # for which they were kept.
        if not self._goes_on(assigned) or self._held and not self._held.is_of(assigned.shards):
            self._held = None
        # Its memory is that of a processor, whatever gloo exchanges.
        self._groups.knows = KNOWS if self._groups.by_gloo else ""
        self._groups.says = said(self._held) if self._gives else NOTHING
        self._live.doubt()
        self._coming_in, self._state = assigned, {}
        self._keeper.take({})
        self._gradients.close()
        self._look_through()
        super()._enter_world(assigned)
        self._reseed(randomness.seed_of(self._seed, "state"))

    def _goes_on(self, assigned: Assignment) -> bool:
        """Whether a world begins with the state that the last one has left here, cut otherwise: so the operator says."""
        return not assigned.restore and bool(assigned.shards) and assigned.world.from_step == self._place.step

    def _keep_for(self, following: Assignment) -> None:
        before = self._world
        if self._coming_in or not self._live.clean or not self._goes_on(following) or not (self._gives and self._groups.by_gloo):
            return
        try:
            layout, parts = self._keeper.shards()
            self._held = Held(Rank(before.rank, before.size), layout, parts, lambda: self._session.aborted)
        except WorldChanged:
            pass
        except Exception as error:  # Whatever is wrong here, the snapshot serves: a state that cannot be kept is told of where it is to be.
            print(f"concertina: what this process has is not given to others, who read the snapshot: {error!r}", file=sys.stderr, flush=True)

    def _close(self) -> None:
        self._held = None
        super()._close()

    def _adopt(self, assigned: Assignment) -> None:
        """The state is not built yet: see _come_in()."""

    def _form(self, world: World, listener: socket.socket | None) -> None:
        self._live.doubt()  # There is nothing yet, also where it does not come to that world.
        super()._form(world, listener)
        if not hopes_of(self._groups.heard):
            self._held = None

    def _spread(self, world: World) -> None:
        if self._coming_in:
            device = self._groups.device or torch.device("cpu")
            self._mesh = init_device_mesh(device.type, (world.size,), mesh_dim_names=(f"world-{world.round}",))
        else:
            super()._spread(world)

    def _tell_change(self) -> None:
        if not self._coming_in:
            super()._tell_change()

    def _advance(self) -> Step | None:
        if self._coming_in:
            self._come_in(self._coming_in)
        return super()._advance()  # type: ignore[return-value]

    def _come_in(self, assigned: Assignment) -> None:
        """Brings the state that was built in this world to the step after which it begins."""
        world = assigned.world
        self._first_values = self._first_values or self._values._copy()
        self._buffers.watch(self._modules())
        self._watch()  # Before a forward pass: modules may have whole parameters after one.
        if world.from_step or assigned.shards:
            self._bring(assigned, lambda: self._gathered(assigned))
        else:
            self._first_values()
            self._place, self._loaded = plans.Place(), {}
            self._keeper.take(self._kept())
            self.gate.restart(0, 0)
        self._gradients.scale = self._loaded.get("scale", 0)
        self._coming_in = None
        self._live.settled()
        self._spread(world)
        self._keeper.begin(self._session.agent, self._place.step, assigned)
        self._tell_change()

    def _gathered(self, assigned: Assignment) -> Mapping[str, int]:
        """Loads the state with which a world begins; returns its position."""
        world = assigned.world
        if not assigned.shards:
            raise RuntimeError(
                f"the world begins after step {world.from_step}, and the shards of the state are not told: the operator has to be of "
                "the agent's version"
            )
        fetch = functools.partial(self._session.want, world.round)  # type: ignore[union-attr]
        rank, links, groups = Rank(world.rank, world.size), None, self._groups
        if hopes := hopes_of(groups.heard):  # As after a loss, there is nobody to wait for otherwise.
            links = ShardHandover(rank, groups.everyone, lambda: self._session.aborted, self._held, hopes, groups.store)
        self._held = None
        return self._keeper.load_shards(assigned.snapshot, assigned.shards, fetch, self._kept(), rank, links)
