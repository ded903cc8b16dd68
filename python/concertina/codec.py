"""Which values of a state have bytes of their own, and how these come into memory and back."""

import collections
import contextlib
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from concertina.shards import Rank, Table


class SnapshotError(ValueError):
    """A state cannot be kept, or a file is no snapshot of one."""


class DeviceError(OSError):
    """A device does not make a copy. Its text is whole."""


def plain(value: Any) -> bool:
    """Whether a value is numbers, texts and containers only, which a copy costs little of."""
    if isinstance(value, Mapping):
        return all(plain(item) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return all(plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


class Elsewhere:
    """The bytes of a value, or some of them, that are in no memory of this process: a device has them."""

    def __init__(self, value: Any, low: int, high: int):
        self.value, self.low, self.high = value, low, high

    def __len__(self) -> int:
        return self.high - self.low

    def __getitem__(self, span: slice) -> "Elsewhere":
        low, high, _ = span.indices(len(self))
        return Elsewhere(self.value, self.low + low, self.low + max(low, high))


class Piece(NamedTuple):
    """What is to be copied of a device."""

    source: Elsewhere
    memory: memoryview
    held: bool
    """Whether nobody writes to it before Coming.fence(), so that it may be copied later than now."""


class Coming:
    """Copies that devices make, while this process does something else."""

    def wait(self) -> None:
        """Waits until all of them are there. Raises what a device raises that fails."""

    def fence(self) -> None:
        """Devices write to what is copied only once it is. Waits for nothing itself."""

    def intact(self) -> bool:
        """Whether what is there now was so when it was asked for, as far as can be seen; after wait()."""
        return True


Load = Callable[[Mapping, int, int, Any], Any]
"""Makes the value that a tag describes, of the bytes at an offset, so many: in place of the existing one where it can."""


class Local(NamedTuple):
    """What this rank has of a value in shards."""

    table: Table
    part: memoryview | Elsewhere


class Codec:
    """Knows which values have bytes of their own. A framework adds its tensors."""

    def buffer(self, value: Any) -> tuple[dict, memoryview | Elsewhere] | None:
        """What describes the value, and its bytes; None for a value of another kind."""
        if isinstance(value, (bytes, bytearray)):
            return {"bytes": type(value).__name__}, memoryview(value)
        numpy = sys.modules.get("numpy")
        if numpy and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
            if numpy.dtype(value.dtype.str) != value.dtype:
                raise SnapshotError(
                    f"an array of {value.dtype} cannot be named in a file: give value.view() of a plain type with as many "
                    "bytes, such as numpy.uint16 for bfloat16, or the fields of a structure one by one"
                )
            flat = numpy.ascontiguousarray(value)
            return {"ndarray": value.dtype.str, "shape": list(value.shape)}, _flat(flat)
        return None

    def shard(self, value: Any, where: str, rank: Rank | None) -> Local | None:
        """What this rank has of a value that is in shards; None for one that is not. where: in the state. rank: None where the
        state is in no shards. Raises SnapshotError for one that is cut in a way that cannot be kept."""
        return None

    def own(self, table: Table, existing: Any, rank: Rank) -> Any:
        """What this rank has of an existing value in shards, or None where that has none yet. Raises SnapshotError for an existing
        one of another kind than the table describes."""
        raise SnapshotError(f"{table.name} is in shards in the snapshot, and not in this job")

    def joined(self, table: Table, own: Any, existing: Any) -> Any:
        """The value in shards of which this rank has its own."""
        raise NotImplementedError

    def alike(self) -> "Codec":
        """What keeps a state for those alone that have the same of it as this process, also of what is in shards: to them these are values
        like any others."""
        return self

    def own_of(self, tag: Mapping, existing: Any) -> tuple[Any, Callable[[Any], Any]]:
        """What this process has of an existing value that is to be the one that a tag describes, and what makes that value of what the
        process has, once its bytes are there. Raises SnapshotError for an existing one of another kind."""
        return existing, lambda own: own

    def identity(self, value: Any) -> Any:
        """The same for two values that are one."""
        return id(value)

    def private(self) -> Callable[[Any], bool]:
        """What says of a value whether it differs by rank. It may be made anew for each state."""
        return lambda value: False

    def watcher(self) -> Callable[[Any], Callable[[], Any] | None]:
        """What says of a value how to see that nobody writes to it: something that returns the same before and after,
        or None for a value that anything may write to at any moment. It may be made anew for each state."""
        return lambda value: None

    def room(self, size: int) -> memoryview:
        """Memory for so many bytes, into which devices copy fastest."""
        return memoryview(Room(size))

    def bring(self, pieces: Sequence[Piece]) -> Coming:
        """Begins to copy values of devices. What is not held is copied as it is now, whatever is done next."""
        raise NotImplementedError

    @contextlib.contextmanager
    def loading(self, read: Callable[[memoryview, int], None]) -> Iterator[Load]:
        """What makes values of bytes that read() gives. All of them have their bytes when the block has ended."""

        def load(tag: Mapping, at: int, size: int, existing: Any) -> Any:
            memory, finish = self.prepare(tag, size, existing)
            if len(memory) != size:
                raise SnapshotError(f"a file has {size} bytes for a value of {len(memory)}")
            read(memory, at)
            return finish()

        yield load

    def prepare(self, tag: Mapping, size: int, existing: Any) -> tuple[memoryview, Callable[[], Any]]:
        """Memory for the bytes of the value that tag describes, and what makes the value once
        they are there. existing is the value that it takes the place of, if there is one."""
        if "bytes" in tag:
            memory = bytearray(size)
            return memoryview(memory), lambda: memory if tag["bytes"] == "bytearray" else bytes(memory)
        if "ndarray" in tag:
            import numpy

            array = numpy.empty(tag["shape"], numpy.dtype(tag["ndarray"]))
            return _flat(array), lambda: array
        raise SnapshotError(f"a value of an unknown kind: {sorted(tag)}")


class Room(mmap.mmap):
    """Memory without a file, which processes do not have that are forked of this one: they would keep it as long as they live."""

    let_go: Callable[[], object] | None = None
    """Called before the memory is given back."""

    def __new__(cls, size: int) -> "Room":
        room = super().__new__(cls, -1, max(size, mmap.PAGESIZE))
        with contextlib.suppress(AttributeError, OSError):
            room.madvise(mmap.MADV_HUGEPAGE)  # Fewer faults when it is filled for the first time.
        with contextlib.suppress(AttributeError, OSError):
            room.madvise(mmap.MADV_DONTFORK)
        _rooms.add(room)
        return room

    def __del__(self) -> None:
        if self.let_go:
            self.let_go()


_rooms: weakref.WeakSet[Room] = weakref.WeakSet()
_others: list[Room] = []


def _forked() -> None:
    """Has a process that was forked let go of none of it: something else may be there by then."""
    _others.extend(_rooms)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _flat(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view("u1")) if array.nbytes else memoryview(b"")
