"""Reading a state in shards: what differs by rank from one file, and this rank's rows from those of the ranks that had them."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from concertina import files
from concertina.codec import Codec, SnapshotError
from concertina.decoder import Decoder, Joiner
from concertina.shards import Cut, Gathering, Interval, Rank
from concertina.snapshot import described, position_in

Fetch = Callable[[Sequence[str], Sequence[Sequence[Interval]]], Sequence[str]]
"""Has these bytes of parts brought here, which are named by their keys, and returns the files that have them in the same order."""
_MOST_RANGES = 1024
"""What an agent takes in one message."""


def read(
    path: str, keys: Sequence[str], fetch: Fetch, codec: Codec, existing: Any, rank: Rank
) -> tuple[dict[str, int], Any]:
    """The position and the state of a snapshot as a rank has it.

    path: the file of what is in no shards. keys: the parts with the shards, by rank. Arrays and tensors go into those at the
    same place of existing. Raises OSError when a file cannot be read, SnapshotError when the snapshot is not whole or of another
    state, and what fetch raises.
    """
    with described(path) as (_, description, _):
        cut = cut_in(path, description)
        if len(keys) != cut.ranks:
            raise SnapshotError(f"{path} is of a state in the shards of {cut.ranks} ranks, and {len(keys)} are there")
        gathering = Gathering(cut, rank)
    wanted = gathering.sources
    ranges = [gathering.ranges(source, max(1, _MOST_RANGES // len(wanted))) for source in wanted]
    there = dict(zip(wanted, fetch([keys[source] for source in wanted], ranges), strict=True))
    with described(path) as (whole, description, start), Parts(cut, there) as parts:
        end = description["bytes"]  # Behind it are the rows of this rank, put together.

        def bytes_at(memory: memoryview, at: int) -> None:
            if at < end:
                whole.read(memory, start + at)
                return
            for source, offset, size in gathering.where(at - end, at - end + len(memory)):
                parts.read(source, memory[:size], offset)
                memory = memory[size:]

        with codec.loading(bytes_at) as load:
            shard = Joiner(codec, gathering.now, rank, end, load)
            return position_in(description), Decoder(path, end, load, shard).decode(description["state"], existing)


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
