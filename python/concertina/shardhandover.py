"""Gives the ranks of a world what each lacks of a state in shards, from those that have it, over the links of that world.

A world of another size has the state in other intervals. Who was in the world before has one of them, by its rank there, and each rank of the new
one takes what it is to have from all who have some of that, at once: so a rank gives and gets at a time, as a rule. What it had and is
to have still is copied within its memory, and nothing else that it had comes to it. What nobody of the world has any more, since those have left
it, or could not keep it, is read from the parts of the snapshot that the world begins with.

Values go in turns, all ranks in the same order: what a rank had of a value is let go of once it has given that, before the
next ones are made room for. So beside what it had and what the program has built there are the values of one turn.

What is exchanged follows from how the state was cut and from who is there, which all have to know: they tell each other before anything is
sent. Where they do not know the same nobody gives anything, and all read the snapshot.
"""

import collections
import concurrent.futures
import contextlib
import datetime
import hashlib
import json
import math
import os
import sys
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from concertina.codec import Elsewhere, Local
from concertina.handover import LIMIT, Part, Piece, await_, begun, bytes_in, failed, pieces_of, told_as_failed, without_room
from concertina.session import WorldChanged
from concertina.shards import Cut, Move, Rank, given, taken, turns
from concertina.tensors import is_there, memory_of

VERSION = 1
"""Ranks of which one has another version exchange nothing. It changes with anything that all have to do in the same way."""
KNOWS = f"shards-{VERSION}"
"""What ranks say that know of it."""
NOTHING = "nothing"
"""What those tell of it among whom nobody is to give anything."""
_TURN = 64 << 20
"""So many bytes that a rank has of values before and after are exchanged in one turn, or one value with more."""
_BLOCK = 16 << 20
"""So many bytes at most have a checksum of their own."""
_SAYS = 1.0
"""Seconds between two words of a rank that something moves there."""
_THREADS = min(8, len(os.sched_getaffinity(0)))
"""How many checksums are made at a time."""


class Held:
    """What a process has of a state in shards that its last world has left to it, until it is given. It is the live memory, which a program
    may write to in ways that nothing counts: so its bytes are compared with what they were."""

    def __init__(self, rank: Rank, layout: str, locals_: Sequence[Local], aborted: Callable[[], bool]):
        """rank: the one that it had in that world. layout: as a snapshot's part with the same is named. locals_: what it has of each value, by
        number. Reads all of it, and raises WorldChanged once aborted says so."""
        self.rank, self.key = rank, key_of(rank, layout)
        self._parts: list[memoryview | Elsewhere | None] = [local.part for local in locals_]
        self._aborted = aborted
        self._sums = self._summed()

    def is_of(self, keys: Sequence[str]) -> bool:
        """Whether it is one of these parts of a state, by rank."""
        return self.rank.of == len(keys) and keys[self.rank.number] == self.key

    def intact(self) -> bool:
        """Whether its bytes are known to be what they were. Reads all of it, and raises as it does when it is made."""
        with contextlib.suppress(MemoryError, OSError, RuntimeError):
            return self._summed() == self._sums
        return False

    def _summed(self) -> list[int]:
        if not all(is_there(part) for part in self._parts if isinstance(part, memoryview)):
            raise RuntimeError("the memory was given back")
        blocks = [part[at : at + _BLOCK] for part in self._parts if part is not None for at in range(0, len(part), _BLOCK)]
        if sum(map(len, blocks)) <= _BLOCK:
            return [*map(self._checksum, blocks)]
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:  # It lets the interpreter's lock go for all that is not tiny.
            return [*pool.map(self._checksum, blocks)]

    def _checksum(self, block: memoryview | Elsewhere) -> int:
        if self._aborted():
            raise WorldChanged
        if isinstance(block, Elsewhere):
            block = memory_of(bytes_in(block, Part(0, 0, len(block))).to("cpu"))
        return zlib.crc32(block)

    def bytes_of(self, number: int, low: int, high: int) -> torch.Tensor:
        """Some bytes of what it has of a value."""
        part = self._parts[number]
        if part is None:
            raise AssertionError(f"value {number} was given")
        return bytes_in(part, Part(0, low, high))

    def let_go(self, numbers: range) -> None:
        """Forgets what it has of these values, which it needs to give no more."""
        for number in numbers:
            self._parts[number] = None


class _Coming(NamedTuple):
    """A piece on its way to this rank."""

    work: Any
    bytes_: torch.Tensor
    into: list[torch.Tensor]


