"""How long this process works in its steps, without what it waits for others: that says who keeps whom waiting."""

import contextlib
import time
from collections.abc import Callable, Iterator


class WorkTime:
    """The time of a process in its steps, and between them, as far as that is its own.

    clock: nanoseconds that only grow.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns):
        self._clock = clock
        self._since: int | None = None  # it works since then
        self._pending = 0  # of the present step
        self.told = False
        """Whether the program has ever said what it waits."""
        self.total = 0
        """Nanoseconds of all steps so far, each as long as it would have taken with the fewest samples that a rank has; 0
        while nobody says what it waits."""

    def enter(self) -> None:
        """Another world begins: what belongs to a step that was not done there is forgotten."""
        self._since, self._pending = None, 0

    def go(self) -> None:
        """A step is about to be given to the program."""
        self._since = self._clock()

    def rest(self) -> None:
        """The program is done with the present item, and what comes now is not its work."""
        if self._since is not None:
            self._pending += self._clock() - self._since
            self._since = None

    @contextlib.contextmanager
    def waits(self) -> Iterator[None]:
        """What the block takes is spent waiting for others, or exchanging with them."""
        self.told = True
        if self._since is None:  # an evaluation, or a wait in a wait
            yield
            return
        self.rest()
        try:
            yield
        finally:
            self._since = self._clock()

    def done(self, waited: int | None, share: float) -> None:
        """The step is done. Of its time so many nanoseconds were spent waiting beside what waits() has seen; None when that
        is not known. share: the fewest samples that a rank has, over this rank's own, at most 1: who has more of them than
        others is not slow for that. What the program does until the next one belongs to that."""
        self.rest()
        own, self._pending, self._since = self._pending, 0, self._clock()
        if waited is not None and own > waited:
            self.total += int((own - waited) * share)


def share_of(samples: int, size: int, mine: int) -> float:
    """The fewest samples that a rank has of so many that are divided among size ranks, over those of this one; at most 1."""
    return min(1.0, max(1, samples // size) / mine) if mine else 1.0
