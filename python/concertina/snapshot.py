"""The file of a snapshot: a description in JSON, followed by the bytes of its large values.

    8 bytes   "CNCTSNP1"
    8 bytes   length of the description, little-endian
    …         the description, UTF-8, then zeros up to a multiple of 64
    …         the bytes of the values that are small or differ by rank, each at a multiple of 64
    …         the bytes of the others, which are the same on all ranks, likewise

The last of these may be cut into shares, at multiples of 1 MiB, which are files of their own. The file without them, and
all shares one after another, are the whole file. Different ranks may write different shares, and anybody can read them with
what any rank has written of the rest.

Of a state in shards each rank writes the rows that it has of the values that are in shards into a file of its own, each at a
multiple of 64, in their order; the file above has everything else, and how they are cut.

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

from concertina.codec import Codec, Coming, Elsewhere, Local, Piece, SnapshotError, plain
from concertina.decoder import MAPPINGS, SEQUENCES, Decoder, Joiner
from concertina.files import SPARE, File, Files, Source, claim
from concertina.shards import Cut, Rank

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
_ZEROS = memoryview(bytes(_BLOCK))



class _Canary(NamedTuple):
    """How some bytes of a live value were when its state was taken apart, by their offsets."""

    seen: Callable[[], Any]
    before: Any
    ends: list[tuple[int, bytes]]


class _Found(NamedTuple):
    """A value that has bytes."""

    where: str
    private: bool
    """Whether it is small, or differs by rank."""
    described: dict
    value: Any
    part: memoryview | Elsewhere


class Image:
    """A state, taken apart. Its large values are the live ones until keep() has copied them.

    Or they stay the live ones until write() has written them, while training goes on with what does not write to
    them: settle() copies the others at once, and intact() says afterwards whether that was so.
    """

    def __init__(
        self, state: Any, position: Mapping[str, int], codec: Codec, rank: Rank | None = None, shards: list[Local] | None = None
    ):
        """rank: whose shard it has, where the state is in shards. shards: gets what this rank has of each value in shards, by number. Raises
        SnapshotError for a state that holds something that cannot be kept."""
        self._codec = codec
        self.rank = rank
        """Whose shard it has; None where the state is in no shards."""
        self._watch, self._private = codec.watcher(), codec.private()
        self._found: list[_Found] = []
        self._shards: list[Local] = []
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
        """How many bytes the large values have, without those in shards."""
        self.layout = self._place_all()
        """The same for states whose shares, or shards, fit together."""
        description = {"position": dict(position), "bytes": self.bytes, "shared": self.shared, "state": self._state}
        if rank:
            if shards is not None:
                shards += self._shards
            self.cut = Cut(rank.of, tuple(local.table for local in self._shards))
            """How the values are cut that are in shards."""
            description["shards"] = self.cut.described()
            self.shared, self.layout = self.bytes, self._place_shards(rank)
        text = self.description = json.dumps(description).encode()
        """What the values are, and where."""
        head = _HEAD.pack(_MAGIC, len(text)) + text
        self._head = head + bytes(-len(head) % _ALIGN)

    def keep(self, memory: memoryview) -> None:
        """Copies the large values to memory, which must have room for their extent and stays theirs."""
        self._copy([(part, memory[offset : offset + len(part)]) for offset, part in self._parts])
        self._parts = [(0, memory[: self.extent])]
        self._watched = {}

    @property
    def extent(self) -> int:
        """How many bytes the large values have, with this rank's shard."""
        return self.bytes if self.rank is None else _aligned(self.bytes) + self.cut.offsets(self.rank.number)[-1]

    def only(self, spans: Sequence[tuple[int, int]]) -> None:
        """Forgets all large values but what lies in these spans of offsets, and what differs by rank. Of a state in shards the
        spans are all."""
        kept = []
        if not self.rank:
            spans = [(0, self.shared), *((max(low, self.shared), high) for low, high in spans)]
        for low, high in sorted(spans):
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
            shard = self.rank and Joiner(self._codec, self.cut, self.rank, _aligned(self.bytes), load)
            return Decoder("the first state", self.bytes, load, shard).decode(self._state, None)

    def copy_private(self, memory: memoryview) -> None:
        """Copies what is small or differs by rank to memory, each value to its offset."""
        self._copy([(part, memory[offset : offset + len(part)]) for offset, part in self._parts if offset < self.shared])

    def shared_parts(self) -> list[tuple[int, memoryview | Elsewhere]]:
        """The values that are the same on all ranks, and where they begin among these. Those without bytes are none: where the others begin,
        one may stand that differs by rank."""
        return [(offset - self.shared, part) for offset, part in self._parts if offset >= self.shared and len(part)]

    def whole(self, path: str) -> File:
        """The file that has everything."""
        return File(path, None, self._head, 0, self.bytes)

    def own(self, path: str, key: str) -> File:
        """The file that has what differs by rank."""
        return File(path, key, self._head, 0, self.shared)

    def shares(self, path: str, key: str, index: int, of: int) -> File:
        """The file of one of so many shares."""
        return File(path, key, b"", *self.share(index, of))

    def shard(self, path: str, key: str) -> File:
        """The file of this rank's shard."""
        start = _aligned(self.bytes)
        return File(path, key, b"", start, start + self.cut.offsets(self.rank.number)[-1])

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
        for name, kind in MAPPINGS.items():
            if type(value) is kind:
                pairs = value.items()
                return {name: [[self._encode(k, where), self._encode(v, f"{where}[{k!r}]")] for k, v in pairs]}
        if type(value) is collections.deque and value.maxlen is not None:
            return {"bounded": [value.maxlen, [self._encode(item, where) for item in value]]}
        for name, kind in SEQUENCES.items():
            if type(value) is kind:
                return {name: [self._encode(item, where) for item in value]}
        return self._encode_large(value, where)

    def _encode_large(self, value: Any, where: str) -> Any:
        if local := self._codec.shard(value, where, self.rank):
            self._shards.append(local)
            return {"shard": len(self._shards) - 1}
        found = self._codec.buffer(value)
        if found is None:
            raise SnapshotError(
                f"{where} is a {type(value).__module__}.{type(value).__qualname__}: a state_dict() may hold "
                "numbers, texts, containers, arrays and dense tensors"
            )
        tag, part = found
        described = tag | {"at": 0, "length": len(part)}
        self._found.append(_Found(where, len(part) < _SMALL or self._private(value), described, value, part))
        return described

    def _place_shards(self, rank: Rank) -> str:
        """Says where the bytes of each value go that is in shards, behind all others, and returns their layout."""
        start = _aligned(self.bytes)
        for at, local in zip(self.cut.offsets(rank.number), self._shards, strict=False):
            if len(local.part):
                self._parts.append((start + at, local.part))
        self._shards = []
        return hashlib.sha256(json.dumps(self.cut.described()).encode()).hexdigest()[:16]

    def _place_all(self) -> str:
        """Says where the bytes of each value go, those that differ by rank first, and returns the layout of the others.
        Tensors that are one memory, such as tied weights, go there once. The others go by their names: a dict that was made
        of a set has another order in each process."""
        layout = hashlib.sha256()
        seen: dict[Any, int] = {}
        for shared in False, True:
            if shared:
                more = any(not found.private for found in self._found)
                self.shared = self.bytes = _aligned(self.bytes) if more else self.bytes
            some = [found for found in self._found if found.private != shared]
            for where, _, described, value, part in sorted(some, key=lambda found: found.where) if shared else some:
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
                    of = described | {"at": seen[key] - self.shared, "where": where}
                    layout.update(json.dumps(of, sort_keys=True).encode())
        self._found = []
        return layout.hexdigest()[:16]


