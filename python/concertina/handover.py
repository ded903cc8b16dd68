"""Gives the state of a world to those of its ranks that lack it, over the links of that world, before its first step.

All who have it give at once, each its own pieces of it: bytes go from tensor to tensor, in pieces of bounded size, and no whole
copy is made on the way, but of tensors of processors whose bytes are not one after another, such as transposed ones. Between
processors a piece goes from one that has it to the first of those who lack it, from there to the next, and so on, so that nobody
sends much more than it would have to receive. Between devices all ranks get what one of them broadcasts.

What a piece is follows from the sizes of the values alone, which all have to know: the first rank that has the state tells those who
lack it how it is made up, together with what is small or differs by rank. A state that is too small for shares may differ by rank in
anything, as its snapshots are of one rank: that rank gives all of it.

Where the processes of each worker share a model, those of the same local rank have the same of it. So there is a handover among these for
each local rank, all of them at a time.

Whatever keeps it from being handed over, such as a lack of memory, here or where the program's own state_dict() or load_state_dict()
copies, is told like a connection that has failed: the world is made anew then, and begins with a snapshot.
"""

import collections
import concurrent.futures
import contextlib
import copy
import datetime
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from concertina import snapshot
from concertina.codec import Codec, Elsewhere
from concertina.decoder import Decoder
from concertina.session import WorldChanged
from concertina.tensors import fits, memory_of, out_of_memory, own_part

PIECE = 16 << 20
"""The most bytes that are sent at once."""
_SMALL = 1 << 20
"""Values with fewer bytes are sent together, through a copy."""
_WINDOW = 8
"""How many pieces are on their way to a rank at a time."""
_CHAIN = 8
"""How many ranks give a piece on, one to the next, before another one is begun, at least: nobody is to send more than it would receive."""
LIMIT = 120.0
"""Seconds for which a rank waits for an exchange with another one: a piece, and those of the window before it."""
_LOOK = 0.05
VERSION = 1
"""Ranks of which one has another version hand nothing over. It changes with anything that all have to do in the same way, such as the sizes
above."""
_HAS = 1
"""What a rank says that has the state, and cannot give it."""
_NAME = "the state that was handed over"


class Part(NamedTuple):
    """Some bytes of a value, by where they are in what is the same on all ranks."""

    at: int
    low: int
    high: int


