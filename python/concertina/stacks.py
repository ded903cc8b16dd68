"""What the threads of a program are about, for its log: the agent asks before it kills one that hangs."""

import contextlib
import faulthandler

_SIGNAL = 40
"""As docs/program-protocol.md says; a real-time signal, which programs do not use."""

_ERRORS = 2


def offer() -> None:
    """From now on the stacks of all threads are written to the standard errors when the signal comes, whatever the
    interpreter waits for. faulthandler bounds them: 100 threads, 100 frames of each."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # Where there are no errors to write to.
        faulthandler.register(_SIGNAL, file=_ERRORS, all_threads=True)
