"""The file of a snapshot: a description in JSON, followed by the bytes of its large values.

    8 bytes   "CNCTSNP1"
    8 bytes   length of the description, little-endian
    …         the description, UTF-8, then zeros up to a multiple of 64
    …         the bytes of the values that are small or differ by rank, each at a multiple of 64
    …         the bytes of the others, which are the same on all ranks, likewise

The last of these may be cut into shares, at multiples of 1 MiB, which are files of their own. The file without them, and
all shares one after another, are the whole file. Different ranks may write different shares, and anybody can read them with
what any rank has written of the rest.

Reading it never runs code that the file names: what is in it are numbers, texts, containers and
arrays.
"""

import bisect
import collections
import contextlib
import hashlib
import json
import math
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from concertina.codec import Codec, Coming, Elsewhere, Load, Piece, SnapshotError, plain

__all__ = ["Codec", "File", "Image", "LEAST_SHARED", "SPARE", "SnapshotError", "claim", "plain", "read"]

_MAGIC = b"CNCTSNP1"
_HEAD = struct.Struct("<8sQ")
_ALIGN = 64
_MAX_DESCRIPTION = 1 << 30
_CHUNK = 16 << 20  # So much is written before it is asked whether it is wanted still.
_SAMPLE = 64
_BLOCK = 1 << 20
_SMALL = 64 << 10  # Values with fewer bytes are not worth sharing.
LEAST_SHARED = 16 << 20
"""A state with fewer bytes that are the same on all ranks is not worth cutting into shares."""
SPARE = "spare-"
"""Begins the names of files that the agent leaves to be written over."""
_ZEROS = memoryview(bytes(_BLOCK))
_MAX_READ = 1 << 30  # One system call moves at most 2 GiB.

_MAPPINGS = {"dict": dict, "ordered": collections.OrderedDict, "counter": collections.Counter}
_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}


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


class _Canary(NamedTuple):
    """How some bytes of a live value were when its state was taken apart, by their offsets."""

    seen: Callable[[], Any]
    before: Any
    ends: list[tuple[int, bytes]]