class Piece(NamedTuple):
    """What is sent at once: some bytes of one value, or several small ones."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return sum(part.high - part.low for part in self.parts)


def pieces_of(values: Mapping[int, int]) -> list[Piece]:
    """The pieces of values that have so many bytes, by where they begin."""
    pieces: list[Piece] = []
    some: list[Part] = []
    together = 0
    for at, size in sorted(values.items()):
        if size >= _SMALL:
            pieces += (Piece((Part(at, low, min(size, low + PIECE)),)) for low in range(0, size, PIECE))
            continue
        if some and together + size > PIECE // 4:
            pieces.append(Piece(tuple(some)))
            some, together = [], 0
        if size:
            some.append(Part(at, 0, size))
            together += size
    return pieces + ([Piece(tuple(some))] if some else [])


class Way(NamedTuple):
    """How a piece comes to a rank, and from there to others."""

    source: int
    targets: tuple[int, ...]


def ways(number: int, givers: Sequence[int], lackers: Sequence[int]) -> dict[int, Way]:
    """How the piece of a number comes to all who lack it, by rank; from itself to who gives it."""
    giver = givers[number % len(givers)]
    turn = number // len(givers) % len(lackers) + number % len(givers)
    order = [lackers[(turn + i) % len(lackers)] for i in range(len(lackers))]
    chain = max(_CHAIN, -(-len(lackers) // len(givers)))
    found = {giver: Way(giver, tuple(order[::chain]))}
    for place, rank in enumerate(order):
        following = order[place + 1 : place + 2] if (place + 1) % chain else []
        found[rank] = Way(order[place - 1] if place % chain else giver, tuple(following))
    return found


class Handover:
    """The part in it of one of those that are to have the same state, in a group of these. Raises RuntimeError when a rank is gone, or does
    nothing, or none has a state that it can give, and WorldChanged when the world is over.

    aborted: whether the world has been broken off.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        device: torch.device | None,
        group: dist.ProcessGroup | None,
        aborted: Callable[[], bool],
        together: Callable[[], Any] | None = None,
    ):
        """device: what ranks exchange between, where that is not their processors. together: begins an exchange between all ranks of the world,
        where there are several handovers in it, and returns what waits for its end; None where this is the only one."""
        self._rank, self._size, self._aborted = rank, size, aborted
        self._device, self._group = device or torch.device("cpu"), group
        self._by_device, self._together = device is not None, together
        self._why: BaseException | None = None  # why this rank gives none
        self._givers: list[int] = []
        self._lackers: list[int] = []
        self._described = 0  # pieces of the description, which come before all others

    def give(self, image: snapshot.Image | None, why: BaseException | None = None) -> None:
        """Gives a state to those who lack it; None for one that cannot be given. why: what is raised then, where nobody else gives one."""
        self._why = why
        with without_room():
            self._give(image)

    def _give(self, image: snapshot.Image | None) -> None:
        self._meet(_word_of(image) if image else _HAS)
        if not self._lackers:
            return
        if image is None or self._rank != self._givers[0]:
            self._pass_by([piece.size for piece in self._pieces_described(sum(self._agreed([0, 0])))])
        else:
            self._describe(image)
        self._all_meet()
        if self._rank not in self._givers:
            self._pass_by(None)
            return
        parts = dict(image.shared_parts())
        pieces = pieces_of({at: len(part) for at, part in parts.items()})
        self._announce(pieces)
        self._send(_Outgoing(parts, pieces, self._device), pieces, self._givers, self._described)

    def _describe(self, image: snapshot.Image) -> None:
        """Tells how a state is made up, and what of it is small or differs by rank."""
        head = image.description
        sizes = self._agreed([len(head), image.shared])
        told = bytearray(sum(sizes))
        told[: len(head)] = head
        image.copy_private(memoryview(told)[len(head) :])
        pieces = self._pieces_described(len(told))
        whole = torch.frombuffer(told, dtype=torch.uint8)
        self._send([whole[part.low : part.high].to(self._device) for ((part,),) in pieces], pieces, self._givers[:1], 0)

    def _pieces_described(self, size: int) -> list[Piece]:
        pieces = [Piece((Part(0, low, min(size, low + PIECE)),)) for low in range(0, size, PIECE)]
        self._described = len(pieces)
        return pieces

    def get(self, codec: Codec, existing: Any, begins: Callable[[], None]) -> tuple[dict[str, int], Any]:
        """The position and the state that others have, in the arrays and tensors at the same place of existing where they fit. begins: is
        called before these change."""
        with without_room():
            return self._get(codec, existing, begins)

    def _get(self, codec: Codec, existing: Any, begins: Callable[[], None]) -> tuple[dict[str, int], Any]:
        self._meet(0)
        head, private = self._agreed([0, 0])
        described = torch.empty(head + private, dtype=torch.uint8, device=self._device)
        pieces = self._pieces_described(head + private)
        into = [described[part.low : part.high] for ((part,),) in pieces]
        self._receive(lambda number: into[number], pieces, self._givers[:1], lambda *_: None, 0)
        self._known()
        text = memory_of(described.cpu())
        try:
            description = json.loads(bytes(text[:head]))
            with out_of_memory():
                incoming = _Incoming(description, text[head:], codec, existing, self._device)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if isinstance(error, snapshot.SnapshotError):
                raise
            raise snapshot.SnapshotError(f"{_NAME} makes no sense: {error!r}") from error
        self._all_meet()
        self._announce(incoming.pieces)
        begins()
        self._receive(incoming.room, incoming.pieces, self._givers, incoming.came, self._described)
        self._known()
        return snapshot.position_in(description), incoming.state()

    def _meet(self, mine: int) -> None:
        """Finds out who lacks the state, and who gives it."""
        told = torch.zeros(2, self._size, dtype=torch.int64, device=self._device)
        told[0, self._rank], told[1, self._rank] = mine, VERSION
        self._await(dist.all_reduce(told, group=self._group, async_op=True))
        found, versions = told.tolist()
        self._known()
        if len({*versions}) > 1:
            raise failed(f"they do so in different ways, of the versions {sorted({*versions})}: use one version of the SDK in all of them")
        words = {one for one in found if one > _HAS}
        if not words:
            raise self._why or failed("each of them holds something that cannot be kept, or has no memory to give it")
        if len(words) > 1:
            raise failed("they have states that are made up in different ways")
        self._givers = [rank for rank, one in enumerate(found) if one > _HAS]
        self._lackers = [rank for rank, one in enumerate(found) if not one]
        if _is_small(*words):
            del self._givers[1:]

    def _all_meet(self) -> None:
        """Waits until everybody in the world knows what is to come: a worker with an older state is to keep that where others of its processes
        can get nothing."""
        if self._together:
            self._await(self._together())
            self._known()

    def _agreed(self, numbers: Sequence[int]) -> list[int]:
        """The numbers that the first who gives has."""
        told = torch.tensor([*numbers], dtype=torch.int64, device=self._device)
        self._await(dist.broadcast(told, self._givers[0], group=self._group, async_op=True))
        found = told.tolist()
        self._known()
        return found

    def _announce(self, pieces: Sequence[Piece]) -> None:
        """Where all ranks take part in each exchange, all have to know how many there are, and of what size."""
        if not self._by_device:
            return
        mine = [piece.size for piece in pieces]
        count = self._agreed([len(mine)])[0]
        if count != len(mine) or mine and mine != self._agreed(mine):
            raise failed("they do not agree on how much that is")

    def _pass_by(self, sizes: list[int] | None) -> None:
        """Takes part where all have to, without giving or getting anything. None: of sizes that are announced."""
        if not self._by_device:
            return
        if sizes is None:
            count = self._agreed([0])[0]
            sizes, givers = self._agreed([0] * count) if count else [], self._givers
        else:
            givers = self._givers[:1]
        for number, size in enumerate(sizes):
            self._spread(torch.empty(size, dtype=torch.uint8, device=self._device), givers[number % len(givers)])
        self._known()

    def _spread(self, bytes_: torch.Tensor, giver: int) -> None:
        self._await(dist.broadcast(bytes_, giver, group=self._group, async_op=True))

    def _await(self, work: Any) -> None:
        """Waits for an exchange."""
        if not self._by_device:
            return await_(work, self._aborted)
        with told_as_failed():
            work.wait(datetime.timedelta(seconds=LIMIT))

    def _known(self) -> None:
        """Between devices an exchange that was broken off says nothing, and leaves anything."""
        if self._by_device:
            self._settle()
        if self._aborted():
            raise WorldChanged

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def _send(self, outgoing: Sequence[torch.Tensor], pieces: Sequence[Piece], givers: Sequence[int], tag: int) -> None:
        sending: collections.deque[tuple[Any, torch.Tensor]] = collections.deque()
        for number, piece in enumerate(pieces):
            giver = givers[number % len(givers)]
            if self._by_device:
                mine = giver == self._rank
                bytes_ = outgoing[number] if mine else torch.empty(piece.size, dtype=torch.uint8, device=self._device)
                self._spread(bytes_, giver)
            elif giver == self._rank:
                for target in ways(number, givers, self._lackers)[self._rank].targets:
                    if len(sending) >= _WINDOW:
                        self._await(sending.popleft()[0])
                    sending.append(self._sent(outgoing[number], target, tag + number))
        for work, _ in sending:
            self._await(work)
        self._known()

    def _sent(self, bytes_: torch.Tensor, target: int, tag: int) -> tuple[Any, torch.Tensor]:
        return dist.isend(bytes_, target, group=self._group, tag=tag), bytes_  # which have to live until they are sent

    def _receive(
        self,
        room: Callable[[int], torch.Tensor],
        pieces: Sequence[Piece],
        givers: Sequence[int],
        came: Callable[[int, torch.Tensor], None],
        tag: int,
    ) -> None:
        """room: where the bytes of a piece go. came: is called when they are there."""
        coming: collections.deque[tuple[int, Any, torch.Tensor, tuple[int, ...]]] = collections.deque()
        sending: collections.deque[tuple[Any, torch.Tensor]] = collections.deque()

        def first_comes() -> None:
            number, work, bytes_, targets = coming.popleft()
            self._await(work)
            for target in targets:
                if len(sending) >= _WINDOW:
                    self._await(sending.popleft()[0])
                sending.append(self._sent(bytes_, target, tag + number))
            came(number, bytes_)

        for number in range(len(pieces)):
            bytes_ = room(number)
            if self._by_device:
                self._spread(bytes_, givers[number % len(givers)])
                came(number, bytes_)
                continue
            way = ways(number, givers, self._lackers)[self._rank]
            if len(coming) >= _WINDOW:
                first_comes()
            coming.append((number, dist.irecv(bytes_, way.source, group=self._group, tag=tag + number), bytes_, way.targets))
        while coming:
            first_comes()
        for work, _ in sending:
            self._await(work)


