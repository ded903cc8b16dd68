"""When a job's state is written to a snapshot, and what happens to it then.

Copying the state holds training up, so it is done rarely, and the file is written by a thread. Where optimizers tell
before they write, even the copy is that thread's: it takes it while the next step computes its gradients.
"""

import atexit
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from concertina import reports, sharded, snapshot
from concertina.agent import Agent, failure
from concertina.cadence import LEAST, SHARE, Cadence
from concertina.codec import Local, Room
from concertina.files import remove
from concertina.gate import Phase
from concertina.reports import not_copied, told_of
from concertina.shards import Rank
from concertina.work import Work
from concertina.world import Assignment, Staging

NEVER = 2**63
"""A step that no training reaches."""
STUCK = 60.0
"""Seconds in which nothing more of a snapshot is written before nobody waits for it any more."""
LEAVING = 10.0
"""Seconds for which a program that ends waits for a snapshot that it breaks off."""
_seconds = time.monotonic


class Keeper:
    """Takes the snapshots of one process.

    state: objects with state_dict() and load_state_dict(), by name.
    position: where training is, in numbers, of which "step" is one.
    sharded: whether each process has its own shard of the state.
    local: which one of its worker's processes this is, where all workers have the same state, of which each process has the shards of its
        local rank; None otherwise.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        codec: snapshot.Codec,
        position: Callable[[], Mapping[str, int]],
        *,
        sharded: bool = False,
        local: Rank | None = None,
    ):
        self._state = state
        self._sharded, self._local = sharded, local is not None
        self._shard = local  # that of this process in its world, where the state is in shards
        self._codec = codec
        self._position = position
        self._agent: Agent | None = None
        self._memory: memoryview | None = None
        self._near = False  # that memory is the codec's, for devices
        self._first: snapshot.Image | None = None
        self._first_lost = False
        self._thread: threading.Thread | None = None
        self._current = threading.Lock()
        self._world = 0
        self._names = itertools.count()
        self._cadence = Cadence()
        _keepers.add(self)
        self._fenced = False
        self._hides = not sharded and local is None  # What is in shards does not tell that something writes to it.
        self._staging: Work | None = None
        self._fencing = threading.Lock()  # Optimizers may step in several threads, as in hooks of autograd.
        self._work: Work | None = None
        self._superseded = self._closed = False
        self._begun = self._soon = False
        self._writer = False
        self._whole = False
        self._staging_of: Staging | None = None
        self._rank = 0
        self._describes = False  # whether it writes what is in no shards
        self._kept = -1  # the step of the last snapshot that was begun in this world
        self.due = NEVER
        """The number of steps done from which on consider() wants to be called."""

    def begin(self, agent: Agent | None, step: int, assigned: Assignment) -> None:
        """A world begins, in which this process has done so many steps."""
        self._soon = assigned.handover  # Those who have come hold none yet.
        self._agent = agent
        able = agent is not None and bool(agent.snapshots)
        world = assigned.world
        if self._sharded:
            self._shard = Rank(world.rank, world.size)
        self._describes = world.local_rank == 0
        self._whole, self._staging_of, self._rank = assigned.writer and able, assigned.staging, world.worker_rank
        if self._local:  # All workers write all of it, since all processes of one have to do so for the same step.
            self._whole, self._staging_of = able, None
        self._writer = able and (self._whole or assigned.staging is not None or self._sharded)
        self._begun, self._kept = False, -1
        if not agent:
            return
        self._cadence.interval = None if agent.interval is None else int(agent.interval * 1e9)
        # Who wrote in the last world and does not in this one is called as well, to give the memory back.
        held = self._memory is not None or self._first is not None
        self.due = step if self._writer or step == 0 or held else NEVER

    def consider(self, step: int) -> None:
        """Takes a snapshot of the state after this step, if it is time for one."""
        if not self._begun:
            self._begun = True
            self._cadence.start(step, time.monotonic_ns())
            if step == 0 and self._sharded:
                self._keep(step)
            elif step == 0:
                self._keep_first()
            self.due = step + 1
            return
        self._first = None
        if not self._writer:
            self._memory, self.due = None, NEVER
            return
        if self._cadence.due(step, time.monotonic_ns()) or self._soon:
            self._soon = self._soon and self._writing  # Nothing is taken then.
            self._keep(step)
        self.due = step + 1 if self._soon else self._cadence.next(step)

    def evaluated(self, step: int) -> None:
        """Takes a snapshot of the state after this step, which is about to be evaluated, unless there is one. What an evaluation
        may find outlives it so."""
        if not self._writer:
            return
        before = self._agent.gate.phase(Phase.SAVING)
        try:
            if step == self._kept:
                self._copy_now()  # An evaluation may write to the state, such as with averaged weights.
                return
            self._join()
            self._first = None
            self._fenced = False
            self._keep(step)
        finally:
            self._agent.gate.phase(before)

    def settle(self) -> None:
        """Waits until what is being written is there, or hangs."""
        self._join()

    def fence(self) -> None:
        """Something is about to write to the state, as an optimizer does: what is being copied of it is there when this
        returns, or it is given up, since it hangs. Who never calls it has its state copied at once."""
        self._fenced = True
        self._copy_now()

    def _copy_now(self) -> None:
        """Waits until what is being copied of the live state is there, or is given up."""
        with self._fencing:
            if (work := self._staging) and (image := work.image):
                image.fence()
                if image.lives:
                    self._await(work, work.staged)
                self._staging = work.image = None  # It holds what it is of.

    def save(self, step: int) -> None:
        """Writes a snapshot of the state after this step, while training stands still."""
        if not self._agent.snapshots:
            self._agent.snapshot_failed(step, "the agent has named no folder for snapshots")
        elif step != self._position()["step"]:
            self._agent.snapshot_failed(step, f"the state is the one after step {self._position()['step']}")
        else:
            before = self._agent.gate.phase(Phase.SAVING)
            self._end_staging()
            try:
                image, asked = self.image(), self._agent.asked
                files = self._files(image, step, asked, asked is None or 0 in asked.shares)
                if files:
                    image.only([(file.low, file.high) for file in files])
                    if image.away:
                        # The first state is not to be lost yet, if it is there.
                        image.bring(self._codec.room(image.away) if self._first else self._memory_of(image.away, near=True))
                    self._write(image, step, self._world, files)
                else:
                    self._agent.say("snapshot", step=step, parts=[])  # Another one writes all of it.
            except snapshot.SnapshotError as error:
                self._agent.snapshot_failed(step, str(error))
            except (MemoryError, OSError) as error:
                self._agent.snapshot_failed(step, not_copied(error))
            finally:
                self._agent.gate.phase(before)

    def load(self, path: str, shares: Sequence[str] = ()) -> Mapping[str, int]:
        """Makes the state that of a snapshot, and of the files with its shares, in place where that is possible; returns its
        position. Without a path the state becomes the one before the first step.

        Raises OSError when the file cannot be read, SnapshotError when it is no snapshot of this
        state.
        """
        self._join()  # It may read what is about to be written.
        if not path:
            return self._load_first()
        existing = {name: thing.state_dict() for name, thing in self._state.items()}
        return self._become(path, *snapshot.read(path, self._codec, existing, shares))

    def receive(self, name: str, read: Callable[[snapshot.Codec, Any], tuple[Mapping[str, int], Any]]) -> Mapping[str, int]:
        """Makes the state the one that is read, in place of what is there; returns its position. name: where it is from. read: calls settle()
        before it changes anything. Raises what that raises, and SnapshotError when it is none of this job."""
        return self._become(name, *read(self._codec.alike(), {name: thing.state_dict() for name, thing in self._state.items()}))

    def load_shards(
        self,
        path: str,
        keys: Sequence[str],
        fetch: sharded.Fetch,
        state: Mapping[str, Any],
        rank: Rank,
        links: sharded.Links | None = None,
    ) -> Mapping[str, int]:
        """Makes this state, which takes the place of the one before, that of a snapshot in shards, as a rank has it; returns its
        position. See sharded.read(). Raises what load() raises, and what fetch and links raise."""
        self._join()
        self.take(state)
        existing = {name: thing.state_dict() for name, thing in state.items()}
        return self._become(path, *sharded.read(path, keys, fetch, self._codec, existing, rank, links))

    def shards(self) -> tuple[str, list[Local]]:
        """The layout of the state as it is now, and what this process has of each value that is in shards, by number. Raises SnapshotError
        for a state that cannot be kept."""
        found: list[Local] = []
        return self._image(self._codec, self._shard, found).layout, found

    def load_local(self, assigned: Assignment, state: Mapping[str, Any]) -> Mapping[str, int]:
        """load() for a state of which each process has the shards of its local rank, from those of any number of local ranks."""
        self._join()
        if assigned.shards:
            raise snapshot.SnapshotError(
                f"{assigned.snapshot} is of a state in the shards of all ranks, which concertina.fsdp reads, and this job's is in those of "
                "the processes of a worker"
            )
        if not assigned.snapshot:
            return self._load_first()
        world = assigned.world
        existing = {name: thing.state_dict() for name, thing in state.items()}
        rank = Rank(world.local_rank, world.local_size)
        read = sharded.read(assigned.snapshot, assigned.shares, lambda keys, _: lambda: keys, self._codec, existing, rank)
        return self._become(assigned.snapshot, *read)

    def take(self, state: Mapping[str, Any]) -> None:
        """Keeps this state from now on, which takes the place of the one before."""
        self._state = state

    def _become(self, path: str, position: Mapping[str, int], state: Any) -> Mapping[str, int]:
        own = self._position().get("seed")
        if position.get("seed", own) != own:
            raise snapshot.SnapshotError(
                f"{path} is of a training with seed={position['seed']}, this job has seed={own}: with another one "
                "its next samples would not be those that are left"
            )
        if not isinstance(state, dict) or state.keys() != self._state.keys():
            raise snapshot.SnapshotError(f"{path} has the state of {_names(state)}, this job of {_names(self._state)}")
        for name, thing in self._state.items():
            thing.load_state_dict(state[name])
        return position

    def forget(self) -> None:
        """The world has ended: what is being written belongs to it, and is not reported any more."""
        with self._current:
            self._world += 1
        self.due = NEVER

    def close(self) -> None:
        """The program goes on without the job, or ends. Gives memory back, and waits for what is being copied: PyTorch aborts
        a program that has a thread in it when Python ends."""
        self.forget()
        self._closed = True
        self._first = self._memory = self._staging = None
        if self._thread:
            self._work.image = None
            self._thread.join(0 if self._work.given_up else LEAVING)

    def _load_first(self) -> Mapping[str, int]:
        if self._first is None:
            if self._position()["step"] or self._first_lost:
                raise snapshot.SnapshotError("nothing is left of the state before the first step")
            return {}  # No step was begun, so nothing has changed the state.
        self._join()
        state = self._first.values()
        for name, thing in self._state.items():
            thing.load_state_dict(state[name])
        return {}

    def _keep_first(self) -> None:
        # Also by those who write no file: who goes back to the first step needs what was there.
        self._join()
        begin = time.monotonic_ns()
        try:
            self._first = self.image()
            self._first.keep(self._memory_of(self._first.extent, near=self._first.away > 0))
        except (MemoryError, OSError) as error:
            self._first = None
            self._agent.snapshot_failed(0, not_copied(error))
        self._cadence.held = max(1, time.monotonic_ns() - begin)
        self._first_lost = self._first is None
        if self._first and not self._writing and (files := self._periodic(self._first, 0)):
            self._start(self._first, 0, files)

    @property
    def _writing(self) -> bool:
        """Whether a thread writes a snapshot, or has been given up and lives: the memory that it reads is not another's."""
        return self._work is not None and not self._work.done and not self._work.ended.is_set()

    def _keep(self, step: int) -> None:
        if self._writing:
            return  # The last one is still being written, from the memory that this one needs.
        fenced, self._fenced = self._fenced, False
        begin = time.monotonic_ns()
        try:
            image = self.image()
            files = self._periodic(image, step)
            if not files:
                self._cadence.held = max(1, time.monotonic_ns() - begin)
                return
            image.only([(file.low, file.high) for file in files])
            if fenced and self._hides:
                if image.away:
                    image.settle(self._memory_of(image.away, near=True))
                else:
                    self._memory = None
                    image.settle(memoryview(b""))
            else:
                self._copy(image)
        except (MemoryError, OSError) as error:
            # Training goes on, and the next one is tried when it is due.
            self._agent.snapshot_failed(step, not_copied(error))
            self._cadence.held = max(1, time.monotonic_ns() - begin)
            return
        if fenced and self._hides:
            # The live state is written, which is not to change before fence().
            self._staging = Work(step, _seconds(), begin, image)
            self._start(image, step, files, self._staging)
        else:
            self._cadence.held = max(1, time.monotonic_ns() - begin)
            self._start(image, step, files)

    def _periodic(self, image: snapshot.Image, step: int) -> list[snapshot.File]:
        """The files of a snapshot that is taken while training goes on; none where others write them."""
        return self._files(image, step, self._staging_of, self._whole) if self._writer else []

    def _files(self, image: snapshot.Image, step: int, staging: Staging | None, whole: bool) -> list[snapshot.File]:
        """The files that this process writes of an image: its part where several write one, and otherwise all of it, if it
        is the one that does."""
        name = os.path.join(self._agent.snapshots, f"{step}.{os.getpid()}-{next(self._names)}")
        if self._shard:
            if self._local and not whole:
                return []
            of = f"{self._shard.of}.{image.layout}"
            kind = "s" if self._local else "d"
            files = [image.shard(f"{name}-{kind}.part", f"{kind}{self._shard.number}.{of}")]
            return [*files, image.own(f"{name}.part", f"r{self._rank}.{of}")] if self._describes else files
        if staging is None or image.bytes - image.shared < snapshot.LEAST_SHARED:
            return [image.whole(f"{name}.part")] if whole else []
        of = f"{staging.of}.{image.layout}"
        files = [image.own(f"{name}.part", f"r{self._rank}.{of}")]
        for i in staging.shares:
            files.append(image.shares(f"{name}-{i}.part", f"s{i}.{of}", i, staging.of))
        return files

    def image(self) -> snapshot.Image:
        """The state as it is now, whose large values are the live ones. Raises SnapshotError for one that cannot be kept."""
        return self._image(self._codec, self._shard)

    def image_alike(self) -> snapshot.Image:
        """image() for those that have the same of the state as this process."""
        return self._image(self._codec.alike(), None)

    def _image(self, codec: snapshot.Codec, shard: Rank | None, shards: list[Local] | None = None) -> snapshot.Image:
        state = {name: thing.state_dict() for name, thing in self._state.items()}
        return snapshot.Image(state, self._position(), codec, shard, shards)

    def _copy(self, image: snapshot.Image) -> None:
        image.keep_packed(self._memory_of(image.room(), near=image.away > 0))

    def _memory_of(self, size: int, near: bool) -> memoryview:
        """Memory for so many bytes. near: devices copy into it."""
        if self._memory is None or near > self._near or not size <= len(self._memory) <= 4 * max(size, 1 << 20):
            self._memory, self._near = None, near  # Both need not be there at once.
            self._memory = self._codec.room(size) if near else memoryview(Room(size))
        return self._memory

    def _start(
        self, image: snapshot.Image, step: int, files: list[snapshot.File], staging: Work | None = None
    ) -> None:
        work = staging or Work(step, _seconds())
        thread = threading.Thread(
            target=self._run, args=(image, step, self._world, files, work), name="concertina-snapshot", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            # The limit of threads is reached. Nobody may wait for one that never started.
            self._staging = None
            self._cadence.held = max(self._cadence.held, LEAST // SHARE)
            self._agent.snapshot_failed(step, f"no thread to write the snapshot with ({error}): raise the limit of processes of the pod")
        else:
            self._thread, self._work, self._kept = thread, work, step

    def _end_staging(self) -> None:
        """Breaks off what is being copied of an older state: a newer one is about to be written, and takes its room."""
        self._superseded = True
        self._join()
        self._superseded = False

    def _join(self) -> None:
        """Waits until nothing is being written, or what is hangs, and counts no more."""
        if self._thread and self._await(self._work, self._work.ended):
            self._thread.join()

    def _await(self, work: Work, until: threading.Event) -> bool:
        """Whether it came to that. A folder that hangs may do so for ever, and must keep no program from training, from
        another world, or from ending: what is written into it is given up, and nothing else is as long as that lasts."""
        while not until.wait(None if work.done else max(0.001, work.moved + STUCK - _seconds())):
            with self._current:
                if work.done or _seconds() < work.moved + STUCK:
                    continue
                first, work.given_up = not work.given_up, True
            if first:
                self._memory = None  # It is what is written from.
                self._agent.snapshot_failed(
                    work.step,
                    f"nothing more of the snapshot could be written for {STUCK:g} s: {self._agent.snapshots} hangs. Training "
                    "goes on, and no other snapshot is taken before that is over. Delete the pod to have it replaced, and look "
                    "at its node",
                )
            return False
        return not work.given_up

    def _run(self, image: snapshot.Image, step: int, world: int, files: list[snapshot.File], work: Work) -> None:
        try:
            self._write(image, step, world, files, work)
        finally:
            work.ended.set()

    def _write(
        self, image: snapshot.Image, step: int, world: int, files: list[snapshot.File], work: Work | None = None
    ) -> None:
        sizes: list[int] = []
        told: dict[str, Any] = {}
        live = work is not None and work.begin is not None

        def staged() -> None:
            # Not what it held training up, which is next to nothing: it took its time on a processor, or a device.
            self._cadence.held = max(1, time.monotonic_ns() - work.begin)
            work.staged.set()

        def halted() -> bool:
            if work is None:
                return False
            work.moved = _seconds()
            return work.given_up or self._closed or live and (self._superseded or world != self._world)

        try:
            if live and not image.arrive():
                self._spoiled(work)
            if live and not image.lives:
                staged()
            spares = snapshot.claim(self._agent.snapshots, files)
            for file in files:
                sizes.append(image.write(file, halted, file.path in spares))
            if live and not image.intact(files):
                self._spoiled(work)
            told = reports.told(files, sizes) | reports.measured(image, files, work is not None)
        except InterruptedError:
            pass  # Nobody wants it any more.
        except Exception as error:
            told = failure(told_of(error, files, len(sizes), image.bytes)) | reports.measured(image, files, work is not None)
        finally:
            # Before anything is said: an optimizer that waits here does not wait for the agent.
            if work:
                work.moved = _seconds()
            if live and not work.staged.is_set():
                staged()
        if not told or "error" in told:
            remove(files)
        if not self._report(world, step, told, work):
            remove(files)

    def _spoiled(self, work: Work) -> None:
        """What was copied is not what the state was. Raises what is told of that."""
        if work.given_up:
            raise InterruptedError("nobody has waited for it")
        self._hides = False
        raise OSError(
            "something other than an optimizer has written to the state while it was copied: from now on it is copied at once"
        )

    def _report(self, world: int, step: int, told: Mapping[str, Any], work: Work | None) -> bool:
        """Tells what has become of a snapshot, in the order of snapshots, and makes place for the next one. False, and
        nothing is said, when what hung was given up, and when the world is over: the agent would take it for a snapshot of
        the next."""
        with self._current:
            if work and work.given_up or world != self._world:
                return False
            if work:
                work.done = True
            if told:
                self._agent.put("snapshot", step=step, **told)
        self._agent.push()  # Not within the lock, which who leaves a world takes.
        return True


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """A program may end in the middle of a step, where nobody closes anything."""
    for keeper in [*_keepers]:
        keeper.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keepers.clear)  # Whoever is forked has none of their threads, and may have their locks.


def _names(state: Mapping) -> str:
    return ", ".join(sorted(state)) or "nothing"
