"""When a run's state is written to a snapshot, and what happens to it then.

Copying the state holds training up, so it is done rarely, and the file is written by a thread. Where optimizers tell
before they write, even the copy is that thread's: it takes it while the next step computes its gradients.
"""

import contextlib
import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from concertina import snapshot
from concertina.agent import Agent
from concertina.cadence import Cadence
from concertina.gate import Phase

NEVER = 2**63
"""A step that no training reaches."""


class Keeper:
    """Takes the snapshots of one process.

    state: objects with state_dict() and load_state_dict(), by name; None: there are no snapshots.
    position: where training is, in numbers, of which "step" is one.
    """

    def __init__(
        self, state: Mapping[str, Any] | None, codec: snapshot.Codec, position: Callable[[], Mapping[str, int]]
    ):
        self._state = state
        self._codec = codec
        self._position = position
        self._agent: Agent | None = None
        self._memory: memoryview | None = None
        self._first: snapshot.Image | None = None
        self._first_lost = False
        self._thread: threading.Thread | None = None
        self._writing = False
        self._current = threading.Lock()
        self._world = 0
        self._names = itertools.count()
        self._cadence = Cadence()
        self._fenced = False
        self._hides = True
        self._staging: threading.Event | None = None
        self._superseded = False
        self._begun = False
        self._writer = False
        self.due = NEVER
        """The number of steps done from which on consider() wants to be called."""

    def begin(self, agent: Agent | None, step: int, writer: bool) -> None:
        """A world begins, in which this process has done so many steps."""
        self._agent = agent
        self._writer = writer and agent is not None and bool(agent.snapshots)
        self._begun = False
        if self._state is None or not agent:
            return
        self._cadence.interval = None if agent.interval is None else int(agent.interval * 1e9)
        self.due = step if self._writer or step == 0 else NEVER

    def consider(self, step: int) -> None:
        """Takes a snapshot of the state after this step, if it is time for one."""
        if not self._begun:
            self._begun = True
            self._cadence.start(step, time.monotonic_ns())
            if step == 0:
                self._keep_first()
            self.due = step + 1
            return
        self._first = None
        if not self._writer:
            self._memory, self.due = None, NEVER
            return
        if self._cadence.due(step, time.monotonic_ns()):
            self._keep(step)
        self.due = self._cadence.next(step)

    def fence(self) -> None:
        """Something is about to write to the state, as an optimizer does: what is being copied of it is there when this
        returns. Who never calls it has its state copied at once."""
        self._fenced = True
        if self._staging:
            self._staging.wait()
            self._staging = None

    def save(self, step: int) -> None:
        """Writes a snapshot of the state after this step, while training stands still."""
        if self._state is None:
            self._agent.snapshot_failed(step, "the program has not said what its state is: Run(state=…)")
        elif not self._agent.snapshots:
            self._agent.snapshot_failed(step, "the agent has named no folder for snapshots")
        elif step != self._position()["step"]:
            self._agent.snapshot_failed(step, f"the state is the one after step {self._position()['step']}")
        else:
            before = self._agent.gate.phase(Phase.SAVING)
            self._end_staging()
            try:
                self._write(self._image(), step, self._world)
            except snapshot.SnapshotError as error:
                self._agent.snapshot_failed(step, str(error))
            except (MemoryError, OSError) as error:
                self._agent.snapshot_failed(step, _no_memory(error))
            finally:
                self._agent.gate.phase(before)

    def load(self, path: str) -> Mapping[str, int]:
        """Makes the state that of a snapshot, in place where that is possible; returns its
        position. Without a path the state becomes the one before the first step.

        Raises OSError when the file cannot be read, SnapshotError when it is no snapshot of this
        state.
        """
        self._join()  # It may read what is about to be written.
        if not path:
            return self._load_first()
        existing = {name: thing.state_dict() for name, thing in self._state.items()}
        position, state = snapshot.read(path, self._codec, existing)
        for name, what in ("seed", "seed"), ("batch", "global_batch"):
            own = self._position().get(name)
            if name in position and position[name] != own:
                raise snapshot.SnapshotError(
                    f"{path} is of a training with {what}={position[name]}, this run has {what}={own}: with another one "
                    "its next samples would not be those that are left"
                )
        if not isinstance(state, dict) or state.keys() != self._state.keys():
            raise snapshot.SnapshotError(f"{path} has the state of {_names(state)}, this run of {_names(self._state)}")
        for name, thing in self._state.items():
            thing.load_state_dict(state[name])
        return position

    def forget(self) -> None:
        """The world has ended: what is being written belongs to it, and is not reported any more."""
        with self._current:
            self._world += 1
        self.due = NEVER

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
        self._first = self._copied(0)
        self._first_lost = self._first is None
        if self._writer and self._first:
            self._start(self._first, 0)

    def _keep(self, step: int) -> None:
        if self._writing:
            return  # The last one is still being written, from the memory that this one needs.
        fenced, self._fenced = self._fenced, False
        if fenced and self._hides:
            self._memory = None
            self._stage(step)
        elif image := self._copied(step):
            self._start(image, step)

    def _stage(self, step: int) -> None:
        """Begins to write the live state, which is not to change before fence()."""
        begin = time.monotonic_ns()
        try:
            image = self._image()
            image.settle()
        except (MemoryError, OSError) as error:
            self._agent.snapshot_failed(step, _no_memory(error))
            return
        self._staging = threading.Event()
        self._start(image, step, (self._staging, begin))

    def _copied(self, step: int) -> snapshot.Image | None:
        """A copy of the state; None where there is no memory for one, which the agent is told: training goes on,
        and the next one is tried when it is due."""
        begin = time.monotonic_ns()
        image = None
        try:
            image = self._image()
            self._copy(image)
        except (MemoryError, OSError) as error:
            image = None
            self._agent.snapshot_failed(step, _no_memory(error))
        self._cadence.held = max(1, time.monotonic_ns() - begin)
        return image

    def _image(self) -> snapshot.Image:
        state = {name: thing.state_dict() for name, thing in self._state.items()}
        return snapshot.Image(state, self._position(), self._codec)

    def _copy(self, image: snapshot.Image) -> None:
        if self._memory is None or len(self._memory) < image.bytes:
            self._memory = memoryview(_room(image.bytes))
        image.keep(self._memory)

    def _start(self, image: snapshot.Image, step: int, staging: tuple[threading.Event, int] | None = None) -> None:
        self._writing = True
        self._thread = threading.Thread(
            target=self._write, args=(image, step, self._world, staging), name="concertina-snapshot", daemon=True
        )
        self._thread.start()

    def _end_staging(self) -> None:
        """Breaks off what is being copied of an older state: a newer one is about to be written, and takes its room."""
        self._superseded = True
        self._join()
        self._superseded = False

    def _join(self) -> None:
        if self._thread:
            self._thread.join()

    def _write(
        self, image: snapshot.Image, step: int, world: int, staging: tuple[threading.Event, int] | None = None
    ) -> None:
        name = f"{step}.{os.getpid()}-{next(self._names)}.part"
        path = os.path.join(self._agent.snapshots, name)
        try:
            size = image.write(path, lambda: staging is not None and (self._superseded or world != self._world))
            if staging and not image.intact(path):
                self._hides = False
                raise OSError(
                    "something other than an optimizer has written to the state while it was copied: from now on it is "
                    "copied at once"
                )
        except InterruptedError:
            with contextlib.suppress(OSError):
                os.unlink(path)
            return
        except Exception as error:
            text = f"{getattr(error, 'strerror', None) or repr(error)}: {path}"
            with contextlib.suppress(OSError):
                os.unlink(path)
            self._say(world, lambda: self._agent.snapshot_failed(step, text))
            return
        finally:
            self._writing = False
            if staging:
                # Not what it held training up, which is next to nothing: it took its time on a processor.
                staged, begin = staging
                self._cadence.held = max(1, time.monotonic_ns() - begin)
                staged.set()
        if not self._say(world, lambda: self._agent.say("snapshot", step=step, file=name, bytes=size)):
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _say(self, world: int, speak: Callable[[], None]) -> bool:
        """Reports, unless the world is over: the agent would take it for a snapshot of the next."""
        with self._current:
            if world == self._world:
                speak()
            return world == self._world


def _no_memory(error: BaseException) -> str:
    return (
        f"no memory for a copy of the state ({str(error) or type(error).__name__}): give the worker as much more as the state "
        "has bytes"
    )


def _room(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, max(size, mmap.PAGESIZE))
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)  # Fewer faults when it is filled for the first time.
    return memory


def _names(state: Mapping) -> str:
    return ", ".join(sorted(state)) or "nothing"