class _Outgoing(Sequence):
    """The bytes of the pieces of a state."""

    def __init__(self, parts: Mapping[int, memoryview | Elsewhere], pieces: Sequence[Piece], device: torch.device):
        self._parts, self._pieces, self._device = parts, pieces, device

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, number: Any) -> torch.Tensor:
        some = [bytes_in(self._parts[part.at], part) for part in self._pieces[number].parts]
        if len(some) == 1:
            return some[0].to(self._device)
        return torch.cat([one.to(self._device) for one in some])


class _Incoming:
    """A state that comes in pieces."""

    def __init__(self, description: Mapping, private: memoryview, codec: Codec, existing: Any, device: torch.device):
        self._description, self._private, self._codec, self._existing, self._device = description, private, codec, existing, device
        self._shared = description["shared"]
        self._wanted: dict[int, tuple[Mapping, int, Any]] = {}
        Decoder(_NAME, description["bytes"], self._want).decode(description["state"], existing)
        self._into: dict[int, torch.Tensor] = {}
        self._ends: dict[int, Callable[[], Any]] = {}
        for at, (tag, size, there) in self._wanted.items():
            self._into[at], self._ends[at] = self._place_of(tag, size, there)
        self.pieces = pieces_of({at: size for at, (_, size, _) in self._wanted.items()})

    def _want(self, tag: Mapping, at: int, size: int, existing: Any) -> Any:
        if self._comes(at, size):
            self._wanted.setdefault(at - self._shared, (tag, size, existing))
        return existing

    def _comes(self, at: int, size: int) -> bool:
        """Whether a value comes in pieces. One without bytes does not, wherever it begins."""
        return at >= self._shared and size > 0

    def _place_of(self, tag: Mapping, size: int, existing: Any) -> tuple[torch.Tensor, Callable[[], Any]]:
        """Where the bytes of a value go, and what makes the value once they are there."""
        own, whole = self._codec.own_of(tag, existing)
        if isinstance(own, torch.Tensor) and own.device.type != "cpu" and fits(own, tag):
            if own.is_contiguous() and own.numel() * own.element_size() == size:
                return _flat(own.detach()), lambda: whole(own)
        memory, finish = self._codec.prepare(tag, size, own)
        if len(memory) != size:
            raise snapshot.SnapshotError(f"{_NAME} has {size} bytes for a value of {len(memory)}")
        return torch.frombuffer(memory, dtype=torch.uint8), lambda: whole(finish())

    def room(self, number: int) -> torch.Tensor:
        """Where the bytes of a piece are to come."""
        piece = self.pieces[number]
        if len(piece.parts) == 1:
            into = self._parts_in(piece)[0]
            if into.device == self._device:
                return into
        return torch.empty(piece.size, dtype=torch.uint8, device=self._device)

    def _parts_in(self, piece: Piece) -> list[torch.Tensor]:
        return [self._into[part.at][part.low : part.high] for part in piece.parts]

    def came(self, number: int, bytes_: torch.Tensor) -> None:
        """The bytes of a piece are there."""
        parts = self._parts_in(self.pieces[number])
        if len(parts) == 1 and parts[0].data_ptr() == bytes_.data_ptr():
            return
        for into, one in zip(parts, bytes_.split([len(part) for part in parts]), strict=True):
            into.copy_(one)

    def state(self) -> Any:
        """The whole, once all pieces are there."""

        def read(memory: memoryview, at: int) -> None:
            memory[:] = self._private[at : at + len(memory)]

        made: dict[int, Any] = {}
        with self._codec.loading(read) as load:

            def take(tag: Mapping, at: int, size: int, existing: Any) -> Any:
                if not self._comes(at, size):
                    return load(tag, at, size, existing)
                if at not in made:
                    made[at] = self._ends[at - self._shared]()
                    return made[at]
                return _again(made[at], existing)

            return Decoder(_NAME, self._description["bytes"], take).decode(self._description["state"], self._existing)


