"""Makes the values of a snapshot of their description."""

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from concertina.codec import Codec, Load, SnapshotError
from concertina.shards import Cut, Rank

MAPPINGS = {"dict": dict, "ordered": collections.OrderedDict, "counter": collections.Counter}
SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}


class Joiner:
    """Makes the values in shards of a description, as a rank has them."""

    def __init__(self, codec: Codec, cut: Cut, rank: Rank, start: int, load: Load):
        """cut: that of the ranks of whom this is one. start: where its part begins."""
        self._codec, self._cut, self._rank, self._load = codec, cut, rank, load
        self._begins = [start + at for at in cut.offsets(rank.number)]

    def __call__(self, number: int, existing: Any) -> Any:
        table = self._cut.tables[number]
        own = self._codec.own(table, existing, self._rank)
        made = self._load(table.tag(self._rank), self._begins[number], table.size(self._rank), own)
        return self._codec.joined(table, made, existing)


class Decoder:
    """Puts a described state together again."""

    def __init__(
        self, name: str, size: int, load: Load, shard: Callable[[int, Any], Any] | None = None, keys: Load | None = None
    ):
        """shard: makes the value in shards of a number, in place of the existing one where it can. keys: makes the values that are keys of
        others, where load makes none: existing values are found by their keys."""
        self._shard = shard
        self._keys = Decoder(name, size, keys) if keys else self
        self._name = name
        self._size = size
        self._load = load
        self._shared: set[_Place] | None = None  # existing memory in which values would overwrite each other

    def decode(self, value: Any, existing: Any) -> Any:
        if self._shared is None:
            self._shared = _overlapping(self._places(value, existing))
        if isinstance(value, list):
            return [self.decode(v, _item(existing, i)) for i, v in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if "at" in value:
            return self._large(value, existing)
        if "shard" in value and self._shard:
            return self._shard(value["shard"], existing)
        ((kind, content),) = value.items()
        if kind == "float":
            return float(content)
        if kind in MAPPINGS:
            keys = [self._keys.decode(k, None) for k, _ in content]
            pairs = zip(keys, content, strict=True)
            return MAPPINGS[kind]({k: self.decode(v, _item(existing, k)) for k, (_, v) in pairs})
        if kind == "bounded":
            most, items = content
            return collections.deque((self.decode(v, None) for v in items), maxlen=most)
        if kind in SEQUENCES:
            return SEQUENCES[kind](self.decode(v, _item(existing, i)) for i, v in enumerate(content))
        raise SnapshotError(f"{self._name} holds a value of an unknown kind: {kind!r}")

    def _large(self, value: dict, existing: Any) -> Any:
        at, size = value["at"], value["length"]
        if type(at) is not int or type(size) is not int or not 0 <= at <= at + size <= self._size:
            raise SnapshotError(f"{self._name} holds a value outside of the file")
        return self._load(value, at, size, existing if self._takes(existing, at) else None)

    def _takes(self, existing: Any, at: int) -> bool:
        """Whether the memory of an existing value is there for the one at a place, and for no other one: two that differ would overwrite each
        other, wherever in it each of them begins, when they come, or when a program copies what has come into the other."""
        place = _place_of(existing, at)
        return place is None or place.apart and place not in self._shared

    def _places(self, value: Any, existing: Any) -> Iterator["_Place"]:
        """Where the existing values are whose place others are to take."""
        if isinstance(value, list):
            for i, item in enumerate(value):
                yield from self._places(item, _item(existing, i))
        elif isinstance(value, dict) and "at" in value:
            if place := _place_of(existing, value["at"]):
                yield place
        elif isinstance(value, dict) and "shard" not in value:
            for kind, content in value.items():
                if kind in MAPPINGS:
                    for key, item in content:
                        yield from self._places(item, _item(existing, self._keys.decode(key, None)))
                elif kind in SEQUENCES:
                    for i, item in enumerate(content):
                        yield from self._places(item, _item(existing, i))


class _Place(NamedTuple):
    """Where an existing value is that another one is to take the place of."""

    device: str
    begin: int
    end: int
    strides: tuple[int, ...]
    at: int
    """Which value takes its place."""
    apart: bool
    """Whether each of its elements is known to have bytes of its own."""


def _place_of(existing: Any, at: int) -> _Place | None:
    """None for one that has no memory of its own to fill."""
    existing = getattr(existing, "_local_tensor", existing)  # what this rank has of a DTensor
    try:
        begin = getattr(existing, "data_ptr", int)()
        if not begin:
            return None
        strides, reach, apart = tuple(existing.stride()), 1, True  # in elements
        for stride, size in sorted(zip(strides, existing.shape, strict=True)):
            if size > 1:
                apart = apart and stride >= reach
                reach += (size - 1) * stride
        return _Place(str(existing.device), begin, begin + reach * existing.element_size(), strides, at, apart)
    except (RuntimeError, AttributeError, TypeError):  # such as one whose memory others hold
        return None


def _overlapping(places: Iterable[_Place]) -> set[_Place]:
    """Those that reach into another one of these."""
    found: set[_Place] = set()
    furthest: _Place | None = None  # of those so far; whatever else reaches as far as the next has found each other
    for place in sorted({*places}):
        there = furthest if furthest and furthest.device == place.device else None
        if there and there.end > place.begin:
            found |= {there, place}
        if there is None or place.end > there.end:
            furthest = place
    return found


def _item(existing: Any, key: Any) -> Any:
    try:
        return existing[key]
    except (KeyError, IndexError, TypeError):
        return None