class ShardHandover:
    """The part in it of one rank of a world. Raises RuntimeError when a rank is gone, or does nothing, or there is no memory for it, and
    WorldChanged when the world is over.

    aborted: whether the world has been broken off.
    """

    def __init__(
        self,
        rank: Rank,
        group: dist.ProcessGroup | None,
        aborted: Callable[[], bool],
        held: Held | None,
        hopes: Collection[int],
        store: dist.Store | None,
    ):
        """rank: the one in this world, whose group this is; None for the default group. held: what this rank has; None for nothing. hopes: see
        sharded.Links. store: that of the world; None for a world of one."""
        self._rank, self._group, self._aborted, self._held = rank, group, aborted, held
        self.hopes, self._pace = hopes, Pace(rank, store)

    def meet(self, keys: Sequence[str], cut: Cut) -> Mapping[int, int]:
        """See sharded.Links. Waits for as long as exchanges of the program do: others may still build their models."""
        held = self._held
        if held and not (held.rank.of == cut.ranks and held.is_of(keys)):
            held = None
        if held and not held.intact():
            print(
                "concertina: what this process had of the state has changed since the last world ended, so it comes from the snapshot: with "
                "join(handover=False) nothing is kept for that", file=sys.stderr, flush=True,
            )  # fmt: skip
            held = None
        self._held = held
        told = torch.zeros(2, self._rank.of, dtype=torch.int64, device="cpu")
        told[0, self._rank.number] = held.rank.number + 1 if held else 0
        told[1, self._rank.number] = _digest(keys, cut)
        with told_as_failed():
            dist.all_reduce(told, group=self._group)
        if self._aborted():
            raise WorldChanged
        numbers, digests = told.tolist()
        there = {number - 1: rank for rank, number in enumerate(numbers) if number}
        if len({*digests}) > 1 or len(there) < sum(number > 0 for number in numbers):
            there = {}
        if not there:
            self._held = None
        return there

    def exchange(self, cut: Cut, there: Mapping[int, int], place: Callable[[int], memoryview]) -> None:
        """See sharded.Links."""
        with without_room():
            sent, came = collections.Counter[int](), collections.Counter[int]()
            for number, turn in enumerate(turns(cut, self._rank.of, _TURN)):
                self._turn(cut, there, number, turn, {value: place(value) for value in turn}, sent, came)
                if self._held:
                    self._held.let_go(turn)
            self._held = None

    def _turn(
        self,
        cut: Cut,
        there: Mapping[int, int],
        number: int,
        turn: range,
        into: Mapping[int, memoryview],
        sent: collections.Counter[int],
        came: collections.Counter[int],
    ) -> None:
        """number: that of the turn. sent, came: how many pieces each rank was sent, and has sent: both of two that exchange some count alike."""
        self._pace.comes_to(number)
        wanted, gives = self._wanted(cut, there, turn, into), self._given(cut, turn)
        coming: list[_Coming] = []
        for source, places in wanted.items():
            for piece in pieces_of({number: len(memory) for number, memory in places.items()}):
                some = [torch.frombuffer(places[part.at], dtype=torch.uint8)[part.low : part.high] for part in piece.parts]
                bytes_ = some[0] if len(some) == 1 else torch.empty(piece.size, dtype=torch.uint8, device="cpu")
                work = dist.irecv(bytes_, source, group=self._group, tag=came[source])
                coming.append(_Coming(work, bytes_, some))
                came[source] += 1
        sending = [
            (self._sent(bytes_, target, sent), bytes_)  # which have to live until they are sent
            for target, moves in gives.items()
            for bytes_ in self._outgoing(cut, moves)
        ]
        self._stay(cut, turn, into)
        self._pace.wait_for({*wanted, *gives}, number)
        for work, bytes_, some in coming:
            self._await(work)
            self._pace.moves()
            if len(some) > 1:
                for one, its in zip(some, bytes_.split([len(one) for one in some]), strict=True):
                    one.copy_(its)
        for work, _ in sending:
            self._await(work)
            self._pace.moves()
        if self._aborted():
            raise WorldChanged

    def _wanted(
        self, cut: Cut, there: Mapping[int, int], turn: range, into: Mapping[int, memoryview]
    ) -> dict[int, dict[int, memoryview]]:
        """Where what other ranks of this world give goes, by rank and number of the value."""
        found: dict[int, dict[int, memoryview]] = {}
        for number in turn:
            table = cut.tables[number]
            begin = table.rows(self._rank).start
            for source, start, end in taken(table, cut.ranks, self._rank):
                if there.get(source, self._rank.number) != self._rank.number:
                    place = into[number][(start - begin) * table.row : (end - begin) * table.row]
                    found.setdefault(there[source], {})[number] = place
        return found

    def _given(self, cut: Cut, turn: range) -> dict[int, dict[int, Move]]:
        """What other ranks of this world take of what this one has, by rank and number of the value."""
        found: dict[int, dict[int, Move]] = {}
        for number in turn if self._held else ():
            for target, move in given(cut.tables[number], self._held.rank, self._rank.of):
                if target != self._rank.number:
                    found.setdefault(target, {})[number] = move
        return found

    def _outgoing(self, cut: Cut, moves: Mapping[int, Move]) -> Sequence[torch.Tensor]:
        """The bytes of the pieces in which so much is given."""
        sizes = {number: (move.end - move.start) * cut.tables[number].row for number, move in moves.items()}
        return [self._bytes_of(cut, moves, piece) for piece in pieces_of(sizes)]

    def _bytes_of(self, cut: Cut, moves: Mapping[int, Move], piece: Piece) -> torch.Tensor:
        some = []
        for number, low, high in piece.parts:
            table = cut.tables[number]
            at = (moves[number].start - table.rows(self._held.rank).start) * table.row
            some.append(self._held.bytes_of(number, at + low, at + high).to("cpu"))  # which gloo may have from any device
        return some[0] if len(some) == 1 else torch.cat(some)

    def _stay(self, cut: Cut, turn: range, into: Mapping[int, memoryview]) -> None:
        """Copies what this rank had and is to have still."""
        for number in turn if self._held else ():
            table = cut.tables[number]
            had, has = table.rows(self._held.rank).start, table.rows(self._rank).start
            for source, start, end in taken(table, cut.ranks, self._rank):
                if source == self._held.rank.number:
                    place = into[number][(start - has) * table.row : (end - has) * table.row]
                    bytes_ = self._held.bytes_of(number, (start - had) * table.row, (end - had) * table.row)
                    torch.frombuffer(place, dtype=torch.uint8).copy_(bytes_)

    def _sent(self, bytes_: torch.Tensor, target: int, sent: collections.Counter[int]) -> Any:
        work = dist.isend(bytes_, target, group=self._group, tag=sent[target])
        sent[target] += 1
        return work

    def _await(self, work: Any) -> None:
        """Waits for a piece, which is under way: who gives or gets it is there."""
        await_(work, self._aborted)


