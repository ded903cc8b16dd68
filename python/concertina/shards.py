"""How values are cut of which each rank has some rows, and what has to be moved when others are to have them.

It is pure: numbers in, numbers out. The cut is that of torch.chunk, which PyTorch shards by: all ranks have the same number of
rows, but for the last that have some, and those behind them have none.
"""

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MOST = 128
"""Ranks of a world whose state is in shards, at most."""
_ALIGN = 64


class Rank(NamedTuple):
    """One of so many ranks."""

    number: int
    of: int


class Interval(NamedTuple):
    """What lies from start to before end."""

    start: int
    end: int

    def __bool__(self) -> bool:
        return self.start < self.end


class Move(NamedTuple):
    """An interval that is taken from the part of this number."""

    part: int
    start: int
    end: int


def chunk(rows: int, rank: Rank) -> Interval:
    """The rows that one of so many ranks has."""
    size = -(-rows // rank.of)
    return Interval(min(rows, rank.number * size), min(rows, (rank.number + 1) * size))


def plan(want: Interval, parts: Sequence[Interval]) -> list[Move]:
    """Which part each piece of an interval is taken from, in order. Of several parts that have the same the one that reaches
    furthest serves, and of those the first. Raises ValueError when no part has some of it. Go plans so as well:
    testdata/shards.json."""
    moves: list[Move] = []
    at = want.start
    while at < want.end:
        there = [i for i, part in enumerate(parts) if part.start <= at < part.end]
        if not there:
            raise ValueError(f"nobody has what begins at {at} of {want.start} to {want.end}")
        best = max(there, key=lambda i: parts[i].end)
        moves.append(Move(best, at, min(parts[best].end, want.end)))
        at = moves[-1].end
    return moves


def joined(intervals: Iterable[tuple[int, int]], most: int) -> list[Interval]:
    """Intervals in order, without the empty ones; those that touch or overlap are one. Where more than most are left those become one,
    with what is between them, between which there is least, and of several the first: most is at least 1. Go joins them so as well."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if start < end and found and start <= found[-1].end:
            found[-1] = Interval(found[-1].start, max(found[-1].end, end))
        elif start < end:
            found.append(Interval(start, end))
    gaps = sorted(range(1, len(found)), key=lambda i: found[i].start - found[i - 1].end)
    closed = {*gaps[: max(0, len(found) - most)]}
    fewer: list[Interval] = []
    for i, interval in enumerate(found):
        fewer.append(Interval(fewer.pop().start, interval.end) if i in closed else interval)
    return fewer


@dataclass(frozen=True)
class Table:
    """A value in shards, as a snapshot describes it."""

    name: str
    """Where in the state it is."""
    tensor: str
    """Of what type its numbers are."""
    shape: tuple[int, ...]
    """Of all shards together. The first number is that of the rows."""
    item: int
    """Bytes of one number."""
    dim: int | None = 0
    """Which dimension of the value the rows are along: the others follow in their order. None: each rank has all of it, as one row."""

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of the value: its dimensions in their own order."""
        if self.dim is None:
            return self.shape[1:]
        return (*self.shape[1 : self.dim + 1], self.shape[0], *self.shape[self.dim + 1 :])

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return self.item * math.prod(self.shape[1:])

    def rows(self, rank: Rank) -> Interval:
        """The rows that a rank has."""
        return Interval(0, self.shape[0]) if self.dim is None else chunk(self.shape[0], rank)

    def size(self, rank: Rank) -> int:
        """Bytes that a rank has."""
        rows = self.rows(rank)
        return (rows.end - rows.start) * self.row

    def tag(self, rank: Rank) -> dict[str, Any]:
        """What describes the rows that a rank has, as a value of their own."""
        return {"tensor": self.tensor, "shape": [self.size(rank) // self.row if self.row else 0, *self.shape[1:]]}

    def described(self) -> list[Any]:
        """What a snapshot has of it."""
        found = [self.name, self.tensor, list(self.shape), self.item]
        return found if self.dim == 0 else [*found, self.dim]


def by_rows(shape: tuple[int, ...], dim: int | None) -> tuple[int, ...]:
    """The shape of a value in rows: with this dimension before the others, or all of it as one row."""
    return (1, *shape) if dim is None else (shape[dim], *shape[:dim], *shape[dim + 1 :])


@dataclass(frozen=True)
class Cut:
    """How all values are cut that are in shards."""

    ranks: int
    tables: tuple[Table, ...]

    def offsets(self, rank: int) -> list[int]:
        """Where each value begins in the part of a rank, and behind the last of them where that ends."""
        found, at = [], 0
        for table in self.tables:
            found.append(at)
            at += -(-table.size(Rank(rank, self.ranks)) // _ALIGN) * _ALIGN
        return [*found, at]

    def described(self) -> dict[str, Any]:
        """What a snapshot has of it."""
        return {"ranks": self.ranks, "tables": [table.described() for table in self.tables]}

    @classmethod
    def of(cls, described: Mapping) -> "Cut":
        """The cut in a snapshot. Raises ValueError, TypeError or LookupError where there is none that makes sense."""
        ranks, tables = described["ranks"], []
        for name, tensor, shape, item, *more in described["tables"]:
            numbers = [item, *shape]
            if not all(type(n) is int and 0 <= n < 2**62 for n in numbers) or not item or not shape or math.prod(numbers) >= 2**62:
                raise ValueError(f"{name!r} in shards has the shape {shape!r}")
            (dim,) = more or (0,)
            if shape[0] != 1 if dim is None else type(dim) is not int or not 0 <= dim < len(shape):
                raise ValueError(f"{name!r} in shards has the shape {shape!r}, and its rows are along {dim!r}")
            tables.append(Table(str(name), str(tensor), tuple(shape), item, dim))
        if type(ranks) is not int or not 1 <= ranks <= MOST:
            raise ValueError(f"its shards are those of {ranks!r} ranks")
        return cls(ranks, tuple(tables))


def taken(table: Table, ranks: int, rank: Rank) -> list[Move]:
    """What a rank takes of a value from those of so many that had it before: rows, and the rank of whom they are taken. Those that it had
    itself are among them."""
    want = table.rows(rank)
    if not want or not table.row:
        return []
    each = -(-table.shape[0] // ranks)  # Only few have some of it: nobody looks at hundreds for each value.
    first, behind = want.start // each, -(-want.end // each)
    if table.dim is None:  # Anybody has it; who was this rank is near, as a rule.
        first = min(rank.number, ranks - 1)
        behind = first + 1
    parts = [table.rows(Rank(other, ranks)) for other in range(first, behind)]
    return [Move(first + move.part, move.start, move.end) for move in plan(want, parts)]


def given(table: Table, rank: Rank, ranks: int) -> list[tuple[int, Move]]:
    """What each of so many other ranks takes of a value from one that had some of it, by their ranks: the same as taken() says for each of
    them."""
    mine = table.rows(rank)
    if not mine or not table.row:
        return []
    each = -(-table.shape[0] // ranks)
    others = range(ranks) if table.dim is None else range(mine.start // each, -(-mine.end // each))
    return [(other, move) for other in others for move in taken(table, rank.of, Rank(other, ranks)) if move.part == rank.number]


def turns(cut: Cut, ranks: int, most: int) -> list[range]:
    """The values in shards, by their numbers, in groups whose bytes on a rank are at most so many, before and after together; or one value
    of more."""
    found: list[range] = []
    begin, size = 0, 0
    for number, table in enumerate(cut.tables):
        more = table.size(Rank(0, cut.ranks)) + table.size(Rank(0, ranks))  # The first rank has the most rows.
        if number > begin and size + more > most:
            found.append(range(begin, number))
            begin, size = number, 0
        size += more
    return [*found, range(begin, len(cut.tables))] if cut.tables else []


class _Piece(NamedTuple):
    """Bytes of a part as another one has them."""

    start: int
    """Where they begin in the part that is put together."""
    end: int
    source: int
    """Which part they are in, and where."""
    at: int


class Gathering:
    """What a rank of another world takes from the parts that there are."""

    def __init__(self, was: Cut, rank: Rank):
        """rank: for whom."""
        self.now = Cut(rank.of, was.tables)
        begins = self.now.offsets(rank.number)
        theirs: dict[int, list[int]] = {}
        self._pieces: list[_Piece] = []
        for i, table in enumerate(was.tables):
            want = table.rows(rank)
            for source, begin, end in taken(table, was.ranks, rank):
                if source not in theirs:
                    theirs[source] = was.offsets(source)
                start = begins[i] + (begin - want.start) * table.row
                at = theirs[source][i] + (begin - table.rows(Rank(source, was.ranks)).start) * table.row
                self._pieces.append(_Piece(start, start + (end - begin) * table.row, source, at))
        self._starts = [piece.start for piece in self._pieces]
        self.sources = sorted({piece.source for piece in self._pieces})
        """The parts that something is taken from."""

    def ranges(self, source: int, most: int) -> list[Interval]:
        """The bytes that are taken from a source, in at most so many ranges."""
        return joined(((p.at, p.at + p.end - p.start) for p in self._pieces if p.source == source), most)

    def where(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Where these bytes of the part are that is put together, in order: a source, an offset there, and how many."""
        found = []
        for piece in self._pieces[max(0, bisect.bisect(self._starts, start) - 1) :]:
            if piece.start >= end:
                break
            low, high = max(start, piece.start), min(end, piece.end)
            if low < high:
                found.append((piece.source, piece.at + low - piece.start, high - low))
        return found