def read(path: str, codec: Codec, existing: Any = None, shares: Sequence[str] = ()) -> tuple[dict[str, int], Any]:
    """The position and the state of a snapshot, and of the files with its shares, if it has some.

    Arrays and tensors go into those at the same place of existing where they fit. Raises OSError
    when the file cannot be read, SnapshotError when it is no whole snapshot.
    """
    with described(path, shares) as (files, description, start):
        if "shards" in description:
            raise _in_shards(path)
        with codec.loading(lambda memory, at: files.read(memory, start + at)) as load:
            return position_in(description), Decoder(path, description["bytes"], load).decode(description["state"], existing)


@contextlib.contextmanager
def described(path: str, shares: Sequence[str] = ()) -> Iterator[tuple[Files, dict, int]]:
    """The files of a snapshot, what the first one describes, and where its values begin. Raises SnapshotError when it is no whole snapshot, also
    where the block finds that out, and OSError when a file cannot be read."""
    files = Files(path, shares)
    try:
        yield files, *describe(path, files)
    except SnapshotError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
        raise SnapshotError(f"{path} is no snapshot: {error!r}") from error
    finally:
        files.close()


def position_in(description: Mapping) -> dict[str, int]:
    """The position that a snapshot has."""
    return {str(name): int(value) for name, value in description["position"].items()}


def _in_shards(path: str) -> SnapshotError:
    return SnapshotError(
        f"{path} is of a state in shards, and this job's is in none: concertina.fsdp reads those of all ranks, and "
        "join(…, mesh=local_mesh()) those of the processes of a worker"
    )


def head_of(path: str, files: Source) -> tuple[dict, int]:
    """What describe() finds, however many of the files are there."""
    head, size = bytearray(_HEAD.size), files.size
    if size >= len(head):
        files.read(memoryview(head), 0)
    magic, length = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise SnapshotError(f"{path} does not start like a snapshot")
    if length > min(size - len(head), _MAX_DESCRIPTION):
        raise SnapshotError(f"{path} is cut off")
    text = bytearray(length)
    files.read(memoryview(text), len(head))
    try:
        description = json.loads(text)
    except ValueError as error:
        raise SnapshotError(f"{path} is no snapshot: {error}") from error
    return description, _aligned(_HEAD.size + length)


def describe(path: str, files: Source) -> tuple[dict, int]:
    """What a snapshot describes, and where its values begin. Raises SnapshotError for what is no whole one, and other errors
    where it makes no sense."""
    description, start = head_of(path, files)
    size = files.size
    if size != start + description["bytes"]:
        if "shards" in description:
            raise _in_shards(path)
        raise SnapshotError(f"{path} has {size} bytes, not {start + description['bytes']}")
    return description, start


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