class Image:
    """A state, taken apart. Its large values are the live ones until keep() has copied them.

    Or they stay the live ones until write() has written them, while training goes on with what does not write to
    them: settle() copies the others at once, and intact() says afterwards whether that was so.
    """

    def __init__(self, state: Any, position: Mapping[str, int], codec: Codec):
        """Raises SnapshotError for a state that holds something that cannot be kept."""
        self._codec = codec
        self._watch, self._private = codec.watcher(), codec.private()
        self._found: list[tuple[bool, dict, Any, memoryview | Elsewhere]] = []
        self._values: dict[int, int] = {}
        self._state = self._encode(state, "state")
        self._parts: list[tuple[int, Any]] = []
        self._watched: dict[int, Callable[[], Any]] = {}
        self._canaries: list[_Canary] = []
        self._held: list[tuple[Callable[[], Any], Any]] = []  # the same of what devices copy
        self._coming: Coming | None = None
        self._sealing = threading.Lock()
        self._sealed: bool | None = None
        self.shared = 0
        """Where the bytes begin that are the same on all ranks."""
        self.bytes = 0
        """How many bytes the large values have."""
        self.layout = self._place_all()
        """The same for states whose shares fit together."""
        description = {"position": dict(position), "bytes": self.bytes, "shared": self.shared, "state": self._state}
        text = json.dumps(description).encode()
        head = _HEAD.pack(_MAGIC, len(text)) + text
        self._head = head + bytes(-len(head) % _ALIGN)

    def keep(self, memory: memoryview) -> None:
        """Copies the large values to memory, which must have room for them and stays theirs."""
        self._copy([(part, memory[offset : offset + len(part)]) for offset, part in self._parts])
        self._parts = [(0, memory[: self.bytes])]
        self._watched = {}

    def only(self, spans: Sequence[tuple[int, int]]) -> None:
        """Forgets all large values but what lies in these spans of offsets, and what differs by rank."""
        kept = []
        for low, high in [(0, self.shared), *((max(low, self.shared), high) for low, high in spans)]:
            kept += self._within(low, high)
        self._parts = kept

    def room(self) -> int:
        """How many bytes keep_packed() needs."""
        return sum(_aligned(len(part)) for _, part in self._parts)

    @property
    def away(self) -> int:
        """How many bytes bring() and settle() need: for what is left of the values of devices."""
        return sum(_aligned(len(part)) for _, part in self._parts if isinstance(part, Elsewhere))

    def keep_packed(self, memory: memoryview) -> None:
        """Copies what is left of the large values to memory, close together."""
        self._pack(memory, self._parts)
        self._watched = {}

    def bring(self, memory: memoryview) -> None:
        """Copies what devices have of them to memory, close together."""
        self._pack(memory, [found for found in self._parts if isinstance(found[1], Elsewhere)])

    def _pack(self, memory: memoryview, parts: Sequence[tuple[int, memoryview | Elsewhere]]) -> None:
        copies, at = {}, 0
        for offset, part in parts:
            copies[offset] = memory[at : at + len(part)]
            at += _aligned(len(part))
        self._copy([(part, copies[offset]) for offset, part in parts])
        self._parts = [(offset, copies.get(offset, part)) for offset, part in self._parts]

    def _copy(self, pairs: Sequence[tuple[memoryview | Elsewhere, memoryview]]) -> None:
        pieces = [Piece(part, memory, held=True) for part, memory in pairs if isinstance(part, Elsewhere)]
        coming = self._codec.bring(pieces) if pieces else None
        for part, memory in pairs:
            if not isinstance(part, Elsewhere):
                memory[:] = part
        if coming:
            coming.wait()

    def _within(self, low: int, high: int) -> Iterator[tuple[int, Any]]:
        for offset, part in self._parts:
            first, last = max(low, offset), min(high, offset + len(part))
            if first < last:
                yield first, part[first - offset : last - offset]

    def share(self, index: int, of: int) -> tuple[int, int]:
        """The offsets at which one of so many shares begins and ends."""
        blocks = -(-(self.bytes - self.shared) // _BLOCK)
        low, high = (min(self.bytes, self.shared + i * blocks // of * _BLOCK) for i in (index, index + 1))
        return low, high

    def settle(self, memory: memoryview) -> None:
        """Copies what anything may write to before the next optimizer step, and notes how the rest is now. Of values of
        devices only the copies begin here, to memory: arrive() waits for them."""
        parts, pieces, used = [], [], 0
        starts = sorted(self._watched)
        for offset, part in self._parts:
            whole = starts[bisect.bisect(starts, offset) - 1] if starts and starts[0] <= offset else -1
            seen = self._watched.get(whole) if self._values.get(whole, 0) >= offset + len(part) else None
            if isinstance(part, Elsewhere):
                pieces.append(Piece(part, memory[used : used + len(part)], seen is not None))
                used += _aligned(len(part))
                part = pieces[-1].memory
                if seen:
                    self._held.append((seen, seen()))
            elif seen:
                ends = [(offset + at, bytes(part[at : at + _SAMPLE])) for at in {0, max(0, len(part) - _SAMPLE)}]
                self._canaries.append(_Canary(seen, seen(), ends))
            else:
                part = memoryview(bytes(part))
            parts.append((offset, part))
        self._parts = parts
        if pieces:
            self._coming = self._codec.bring(pieces)

    @property
    def lives(self) -> bool:
        """Whether write() reads what must not change before it has ended, after settle(), so that fence() is not enough."""
        return self._coming is None or bool(self._canaries)

    def arrive(self) -> bool:
        """Waits for the copies that settle() has begun; whether they are what there was then. Raises what a device raises
        that fails."""
        if not self._coming:
            return True
        self._coming.wait()
        self._seal()
        return bool(self._sealed) and self._coming.intact()

    def fence(self) -> None:
        """Something is about to write to the values of devices: these wait until the copies are there."""
        if self._coming:
            self._seal()
            self._coming.fence()

    def _seal(self) -> None:
        """Sees whether anything has written to values of devices. What writes later is none of the copies' business."""
        with self._sealing:
            if self._sealed is None:
                self._sealed = all(seen() == before for seen, before in self._held)

    def intact(self, files: Sequence[File]) -> bool:
        """Whether the files that write() has made have the state as it was at settle(): nothing that tells of itself has
        written to it, and the first and last bytes of each value, which settle() has noted, are in a file."""
        return all(
            canary.seen() == canary.before and all(self._written(files, at) in (None, end) for at, end in canary.ends)
            for canary in self._canaries
        )

    def _written(self, files: Sequence[File], at: int) -> bytes | None:
        for file in files:
            if file.low <= at < file.high:
                with open(file.path, "rb") as written:
                    return os.pread(written.fileno(), _SAMPLE, len(file.head) + at - file.low)
        return None

    def values(self) -> Any:
        """The state, after keep()."""
        ((_, kept),) = self._parts

        def copy(memory: memoryview, at: int) -> None:
            memory[:] = kept[at : at + len(memory)]

        with self._codec.loading(copy) as load:
            return _Values("the first state", self.bytes, load).decode(self._state, None)

    def whole(self, path: str) -> File:
        """The file that has everything."""
        return File(path, None, self._head, 0, self.bytes)

    def own(self, path: str, key: str) -> File:
        """The file that has what differs by rank."""
        return File(path, key, self._head, 0, self.shared)

    def shares(self, path: str, key: str, index: int, of: int) -> File:
        """The file of one of so many shares."""
        return File(path, key, b"", *self.share(index, of))

    def write(self, file: File, halted: Callable[[], bool] = lambda: False, over: bool = False) -> int:
        """Makes a file, or writes over one that is there, and returns its size in bytes. Raises OSError, and InterruptedError once it
        is halted."""
        fd = os.open(file.path, os.O_WRONLY | os.O_CLOEXEC | (0 if over else os.O_CREAT | os.O_EXCL), 0o600)
        try:
            before = min(os.fstat(fd).st_size, file.size) if over else 0
            if over:
                os.ftruncate(fd, before)
            _write(fd, memoryview(file.head), 0)
            end = len(file.head)
            for offset, part in self._within(file.low, file.high):
                start = len(file.head) + offset - file.low
                _zero(fd, end, min(start, before))
                for at in range(0, len(part), _CHUNK):
                    if halted():
                        raise InterruptedError("it is not wanted any more")
                    _write(fd, part[at : at + _CHUNK], start + at)
                end = start + len(part)
            _zero(fd, end, before)
            os.ftruncate(fd, file.size)
        finally:
            os.close(fd)
        return file.size

    def _encode(self, value: Any, where: str) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        if type(value) is list:
            return [self._encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
        for name, kind in _MAPPINGS.items():
            if type(value) is kind:
                pairs = value.items()
                return {name: [[self._encode(k, where), self._encode(v, f"{where}[{k!r}]")] for k, v in pairs]}
        if type(value) is collections.deque and value.maxlen is not None:
            return {"bounded": [value.maxlen, [self._encode(item, where) for item in value]]}
        for name, kind in _SEQUENCES.items():
            if type(value) is kind:
                return {name: [self._encode(item, where) for item in value]}
        return self._encode_large(value, where)

    def _encode_large(self, value: Any, where: str) -> Any:
        found = self._codec.buffer(value)
        if found is None:
            raise SnapshotError(
                f"{where} is a {type(value).__module__}.{type(value).__qualname__}: a state_dict() may hold "
                "numbers, texts, containers, arrays and dense tensors"
            )
        tag, part = found
        described = tag | {"at": 0, "length": len(part)}
        self._found.append((len(part) < _SMALL or self._private(value), described, value, part))
        return described

    def _place_all(self) -> str:
        """Says where the bytes of each value go, those that differ by rank first, and returns the layout of the others.
        Tensors that are one memory, such as tied weights, go there once."""
        layout = hashlib.sha256()
        seen: dict[Any, int] = {}
        for shared in False, True:
            if shared:
                more = any(not private for private, _, _, _ in self._found)
                self.shared = self.bytes = _aligned(self.bytes) if more else self.bytes
            for private, described, value, part in self._found:
                if private == shared:
                    continue
                key = self._codec.identity(value)
                if key not in seen:
                    offset = seen[key] = _aligned(self.bytes)
                    self._parts.append((offset, part))
                    if told := self._watch(value):
                        self._watched[offset] = told
                        self._values[offset] = offset + len(part)
                    self.bytes = offset + len(part)
                described["at"] = seen[key]
                if shared:
                    layout.update(json.dumps(described | {"at": seen[key] - self.shared}, sort_keys=True).encode())
        self._found = []
        return layout.hexdigest()[:16]


def read(path: str, codec: Codec, existing: Any = None, shares: Sequence[str] = ()) -> tuple[dict[str, int], Any]:
    """The position and the state of a snapshot, and of the files with its shares, if it has some.

    Arrays and tensors go into those at the same place of existing where they fit. Raises OSError
    when the file cannot be read, SnapshotError when it is no whole snapshot.
    """
    files = _Files(path, shares)
    try:
        description = _describe(path, files)
        start = files.start
        position = {str(name): int(value) for name, value in description["position"].items()}
        with codec.loading(lambda memory, at: files.read(memory, start + at)) as load:
            return position, _Values(path, description["bytes"], load).decode(description["state"], existing)
    except SnapshotError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
        raise SnapshotError(f"{path} is no snapshot: {error!r}") from error
    finally:
        files.close()


class _Files:
    """Several files, one after another."""

    def __init__(self, path: str, others: Sequence[str]):
        """Raises OSError when one cannot be read."""
        self.start = 0
        """Where the values begin."""
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
                _read(fd, here, at - begin)
                memory, at = memory[len(here) :], at + len(here)
            begin = end
        if memory:
            raise SnapshotError("the snapshot ends early")

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)


def _describe(path: str, files: _Files) -> dict:
    """The description; it finds where the values begin."""
    fd, size = files._fds[0], files.size
    magic, length = _HEAD.unpack(os.pread(fd, _HEAD.size, 0).ljust(_HEAD.size, b"\0"))
    if magic != _MAGIC:
        raise SnapshotError(f"{path} does not start like a snapshot")
    if length > min(size, _MAX_DESCRIPTION):
        raise SnapshotError(f"{path} is cut off")
    try:
        description = json.loads(os.pread(fd, length, _HEAD.size))
    except ValueError as error:
        raise SnapshotError(f"{path} is no snapshot: {error}") from error
    start = _aligned(_HEAD.size + length)
    if size != start + description["bytes"]:
        raise SnapshotError(f"{path} has {size} bytes, not {start + description['bytes']}")
    files.start = start
    return description


class _Values:
    """Puts a described state together again."""

    def __init__(self, name: str, size: int, load: Load):
        self._name = name
        self._size = size
        self._load = load

    def decode(self, value: Any, existing: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(v, _item(existing, i)) for i, v in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if "at" in value:
            return self._large(value, existing)
        ((kind, content),) = value.items()
        if kind == "float":
            return float(content)
        if kind in _MAPPINGS:
            keys = [self.decode(k, None) for k, _ in content]
            pairs = zip(keys, content, strict=True)
            return _MAPPINGS[kind]({k: self.decode(v, _item(existing, k)) for k, (_, v) in pairs})
        if kind == "bounded":
            most, items = content
            return collections.deque((self.decode(v, None) for v in items), maxlen=most)
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](self.decode(v, _item(existing, i)) for i, v in enumerate(content))
        raise SnapshotError(f"{self._name} holds a value of an unknown kind: {kind!r}")

    def _large(self, value: dict, existing: Any) -> Any:
        at, size = value["at"], value["length"]
        if type(at) is not int or type(size) is not int or not 0 <= at <= at + size <= self._size:
            raise SnapshotError(f"{self._name} holds a value outside of the file")
        return self._load(value, at, size, existing)


def _item(existing: Any, key: Any) -> Any:
    try:
        return existing[key]
    except (KeyError, IndexError, TypeError):
        return None


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _write(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _zero(fd: int, start: int, end: int) -> None:
    """What lies between values is the same whatever was there before."""
    while start < end:
        start += os.pwrite(fd, _ZEROS[: end - start], start)


def _read(fd: int, memory: memoryview, offset: int) -> None:
    while memory:
        count = os.preadv(fd, [memory[:_MAX_READ]], offset)
        if not count:
            raise SnapshotError("the snapshot ends early")
        memory, offset = memory[count:], offset + count