def _word_of(image: snapshot.Image) -> int:
    """What a rank says of a state that it can give: how it is laid out, and whether it is too small for shares."""
    # Of the 64 bits of a layout as many as there is room for in a whole number.
    small = image.bytes - image.shared < snapshot.LEAST_SHARED
    return 2 + (int(image.layout, 16) >> 3 << 1 | small)


def _is_small(word: int) -> bool:
    return bool(word & 1)


def await_(work: Any, aborted: Callable[[], bool]) -> None:
    """Waits for what processors exchange, LIMIT at most. Raises RuntimeError when it comes to nothing, and WorldChanged once the world is aborted:
    if half of a message has come when its connection ends, gloo tells nobody."""
    end = begun(lambda: work.wait(datetime.timedelta(seconds=LIMIT)))
    while True:
        try:
            with told_as_failed():
                end.result(_LOOK)
            return
        except TimeoutError:
            if aborted():
                raise WorldChanged from None


def begun(do: Callable[[], Any]) -> concurrent.futures.Future[Any]:
    """What comes of something that is done in a thread of its own, for which the process does not wait if it ends; here, where no more threads
    are to be had."""
    end = concurrent.futures.Future[Any]()
    thread = threading.Thread(target=_do, args=(do, end), daemon=True)
    try:
        thread.start()
    except RuntimeError:
        _do(do, end)
    return end


