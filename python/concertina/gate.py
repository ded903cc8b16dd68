"""The gate page: shared memory in which program and agent tell each other how far training is, and
how far it may go.

The layout is in docs/program-protocol.md. A store here is a store of one aligned word, so neither
side ever waits for the other.
"""

import enum
import mmap
import os
import threading
import time

_MAGIC = 0x434E4352544E4131
_LAYOUT = 2
_LINE = 8  # words
_WORD_BYTES = 8


class Phase(enum.IntEnum):
    """What a program is busy with."""

    NONE = 0
    FORMING = 1
    DATA = 2
    STEP = 3
    EVAL = 4
    SAVING = 5
    FINISHED = 6


class GatePage:
    """One process's lines of the gate page."""

    def __init__(self, fd: int, slot: int):
        """Maps the page and closes fd. Raises ValueError for a page this SDK cannot use."""
        try:
            size = os.fstat(fd).st_size
            if size < 3 * _LINE * _WORD_BYTES:
                raise ValueError(f"the agent's gate page has {size} bytes: it is too small to be one")
            self._memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        self._words = memoryview(self._memory).cast("Q")
        self._stop = _LINE * (1 + 2 * slot)
        self._line = _LINE * (2 + 2 * slot)
        self._fence = threading.Lock()
        try:
            self._check(slot)
        except ValueError:
            self.close()
            raise

    def _check(self, slot: int) -> None:
        magic, layout, slots = self._words[0], self._words[1], self._words[2]
        if magic != _MAGIC:
            raise ValueError("the agent's gate page does not start like one")
        if layout != _LAYOUT:
            raise ValueError(
                f"the agent's gate page has layout {layout}, this SDK knows {_LAYOUT}: "
                "use an SDK of the operator's version"
            )
        if not 0 <= slot < slots or len(self._words) < self._line + _LINE:
            raise ValueError(f"slot {slot} is not on the agent's gate page, which has {slots}")

    def enter(self, step: int) -> int:
        """Says that this step is about to begin; returns the last step that may be made, 0 for
        no limit."""
        words = self._words
        words[self._line] = step
        # The agent writes its word and then reads ours, so ours must be out before its is read.
        # The processor may swap a store and a later load; taking a lock keeps it from that on amd64.
        # On others the agent makes all processors pass a barrier before it reads.
        self._fence.acquire()
        self._fence.release()
        return words[self._stop]

    def stop(self) -> int:
        """The last step that may be made; 0 for no limit."""
        return self._words[self._stop]

    def done(self, step: int, samples: int, worked: int = 0) -> None:
        """Says that this step has ended, how many samples the world has used up to it, and for how long this process has
        worked itself, in nanoseconds; 0 when it does not know."""
        words, line = self._words, self._line
        words[line + 7] = worked
        words[line + 4] = samples
        words[line + 5] = time.monotonic_ns()
        words[line + 1] = step

    def begun(self) -> None:
        """Says that the first step in a world has begun."""
        self._words[self._line + 6] = time.monotonic_ns()

    def restart(self, step: int, samples: int) -> None:
        """Says that the state is now the one after this step, and that none has begun in this world."""
        words, line = self._words, self._line
        words[line + 6] = 0
        words[line] = step
        words[line + 4] = samples
        words[line + 1] = step

    def last_step(self, step: int) -> None:
        """Says which step is the last of the training."""
        self._words[self._line + 2] = step

    def phase(self, phase: int) -> int:
        """Says what the program is busy with, a Phase; returns what it said before."""
        before = self._words[self._line + 3]
        self._words[self._line + 3] = phase
        return before

    def at(self) -> tuple[int, ...]:
        """What the program has said of where it is: the step that it entered, the one that it has done, and last its phase.
        Raises ValueError once the page is closed."""
        return self._words[self._line], self._words[self._line + 1], self._words[self._line + 3]

    def close(self) -> None:
        """Unmaps the page. A second call does nothing."""
        self._words.release()
        self._memory.close()


class NoGatePage:
    """Takes the place of the page in a program that runs without an agent: nothing is said to
    anybody, and nothing limits the training."""

    def enter(self, step: int) -> int:
        """There is no limit."""
        return 0

    def stop(self) -> int:
        """There is no limit."""
        return 0

    def done(self, step: int, samples: int, worked: int = 0) -> None:
        """Does nothing."""

    def begun(self) -> None:
        """Does nothing."""

    def restart(self, step: int, samples: int) -> None:
        """Does nothing."""

    def last_step(self, step: int) -> None:
        """Does nothing."""

    def phase(self, phase: int) -> int:
        """Does nothing."""
        return phase

    def close(self) -> None:
        """Does nothing."""
