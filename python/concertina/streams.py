"""Data that can only be read from its front, in fixed virtual shards: which of their samples a step uses, and who reads them.

The order of an epoch is that of turns: a sample of each shard, in the order of their numbers, then another one of each; a
shard that has come to its end is left out. It is the same for any number of ranks, and a step uses the next global_batch
samples of it. So how far each shard is follows from how many samples the epoch has used, and from the lengths of the
shards that have ended: that is all there is to keep. A shard's samples are all computed by one rank, by number modulo
ranks, because another one would have to read it as well.

How long a shard is nobody knows before it has ended. Before each step every rank reads its shards as far as the step needs
them if none ends, and one sample further, and all tell each other which have ended. Is it one that was not known to, the
others have to give more, and it is done again. What is found depends on nothing but the place and the stream, so that a
step that is made again, by others, is made of the same samples.
"""

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concertina import plan as plans
from concertina import samples
from concertina.plan import Batch, Place
from concertina.shards import Rank
from concertina.world import World

MAX_SHARDS = 2**16
"""The largest number of shards."""

Look = Callable[[int, Sequence[int], Sequence[int], Mapping[int, int]], Mapping[int, int]]
"""What StreamPlan.batch() asks about the shards."""


class Stream:
    """A stream of samples for job.steps(…), in virtual shards that are opened one by one:

        def lines(shard, epoch):                       # of one file in 64
            with open(files[shard]) as file:
                yield from map(json.loads, file)

        data = Stream(lines, shards=64)
    """

    def __init__(self, open: Callable[..., Iterable], *, shards: int, seeks: bool = False):
        """open(shard, epoch) returns the samples of one shard, 0 … shards-1, in one epoch, from 0: the same ones in the same
        order whenever it is called, in any process. It is called by the rank that trains on the shard, and again by
        another one when the number of ranks changes; what was used of it is read then and thrown away.

        seeks: open(shard, epoch, first) is called instead, and returns the samples from number first on, without having
        read those before.

        shards: 1 … 65536, the same for the whole training: many times the ranks that there may be, or a number that all of
        these divide, and about equally long, so that all ranks have the same to do. Each rank keeps those that
        it reads open.

        Raises TypeError for what cannot be called, and for shards that are no whole number, ValueError for shards out of range.
        """
        if not callable(open):
            raise TypeError(f"Stream({type(open).__name__}, …): give a function that opens a shard: open(shard, epoch)")
        shards = samples.whole("shards", shards)
        if not 1 <= shards <= MAX_SHARDS:
            raise ValueError(f"shards is {shards}: it must be from 1 to {MAX_SHARDS}")
        self.shards = shards
        """How many shards it has."""
        self._open = open
        self._seeks = seeks

    def samples(self, shard: int, epoch: int, first: int) -> Iterator[Any]:
        """The samples of a shard from number first on."""
        if self._seeks:
            return iter(self._open(shard, epoch, first))
        return itertools.islice(self._open(shard, epoch), first, None)


def _other(shard: int, found: int, wanted: int) -> RuntimeError:
    return RuntimeError(
        f"shard {shard} of the stream ends after {found} samples, and had at least {wanted} before: it must give the same "
        "samples in the same order whenever it is opened"
    )


def standing(used: int, ends: Mapping[int, int], shards: int) -> list[int]:
    """How many samples of each shard are among the first so many of an epoch; ends: the lengths of those that are known to
    end. Of what is more than they have together nothing is taken."""
    level, live = 0, shards
    for length in sorted(ends.values()):
        if (length - level) * live > used:
            break
        used -= (length - level) * live
        level, live = length, live - 1
    turns, extra = divmod(used, live) if live else (0, 0)
    level += turns
    taken = []
    for shard in range(shards):
        length = ends.get(shard)
        if length is not None and length <= level:
            taken.append(length)
        else:
            taken.append(level + (extra > 0))
            extra -= 1
    return taken


