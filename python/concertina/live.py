"""Whether the state that a process has is exactly the one after its last step, and the way back to that."""

from collections.abc import Callable


def _stands() -> None:
    """Puts back the state of a training that stands still."""


class LiveState:
    """The state of one process while it trains.

    It is clean between two steps, and in a step until something of it is written that cannot be put back. The
    first step in which nothing was said of that is taken to write from its beginning.

    copy: copies what a step changes before that moment, such as random numbers, and returns what puts it back.
    """

    def __init__(self, copy: Callable[[], Callable[[], None]]):
        self._copy = copy
        self._undo: Callable[[], None] | None = None
        self._stepping = False
        self._announces = False
        self._whole = True
        self.writing = False
        """Whether the present step has said that it changes the state."""

    @property
    def clean(self) -> bool:
        """Whether the state is the one after the last step that was done."""
        return self._whole and not self._stepping

    @property
    def doubtful(self) -> bool:
        """Whether something outside of a step has left it open what the state is."""
        return not self._whole and not self._stepping

    def doubt(self) -> None:
        """Something outside of a step may leave the state half-written, such as loading it."""
        self._whole, self._undo = False, None

    def settled(self) -> None:
        """The state is the one after the last step: it was loaded, or that step is done."""
        self._whole, self._stepping, self.writing = True, False, False
        self._undo = self._copy()

    def stand(self) -> None:
        """The training stands still. Between two steps the state is what it is now, for all: nothing has to be
        copied to put it back, as long as it stands."""
        if not self._stepping:
            self._whole, self.writing, self._undo = True, False, _stands

    def go_on(self) -> None:
        """The training goes on from where it stood, in the same world."""
        if self._undo is _stands:
            self._undo = self._copy()

    def begin(self) -> None:
        """A step begins. What an evaluation before it has written to stays unclean until the step is done."""
        self._stepping, self._whole, self.writing = True, self._whole and self._announces, False

    def write(self) -> None:
        """From here on the state changes until the step is done. From the first call on every step is taken to
        say so."""
        self._announces = self.writing = True
        self._whole = False

    def leave(self) -> None:
        """The world has ended: puts the state back where that can be done. Never fails: what cannot be put back is
        not clean."""
        undo, self._undo = self._undo, None
        if self._whole and undo:
            try:
                undo()
            except Exception:  # such as that of a device that is broken
                self._whole = False
        self._whole = self._whole and (undo is not None or not self._stepping)
        self._stepping = self.writing = False
