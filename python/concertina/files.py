"""The files of snapshots."""

import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from concertina.codec import SnapshotError

SPARE = "spare-"
"""Begins the names of files that the agent leaves to be written over."""
_MAX_READ = 1 << 30  # One system call moves at most 2 GiB.


class File(NamedTuple):
    """A file with a part of an image."""

    path: str
    key: str | None
    """What the part is named by; None for a file with everything."""
    head: bytes
    low: int
    high: int
    """The offsets at which its values begin and end."""

    @property
    def size(self) -> int:
        return len(self.head) + self.high - self.low


def remove(files: list[File]) -> None:
    """Removes what was written of a snapshot that is none."""
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(file.path)


def claim(folder: str, files: Sequence[File]) -> set[str]:
    """Makes some of these files of those that the agent has left in the folder to be written over: their memory is there, and need
    neither be found nor freed. Those that are too many are removed, since their room is needed. Returns the paths of the
    files that are there now, of some other content."""
    spares = []
    for name in os.listdir(folder):
        if name.startswith(SPARE):
            with contextlib.suppress(OSError):
                spares.append((os.stat(os.path.join(folder, name)).st_size, os.path.join(folder, name)))
    claimed: set[str] = set()
    wanted = sorted(files, key=lambda file: file.size)
    for _, path in sorted(spares, reverse=True):
        with contextlib.suppress(FileNotFoundError):  # Somebody else needed it.
            if wanted:
                os.rename(path, wanted[-1].path)
                claimed.add(wanted.pop().path)
            else:
                os.unlink(path)
    return claimed


class Source(Protocol):
    """Bytes that can be read from anywhere."""

    size: int

    def read(self, memory: memoryview, at: int) -> None:
        """Fills memory with what is at an offset. Raises SnapshotError where that ends early."""


class Files:
    """Several files, one after another."""

    def __init__(self, path: str, others: Sequence[str]):
        """Raises OSError when one cannot be read."""
        self.size = 0
        self._ends: list[int] = []
        self._fds: list[int] = []
        try:
            for name in path, *others:
                self._fds.append(os.open(name, os.O_RDONLY | os.O_CLOEXEC))
                self.size += os.fstat(self._fds[-1]).st_size
                self._ends.append(self.size)
        except OSError:
            self.close()
            raise

    def read(self, memory: memoryview, at: int) -> None:
        begin = 0
        for fd, end in zip(self._fds, self._ends, strict=True):
            if memory and at < end:
                here = memory[: end - at]
                read(fd, here, at - begin)
                memory, at = memory[len(here) :], at + len(here)
            begin = end
        if memory:
            raise SnapshotError("the snapshot ends early")

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)


def read(fd: int, memory: memoryview, offset: int) -> None:
    while memory:
        count = os.preadv(fd, [memory[:_MAX_READ]], offset)
        if not count:
            raise SnapshotError("the snapshot ends early")
        memory, offset = memory[count:], offset + count