def _do(do: Callable[[], Any], end: concurrent.futures.Future[Any]) -> None:
    try:
        end.set_result(do())
    except BaseException as error:
        end.set_exception(error)
    finally:
        # An error knows this frame: nobody may be left who asks, and a group with its connections must not wait for a collection of garbage.
        del do, end


@contextlib.contextmanager
def told_as_failed() -> Iterator[None]:
    """Has it told as what is the fault of no program that an exchange fails."""
    try:
        yield
    except RuntimeError as error:
        raise failed(" ".join(str(error).split())) from error


def failed(why: str) -> RuntimeError:
    """What the operator takes for the fault of no program."""
    return RuntimeError(f"the state could not be had from peers: {why}")


@contextlib.contextmanager
def without_room() -> Iterator[None]:
    """Has it told as what is no fault of the program that there is no memory for it, or that a device fails: a snapshot needs less."""
    try:
        with out_of_memory():
            yield
    except (MemoryError, OSError) as error:
        raise failed(f"this rank has no memory for it, or its device fails ({_told(error)})") from error


@contextlib.contextmanager
def with_room() -> Iterator[None]:
    """The same of a lack of memory where the program's own state_dict() and load_state_dict() are called. Its other errors are its own."""
    try:
        with out_of_memory():
            yield
    except MemoryError as error:
        raise without_memory(error)


def without_memory(error: BaseException) -> RuntimeError:
    """What is told of a rank that has no memory for its part in it."""
    told = failed(f"this rank has no memory for it ({_told(error)})")
    told.__cause__ = error
    return told


def _told(error: BaseException) -> str:
    return " ".join(str(error).split()) or "out of memory"


def _again(made: Any, existing: Any) -> Any:
    """A value once more, at another place of the state."""
    if isinstance(made, torch.Tensor) and isinstance(existing, torch.Tensor):
        source, there = own_part(made), own_part(existing)
        if there.shape == source.shape and there.dtype == source.dtype:
            if there.data_ptr() != source.data_ptr() or there.device != source.device:
                with torch.no_grad():
                    there.copy_(source)
            return existing
    return copy.deepcopy(made)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)  # One that has one element may have any stride.


def bytes_in(part: memoryview | Elsewhere, of: Part) -> torch.Tensor:
    if not isinstance(part, Elsewhere):
        some = part[of.low : of.high]
        return torch.frombuffer(bytearray(some) if some.readonly else some, dtype=torch.uint8)
    with torch.no_grad():
        value, size = part.value.detach(), part.value.element_size()  # Parts begin and end with elements: their bounds are powers of two.
        some = _elements(value, (part.low + of.low) // size, (part.low + of.high) // size)
        return _flat(some.resolve_conj().resolve_neg())


def _elements(value: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """Elements of a tensor, in their order, one after another in memory. Of one whose elements are not, no others are copied: there may be no
    room for all of them at once, and each piece would copy all of it."""
    if value.is_contiguous():
        return value.view(-1)[low:high]
    row = value[0].numel()
    first, last = -(-low // row), high // row  # the rows that are there as a whole
    if first > last:
        return _elements(value[last], low - last * row, high - last * row)
    some = []
    if low < first * row:
        some.append(_elements(value[first - 1], low - (first - 1) * row, row))
    if first < last:
        some.append(value[first:last].contiguous().view(-1))
    if last * row < high:
        some.append(_elements(value[last], 0, high - last * row))
    return some[0] if len(some) == 1 else torch.cat(some)