class Pace:
    """How far the ranks of a world are in an exchange, as they say in its store. Gloo bounds a wait only by ending the connection, and who has little
    to do in some turns comes to the next while those that it exchanges something with there are still busy with others. So it waits for these
    here first, for as long as anything moves."""

    def __init__(self, rank: Rank, store: dist.Store | None):
        self._rank, self._store = rank, dist.PrefixStore("concertina-shards", store) if store else None
        self._told = -math.inf

    def comes_to(self, turn: int) -> None:
        """This rank has come to a turn."""
        self._ask(lambda store: store.set(f"{self._rank.number}-{turn}", ""))
        self.moves()

    def moves(self) -> None:
        """Something has come to this rank, or has gone from it."""
        now = time.monotonic()
        if now >= self._told + _SAYS:
            self._told = now
            self._ask(lambda store: store.add("moves", 1))

    def wait_for(self, ranks: Collection[int], turn: int) -> None:
        """Waits until these ranks have come to a turn. Raises RuntimeError when one is gone, or nothing moves in this world any more."""
        if not self._store or not ranks:
            return
        moves, keys = -1, [f"{rank}-{turn}" for rank in sorted(ranks)]
        while not self._ask(lambda store: _there(store, keys)):
            now = self._ask(lambda store: store.add("moves", 0))
            late = [rank for rank in sorted(ranks) if now == moves and not self._ask(lambda store: store.check([f"{rank}-{turn}"]))]
            if late:
                raise failed(f"nothing has moved for {LIMIT:g} s, and ranks have not come to turn {turn}: {', '.join(map(str, late))}")
            moves = now

    def _ask(self, ask: Callable[[dist.Store], Any]) -> Any:
        """What the store of the world answers; None where there is none. PyTorch waits for ever where whoever serves it is stopped, or its
        machine has gone without a word. What still waits then ends with the world's connections."""
        if not self._store:
            return None
        answer = begun(lambda: ask(self._store))
        try:
            with told_as_failed():
                return answer.result(2 * LIMIT)  # The store itself may wait for LIMIT.
        except TimeoutError:
            raise failed(f"the store of the world, which rank 0 serves, has not answered for {2 * LIMIT:g} s") from None


def _there(store: dist.Store, keys: list[str]) -> bool:
    """Whether all of these are there, within LIMIT."""
    try:
        store.wait(keys, datetime.timedelta(seconds=LIMIT))
    except RuntimeError:
        return False  # Whether they are late or the store is gone shows in what is asked of it next.
    return True


def said(held: Held | None) -> str:
    """What a rank tells the others of what it has, when a world forms."""
    return str(held.rank.number) if held else ""


def hopes_of(heard: Sequence[str] | None) -> Collection[int]:
    """Which of the ranks that there were may give something, as far as all of the world have told so; see said()."""
    if heard is None or NOTHING in heard:
        return ()
    return {int(told) for told in heard if told}


def key_of(rank: Rank, layout: str) -> str:
    """How the shard of a rank is named, of states with this layout."""
    return f"d{rank.number}.{rank.of}.{layout}"


def _digest(keys: Sequence[str], cut: Cut) -> int:
    """The same on ranks that are to have the same state, cut from the same one."""
    told = json.dumps([*keys, cut.described()]).encode()
    return int.from_bytes(hashlib.sha256(told).digest()[:8], "big") >> 2
