"""Reading a state in shards: what differs by rank from one file, and this rank's rows from those of the ranks that had them: over the links of
the world where these are in it and have them still, and otherwise from their files."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from concertina import files
from concertina.codec import Codec, SnapshotError
from concertina.decoder import Decoder, Joiner
from concertina.shards import Cut, Gathering, Interval, Rank, taken
from concertina.snapshot import described, position_in

Fetch = Callable[[Sequence[str], Sequence[Sequence[Interval]]], Callable[[], Sequence[str]]]
"""Has these bytes of parts brought here, which are named by their keys. It returns what waits for that, which returns the files that have them in
the same order."""
_MOST_RANGES = 1024
"""What an agent takes in one message."""


class Links(Protocol):
    """What connects the ranks of a world that have rows of a state in shards with those that lack them."""

    hopes: Collection[int]
    """Which of the ranks that had a part of the state may have it still, and be in this world; the others are not."""

    def meet(self, keys: Sequence[str], cut: Cut) -> Mapping[int, int]:
        """Which of the ranks that had a part of the state have it still, and are in this world: their ranks here, by those that they had. All
        ranks of the world find the same. keys: the parts with the shards. Raises what is raised where a rank is gone."""
        ...

    def exchange(self, cut: Cut, there: Mapping[int, int], place: Callable[[int], memoryview]) -> None:
        """Gives and gets what these have. place: makes the memory of what this rank is to have of the value of a number, in the order of the
        numbers. Raises what is raised where a rank is gone, or has no memory."""
        ...


def read(
    path: str, keys: Sequence[str], fetch: Fetch, codec: Codec, existing: Any, rank: Rank, links: Links | None = None
) -> tuple[dict[str, int], Any]:
    """The position and the state of a snapshot as a rank has it.

    path: the file of what is in no shards. keys: the parts with the shards, by rank. Arrays and tensors go into those at the
    same place of existing. links: to those who may have some of it still; what none of them has comes from files. Raises OSError when a file
    cannot be read, SnapshotError when the snapshot is not whole or of another state, and what fetch and links raise.
    """
    with described(path) as (whole, description, start):
        cut = cut_in(path, description)
        if len(keys) != cut.ranks:
            raise SnapshotError(f"{path} is of a state in the shards of {cut.ranks} ranks, and {len(keys)} are there")
        gathering = Gathering(cut, rank)
        rows = None
        if links:
            rows = _Rows(path, description, lambda memory, at: whole.read(memory, start + at), codec, gathering.now, rank, existing)

    def ask(sources: Sequence[int]) -> Callable[[], dict[int, str]]:
        ranges = [gathering.ranges(source, max(1, _MOST_RANGES // len(sources))) for source in sources]
        wait = fetch([keys[source] for source in sources], ranges)
        return lambda: dict(zip(sources, wait(), strict=True))

    # Who has left the world may be gone by the time that all ranks have built what they need for an exchange: nobody waits for that here.
    gone = [source for source in gathering.sources if not links or source not in links.hopes]
    coming = ask(gone) if gone else dict
    there = links.meet(keys, cut) if links else {}
    if there:
        links.exchange(cut, there, rows.place)
    brought = coming()
    # An agent is asked at least once, also for nothing: until then it takes it that something has to be brought here, and nobody goes who leaves.
    if (left := [source for source in gathering.sources if source not in there and source not in brought]) or not gone:
        brought |= ask(left)()
    with described(path) as (whole, description, start), Parts(cut, brought) as parts:
        end = description["bytes"]  # Behind it are the rows of this rank, put together.

        def bytes_at(memory: memoryview, at: int) -> None:
            if at < end:
                whole.read(memory, start + at)
                return
            for source, offset, size in gathering.where(at - end, at - end + len(memory)):
                parts.read(source, memory[:size], offset)
                memory = memory[size:]

        if there:
            rows.fill(cut, parts, {*brought})
        with codec.loading(bytes_at) as load:
            shard = rows if there else Joiner(codec, gathering.now, rank, end, load)
            return position_in(description), Decoder(path, end, load, shard).decode(description["state"], existing)


class _Rows:
    """What a rank is to have of the values in shards of a description, in memory that is filled before the values are made of it."""

    def __init__(
        self,
        path: str,
        description: Mapping,
        read: Callable[[memoryview, int], None],
        codec: Codec,
        cut: Cut,
        rank: Rank,
        existing: Any,
    ):
        """cut: that of the ranks of whom this is one. read: reads what is in no shards. Raises SnapshotError where existing values are others
        than those described."""
        self._codec, self._cut, self._rank = codec, cut, rank
        self._own: dict[int, Any] = {}
        self._places: dict[int, tuple[memoryview, Callable[[], Any]]] = {}
        with codec.loading(read) as load:  # of keys alone: nothing that there is changes before all ranks have met
            finder = Decoder(path, description["bytes"], lambda tag, at, size, existing: existing, self._find, load)
            finder.decode(description["state"], existing)

    def _find(self, number: int, existing: Any) -> Any:
        self._own[number] = self._codec.own(self._cut.tables[number], existing, self._rank)
        return existing

    def place(self, number: int) -> memoryview:
        """Makes the memory for what it is to have of the value of a number."""
        table = self._cut.tables[number]
        size, own = table.size(self._rank), self._own.pop(number, None)
        memory, finish = self._codec.prepare(table.tag(self._rank), size, own)
        if len(memory) != size:
            raise SnapshotError(f"{table.name} has {size} bytes on rank {self._rank.number}, and a place of {len(memory)}")
        self._places[number] = memory, finish
        return memory

    def fill(self, was: Cut, parts: "Parts", sources: set[int]) -> None:
        """Reads what these ranks had, of the cut that there was, from files."""
        begins = {source: was.offsets(source) for source in sources}
        for number, table in enumerate(was.tables):
            want = table.rows(self._rank)
            for source, start, end in taken(table, was.ranks, self._rank):
                if source in sources:
                    memory, _ = self._places[number]
                    at = begins[source][number] + (start - table.rows(Rank(source, was.ranks)).start) * table.row
                    parts.read(source, memory[(start - want.start) * table.row : (end - want.start) * table.row], at)

    def __call__(self, number: int, existing: Any) -> Any:
        """The value of a number, of the bytes in its place."""
        _, finish = self._places[number]
        return self._codec.joined(self._cut.tables[number], finish(), existing)


def cut_in(path: str, description: Mapping) -> Cut:
    """How a snapshot is cut. Raises SnapshotError for one that is not in shards, and what Cut.of() raises."""
    if "shards" not in description:
        raise SnapshotError(f"{path} is of a state that is in no shards, and this job's is")
    return Cut.of(description["shards"])


class Parts:
    """The files with the shards of ranks."""

    def __init__(self, cut: Cut, paths: Mapping[int, str]):
        """paths: by rank. Raises OSError when one cannot be read, SnapshotError for one that is of another size."""
        self._fds: dict[int, int] = {}
        try:
            for rank, path in paths.items():
                self._fds[rank] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                size, want = os.fstat(self._fds[rank]).st_size, cut.offsets(rank)[-1]
                if size != want:
                    raise SnapshotError(f"{path} has {size} bytes, and the shard of rank {rank} has {want}")
        except BaseException:
            self.close()
            raise

    def read(self, rank: int, memory: memoryview, at: int) -> None:
        """Fills memory with what is at an offset of a rank's shard."""
        files.read(self._fds[rank], memory, at)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)

    def __enter__(self) -> "Parts":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
