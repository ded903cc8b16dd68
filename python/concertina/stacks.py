"""What the threads of a program are about, for its log: the agent asks before it kills one that hangs."""

import contextlib
import faulthandler
import os
import threading
from collections.abc import Callable

from concertina.gate import Phase

_SIGNAL = 40
"""As docs/program-protocol.md says; a real-time signal, which programs do not use."""

_ERRORS = 2

_HANGS = 3.0
_LONG = 27.0
"""Seconds. An agent asks for stacks a second after, in a step and in what may take longer, and kills another second later."""

_LONG_PHASES = (Phase.EVAL, Phase.SAVING)
_MOST = 16 * 1024
"""What is written of a description, in bytes."""


def offer() -> None:
    """From now on the stacks of all threads are written to the standard errors when the signal comes, whatever the
    interpreter waits for. faulthandler bounds them: 100 threads, 100 frames of each."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # Where there are no errors to write to.
        faulthandler.register(_SIGNAL, file=_ERRORS, all_threads=True)


class Hang:
    """Whether a program hangs in a world that it was told to leave: nothing on its gate page changes. Then it is described in the
    log, before the agent kills it."""

    def __init__(self, at: Callable[[], tuple[int, ...]], describe: Callable[[], str]):
        """at: what is on the gate page, the phase last; ValueError once there is none. describe: see Agent.begin."""
        self._at = at
        self._describe = describe
        self._over = threading.Event()
        self._watches = False

    def watch(self) -> None:
        """The program was told to leave. A second call does nothing."""
        if not self._watches:
            self._watches = True
            threading.Thread(target=self._watch, name="concertina-hang", daemon=True).start()

    def over(self) -> None:
        """It has left, or ends: nothing is described any more."""
        self._over.set()

    def _watch(self) -> None:
        with contextlib.suppress(Exception):  # Whatever a library says of itself while it is broken off: the program goes on.
            at = self._at()
            while True:
                before = at
                if self._over.wait(_LONG if before[-1] in _LONG_PHASES else _HANGS):
                    return
                at = self._at()
                if at == before:
                    break
            text = self._describe()
            if text and not self._over.is_set():
                _write(text)


def _write(text: str) -> None:
    """Writes the end of a text to the standard errors, in whole lines."""
    data = text.encode(errors="replace")
    if len(data) > _MOST:
        data = b"(more before it)\n" + data[-_MOST:].partition(b"\n")[2]
    while data:
        data = data[os.write(_ERRORS, data) :]
