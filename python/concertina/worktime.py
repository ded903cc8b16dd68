"""How long this process works in its steps, without what it waits for others: that says who keeps whom waiting."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

LATE = 256
"""Steps that are waited for before what one has waited is taken for unknown."""
Waited = int | Callable[[], int | None] | None
"""Nanoseconds that were waited in a step; or what says them, now or some steps later; None where nobody will know."""


class WorkTime:
    """The time of a process in its steps, and between them, as far as that is its own.

    clock: nanoseconds that only grow.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns):
        self._clock = clock
        self._thread = 0  # that trains
        self._since: int | None = None  # it works since then
        self._known = False  # what the present waits() is about is known otherwise
        self._pending = 0  # of the present step
        # Steps of which it is not known yet what they waited, each with its time, its share, and what will say it.
        self._late: deque[tuple[int, float, Callable[[], int | None]]] = deque()
        self._steps = self._sum = 0  # those of this world that are known, and what was worked in them
        self._ahead = 0  # nanoseconds for which more was waited than worked
        self._ahead_for = 0  # steps
        self.told = False
        """Whether the program has ever said what it waits in a step."""
        self.total = 0
        """Nanoseconds of all steps so far, each as long as it would have taken with the fewest samples that a rank has; 0
        while nobody says what it waits."""

    def enter(self) -> None:
        """Another world begins: what belongs to a step that was not done there is forgotten."""
        self._since, self._pending = None, 0
        self._late.clear()
        self._steps = self._sum = self._ahead = self._ahead_for = 0

    def go(self) -> None:
        """A step is about to be given to the program."""
        self._thread, self._since = threading.get_ident(), self._clock()

    def rest(self) -> None:
        """The program is done with the present item, and what comes now is not its work."""
        if self._since is not None:
            self._pending += self._clock() - self._since
            self._since = None

    @contextlib.contextmanager
    def waits(self) -> Iterator[None]:
        """What the block takes is spent waiting for others, or exchanging with them: in the thread that trains, in a step."""
        if self._since is None or threading.get_ident() != self._thread:  # an evaluation, a wait in a wait
            yield
            return
        self.told, self._known = True, False
        self.rest()
        since = self._clock()
        try:
            yield
        finally:
            # A block with what is known otherwise is work for the rest: left out, that would count twice.
            self._since = since if self._known else self._clock()

    def knows(self) -> None:
        """What is waited now is told with done(), also where it stands in waits()."""
        self._known = True

    def done(self, waited: Waited, share: float) -> None:
        """The step is done. Of its time so long was spent waiting beside what waits() has seen. share: the fewest samples
        that a rank has, over this rank's own, at most 1: who has more of them than others is not slow for that. What the
        program does until the next one belongs to that."""
        self.rest()
        own, self._pending, self._since = self._pending, 0, self._clock()
        if not callable(waited):
            self._know(own, waited, share)
            return
        self._late.append((own, share, waited))
        while self._late:  # A device comes to one step after another.
            own, share, ask = self._late[0]
            waited = ask()
            if waited is None and len(self._late) <= LATE:
                return
            self._late.popleft()
            self._know(own, waited, share)

    def _know(self, own: int, waited: int | None, share: float) -> None:
        """It is known of a step what was waited in it, or that nobody will know: it is as long as others then.

        A program goes ahead of its device, which waits meanwhile, and stands still where it looks at a result. So a step may
        have waited for longer than it took, and another one takes that much longer: only their sum says how long it works.
        """
        if waited is None:
            worked = self._sum // max(self._steps, 1)
        else:
            worked = int((own - waited) * share)
            self._sum, self._steps = max(0, self._sum + worked), self._steps + 1
        worked -= self._ahead
        if worked >= 0:
            self.total, self._ahead, self._ahead_for = self.total + worked, 0, 0
        elif self._ahead_for < LATE:
            self._ahead, self._ahead_for = -worked, self._ahead_for + 1
        else:  # Nobody goes so far ahead: something was counted twice.
            self._ahead = self._ahead_for = 0


def share_of(samples: int, size: int, mine: int) -> float:
    """The fewest samples that a rank has of so many that are divided among size ranks, over those of this one; at most 1."""
    return min(1.0, max(1, samples // size) / mine) if mine else 1.0
