"""Makes the values of a snapshot of their description."""

import collections
from collections.abc import Callable
from typing import Any

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
        size = table.size(self._rank)
        tag = {"tensor": table.tensor, "shape": [size // table.row if table.row else 0, *table.shape[1:]]}
        return self._codec.joined(table, self._load(tag, self._begins[number], size, own), existing)


class Decoder:
    """Puts a described state together again."""

    def __init__(self, name: str, size: int, load: Load, shard: Callable[[int, Any], Any] | None = None):
        """shard: makes the value in shards of a number, in place of the existing one where it can."""
        self._shard = shard
        self._name = name
        self._size = size
        self._load = load
        self._taken: dict[Any, int] = {}  # existing memory, and the place of the value that it is filled with

    def decode(self, value: Any, existing: Any) -> Any:
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
            keys = [self.decode(k, None) for k, _ in content]
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
        """Whether the memory of an existing value is there for the one at a place: two that differ would overwrite each other."""
        try:
            place = getattr(getattr(existing, "_local_tensor", existing), "data_ptr", int)()  # what this rank has of a DTensor
        except RuntimeError:  # such as one whose memory others hold
            return True
        return not place or self._taken.setdefault((existing.device, place), at) == at


def _item(existing: Any, key: Any) -> Any:
    try:
        return existing[key]
    except (KeyError, IndexError, TypeError):
        return None
