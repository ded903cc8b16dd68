"""How far training is, on the terminal of a program that runs alone."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from concertina.agent import numbers

_INTERVAL = 0.2


class Progress:
    """One line that is written over; tqdm's where that is installed."""

    def __init__(self, bar: Any = None):
        self._bar = bar
        self._next = 0.0

    def show(self, step: int, total: int, metrics: Mapping[str, Any], last: bool) -> None:
        """Shows so many steps of total, 0 where nobody knows that, and numbers by name, a few times a second, and the last ones."""
        now = time.monotonic()
        if now < self._next and not last:
            return
        self._next = now + _INTERVAL
        shown = {name: f"{value:.4g}" for name, value in numbers(metrics).items()}
        if self._bar is None:
            text = " ".join(f"{name} {number}" for name, number in shown.items())
            print(f"\rstep {step}{f'/{total}' if total else ''} {text}\033[K", end="", file=sys.stderr, flush=True)
        else:
            self._bar.total = total or None
            self._bar.set_postfix(shown, refresh=False)
            self._bar.update(step - self._bar.n)

    def close(self) -> None:
        """Ends the line."""
        if self._bar is None:
            print(file=sys.stderr)
        else:
            self._bar.close()


def progress() -> Progress | None:
    """What shows progress; None where nobody looks."""
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return Progress()
    return Progress(tqdm(unit="step", dynamic_ncols=True))
