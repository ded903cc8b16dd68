"""What is being written of a snapshot."""

import threading

from concertina import snapshot


class Work:
    """A snapshot that a thread writes. moved: when it began. begin: when that of a live state began, in nanoseconds, and
    image: its image; None for one of a copy."""

    def __init__(self, step: int, moved: float, begin: int | None = None, image: snapshot.Image | None = None):
        self.step, self.begin, self.image = step, begin, image
        self.staged, self.ended = threading.Event(), threading.Event()
        self.moved = moved
        """When something of it was last about to be written."""
        self.done = False
        """Whether nothing of it is to be written, read or removed any more: at most the agent is waited for."""
        self.given_up = False