@dataclass(frozen=True)
class StreamPlan:
    """The steps of a whole training on a stream; see concertina.plan.Plan."""

    shards: int
    """How many there are."""
    global_batch: int
    micro_batch: int
    epochs: int | None
    """The training ends after so many, if not before."""
    max_steps: int | None
    """The training ends after so many, if not before."""
    evaluate: str | int | None

    @property
    def total(self) -> int:
        """Steps of the whole training; 0 when that depends on how long the stream is."""
        return (self.max_steps or 0) if self.epochs is None else 0

    @property
    def identity(self) -> dict[str, int]:
        """What must be the same in a snapshot that the training goes on from."""
        return {"batch": self.global_batch, "shards": self.shards}

    def compared(self) -> dict[str, int]:
        """What must be the same on all ranks, by the name that the program knows it under."""
        return {
            "shards": self.shards, "global_batch": self.global_batch, "micro_batch": self.micro_batch,
            "epochs": self.epochs or 0, "max_steps": self.max_steps or 0, "evaluate": plans.number_of(self.evaluate),
        }  # fmt: skip

    def over(self, place: Place) -> bool:
        """Whether no step is left."""
        if self.max_steps is not None and place.step >= self.max_steps:
            return True
        return self.epochs is not None and place.epoch + 1 >= self.epochs and self.ended(place)

    def ended(self, place: Place) -> bool:
        """Whether the place is at the end of an epoch."""
        return len(place.ends) == self.shards and place.cursor == sum(length for _, length in place.ends)

    def evaluates(self, place: Place) -> bool:
        """Whether the program evaluates at this place, before the next step."""
        return plans.evaluates(self, place)

    def batch(self, place: Place, look: Look) -> Batch:
        """What the step after a place trains on. Raises ValueError for an epoch without samples.

        look(epoch, low, high, ends) is told which samples of each shard will be used, numbers low … high-1, as far as ends is
        known, and returns the lengths of all that have no more than those. All ranks give the same answer.
        """
        epoch, used, ends = (place.epoch + 1, 0, {}) if self.ended(place) else (place.epoch, place.cursor, dict(place.ends))
        low = standing(used, ends, self.shards)
        while True:
            high = standing(self._until(used, ends), ends, self.shards)
            found = look(epoch, low, high, ends)
            if len(found) == len(ends):
                break
            ends = dict(found)
        size = sum(high) - used
        if not size:
            raise ValueError(f"the stream has no samples in epoch {epoch}")
        last = len(ends) == self.shards and used + size == sum(ends.values())
        return Batch(epoch, used, size, last, tuple(sorted(ends.items())))

    def _until(self, used: int, ends: Mapping[int, int]) -> int:
        """How many samples of the epoch are used after the next step, as far as is known."""
        more = used + self.global_batch
        return min(more, sum(ends.values())) if len(ends) == self.shards else more

    def after(self, place: Place, batch: Batch) -> Place:
        """Where training is when that step is done."""
        used = batch.first + batch.samples
        return Place(place.step + 1, place.samples + batch.samples, batch.epoch, used, batch.ends)

    @functools.lru_cache(maxsize=1)
    def mine(self, batch: Batch, size: int, rank: int) -> list[tuple[int, int]]:
        """What one of so many ranks uses in a step: numbers of shards, and of samples in them, in their order."""
        low, high = (standing(used, dict(batch.ends), self.shards) for used in (batch.first, batch.first + batch.samples))
        order = sorted((number, shard) for shard in range(rank, self.shards, size) for number in range(low[shard], high[shard]))
        return [(shard, number) for number, shard in order]

    def part(self, batch: Batch, size: int, rank: int) -> list[samples.MicroBatch]:
        """What one of so many ranks computes of a step; positions are those in mine()."""
        own, most = len(self.mine(batch, size, rank)), self.micro_batch
        sizes = [min(most, own - first) for first in range(0, own, most)]
        return [samples.MicroBatch(i * most, n, n * size / batch.samples) for i, n in enumerate(sizes)]


def plan(
    stream: Stream,
    *,
    global_batch: int,
    micro_batch: int | None = None,
    epochs: int | None = None,
    max_steps: int | None = None,
    evaluate: str | int | None = None,
) -> StreamPlan:
    """The plan that a program asks for. Raises ValueError for what is out of range or contradicts itself, TypeError for
    what is no whole number."""
    asked = plans.asked(
        global_batch=global_batch, micro_batch=micro_batch, epochs=epochs, max_steps=max_steps, evaluate=evaluate
    )  # fmt: skip
    return StreamPlan(stream.shards, **asked._asdict())


