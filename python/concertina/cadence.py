"""When a periodic snapshot is due, as the section "Snapshots" of docs/program-protocol.md says."""

SHARE = 100
"""How many times longer training goes on than a snapshot holds it up, with the interval auto."""

LEAST = 1_000_000_000
"""The shortest interval that auto comes to, in nanoseconds: a recovery costs seconds anyway."""

_MOST = 2**40


class Cadence:
    """The steps after which the clock is read, and those of them in which a snapshot is due. All times are in
    nanoseconds. It reads no clock."""

    def __init__(self) -> None:
        self.interval: int | None = None
        """The least time between two snapshots; None for auto."""
        self.held = 0
        """How long the last snapshot held training up; 0 before the first."""
        self._every = 1
        self._step = 0
        self._at = 0

    def start(self, step: int, now: int) -> None:
        """A world begins after this step."""
        self._every, self._step, self._at = 1, step, now

    def due(self, step: int, now: int) -> bool:
        """Whether a snapshot is due after this step, at which the clock is read."""
        steps, took = step - self._step, now - self._at
        if not steps:
            return False
        self._step, self._at = step, now
        mean, interval = max(took // steps, 1), self._interval()
        wanted = 1
        while wanted < _MOST and mean <= interval // wanted:
            wanted *= 2
        # No faster than by doubling: a few quick steps must not put the next look off for ever.
        self._every = min(wanted, 2 * self._every)
        return step % wanted == 0

    def next(self, step: int) -> int:
        """The step after which the clock is read next, later than this one."""
        return (step // self._every + 1) * self._every

    def _interval(self) -> int:
        if self.interval is not None:
            return self.interval
        return max(LEAST, SHARE * self.held) if self.held else 0  # The first one is due at once.