class Reader:
    """Reads the shards that one rank trains on."""

    def __init__(self, stream: Stream):
        self.stream = stream
        self._world: World | None = None
        self._mine = range(0)
        self._epoch = -1
        self._shards: dict[int, _Shard] = {}

    def batch(
        self, plan: StreamPlan, place: Place, world: World, dealt: Rank, largest: Callable[[Sequence[int]], Sequence[int]]
    ) -> Batch:
        """What the step after a place trains on; this rank's part of it is read then. Raises what the program's stream
        raises, and RuntimeError where that is another one than before.

        dealt: which one it is of those that shards are dealt out to. largest gives all ranks of the world the largest number that any of them has at each place of a list."""
        if world is not self._world:
            self._world = world
            self.deal(dealt.of, dealt.number)

        def look(epoch: int, low: Sequence[int], high: Sequence[int], ends: Mapping[int, int]) -> Mapping[int, int]:
            found = {**ends, **self.look(epoch, low, high, ends)}
            if world.size == 1 or len(ends) == plan.shards:
                return found
            lengths = largest([found.get(shard, -1) for shard in range(plan.shards)])
            return {shard: length for shard, length in enumerate(lengths) if length >= 0}

        return plan.batch(place, look)

    def deal(self, size: int, rank: int) -> None:
        """From now on it reads those of this rank. What was read of them and not used is kept; what was thought to be
        an end may have been that of the world, and is looked at again."""
        mine = range(rank, self.stream.shards, size)
        self._shards = {number: shard for number, shard in self._shards.items() if number in mine and not shard.ended}
        self._mine = mine

    def look(self, epoch: int, low: Sequence[int], high: Sequence[int], ends: Mapping[int, int]) -> dict[int, int]:
        """Reads what StreamPlan.batch() asks for; the lengths of those that have ended, as far as this rank knows."""
        if epoch != self._epoch:
            self._epoch, self._shards = epoch, {}
        found = {}
        for number in self._mine:
            known = ends.get(number)
            if low[number] == known:
                self._shards.pop(number, None)  # There is nothing left in it.
                continue
            shard = self._at(number, low[number])
            shard.drop(low[number])
            try:
                shard.read(high[number] + (known is None))
            except BaseException:
                del self._shards[number]  # An iterator that has raised something only looks as if it had ended.
                raise
            # Of a shard that has not ended one sample more than those used was seen.
            wanted = high[number] if known is not None else low[number] + (low[number] > 0)
            if shard.until < wanted:
                raise _other(number, shard.until, wanted)
            if known is None and shard.ended:
                found[number] = shard.until
        return found

    def take(self, wanted: Iterable[tuple[int, int]]) -> list[Any]:
        """Samples that are read already, by shards and numbers."""
        return [self._shards[shard].sample(number) for shard, number in wanted]

    def _at(self, number: int, first: int) -> "_Shard":
        """A shard that goes on at this sample or has it already."""
        shard = self._shards.get(number)
        if shard is None or not shard.first <= first <= shard.until:
            shard = self._shards[number] = _Shard(self.stream.samples(number, self._epoch, first), first)
        return shard


class _Shard:
    """What was read of a shard and may still be used."""

    def __init__(self, following: Iterator[Any], first: int):
        self.first = first
        self.ended = False
        self._following = following
        self._samples: deque[Any] = deque()

    @property
    def until(self) -> int:
        return self.first + len(self._samples)

    def drop(self, first: int) -> None:
        """Forgets the samples before this one."""
        while self.first < first:
            self._samples.popleft()
            self.first += 1

    def read(self, until: int) -> None:
        wanted = until - self.until
        if wanted > 0 and not self.ended:
            self._samples.extend(itertools.islice(self._following, wanted))
            self.ended = self.until < until

    def sample(self, number: int) -> Any:
        return self._samples[number - self.first]
