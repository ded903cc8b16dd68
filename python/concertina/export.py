"""Writes a checkpoint as one of torch.distributed.checkpoint, which PyTorch reads without this package:

    python3 -m concertina.export jobs/team/llama/UID/attempt-1/7-4200 out

The first is the folder of a checkpoint in the storage of a job, with its manifest.json; from a bucket it is copied first. It
reads a state in shards, of whatever number of ranks, one in shares, and one that is whole. In a program

    state = {"net": net.state_dict(), "opt": opt.state_dict()}
    torch.distributed.checkpoint.load(state, checkpoint_id="out")

loads it into a model that is sharded in any way or not at all, and torch.distributed.checkpoint.format_utils.dcp_to_torch_save
makes one file for torch.load() of it, in which numbers that are keys, as in the state of an optimizer, are texts. The names are those of the job's state; "concertina.position" is where the training was.
"""

import argparse
import collections
import functools
import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from concertina.codec import SnapshotError
from concertina.files import Source
from concertina.sharded import cut_in
from concertina.shards import Cut, Gathering, Rank, Table
from concertina.decoder import Decoder
from concertina.snapshot import describe, head_of, position_in
from concertina.tensors import TensorCodec, memory_of

_VERSION = 3
_HASH = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"(?P<kind>[drs])(?P<number>\d{1,5})\.(?P<of>\d{1,5})\.[0-9a-f]{16}")
_WHOLE = "state"
_POSITION = "concertina.position"
_ALTERED = "{} is not what its name says: the checkpoint was altered, or copied in part"


def export(checkpoint: str | os.PathLike, out: str | os.PathLike) -> None:
    """Writes the checkpoint in a folder to another one, which must not be there or be empty. No more than one tensor of the state is
    in memory at a time, or those of one tuple, set or deque, and of a list that has such in it.

    Raises OSError for what cannot be read or written, FileExistsError when there is something in out, SnapshotError for a
    checkpoint that is not whole, altered, or of a newer version, or has two values that would get one name, RuntimeError in a process that has a group of torch.distributed,
    whose other ranks would have to write along.
    """
    if dist.is_initialized():
        raise RuntimeError("export() in a process with a group of torch.distributed: run it in one of its own")
    if os.path.isdir(out) and os.listdir(out):
        raise FileExistsError(f"{out} is not empty: name a folder that is not there yet")
    state, values = _read(os.fspath(checkpoint))
    writer = dcp.FileSystemWriter(out, thread_count=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a process by itself, which this is
        try:
            dcp.save(state, storage_writer=writer, planner=_Planner(values))
        except CheckpointException as error:
            for cause, _ in error.failures.values():
                raise cause from None
            raise


class _Stand(torch.Tensor):
    """A tensor that stands for one of a checkpoint. Its own memory is nothing that anybody wants."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise SnapshotError(f"a tensor of {list(self.shape)} is in a container that cannot be exported")


class _Values:
    """Tensors that stand for those of a checkpoint, which are read when they are written."""

    def __init__(self) -> None:
        self._there: dict[int, tuple[torch.Tensor, Callable[[memoryview], None]]] = {}

    def add(self, like: torch.Tensor, shape: Sequence[int], fill: Callable[[memoryview], None]) -> torch.Tensor:
        stands = like.new_empty(()).expand(tuple(shape)).as_subclass(_Stand)
        self._there[id(stands)] = stands, fill
        return stands

    def real(self, value: Any) -> Any:
        """The value, with what was read in place of what stands for it, in containers as well: what torch.distributed.checkpoint does not take
        apart is pickled as it is. The kinds are those of a snapshot."""
        if id(value) in self._there:
            stands, fill = self._there[id(value)]
            made = torch.empty(stands.shape, dtype=stands.dtype)
            fill(memory_of(made))
            return made
        kind: Any = type(value)
        if kind is collections.deque:
            return collections.deque(map(self.real, value), value.maxlen)
        if kind in (list, tuple, set, frozenset):
            return kind(map(self.real, value))
        if kind in (dict, collections.OrderedDict, collections.Counter):
            return kind({self.real(key): self.real(item) for key, item in value.items()})
        return value


class _Planner(DefaultSavePlanner):
    """Says what is written where, and gets it when it is."""

    def __init__(self, values: _Values):
        super().__init__()
        self._values = values

    def set_up_planner(self, state_dict: Any, *arguments: Any, **options: Any) -> None:
        there: dict[str, str] = {}
        for path, shown in _leaves(state_dict, (), ""):
            name = ".".join(path)
            if name in there:
                raise SnapshotError(
                    f"the state has {there[name]} and {shown}, and torch.distributed.checkpoint calls both {name!r}: "
                    "have the program give one of them another name, and export a checkpoint that was saved since"
                )
            there[name] = shown
        super().set_up_planner(state_dict, *arguments, **options)

    def lookup_object(self, index: Any) -> Any:
        return self._values.real(super().lookup_object(index))


def _leaves(value: Any, path: tuple[str, ...], shown: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Where in a state the values are that torch.distributed.checkpoint does not take apart further."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)), f"{shown}[{key!r}]")
    elif _taken_apart(value):
        for i, item in enumerate(value):
            yield from _leaves(item, (*path, str(i)), f"{shown}[{i}]")
    else:
        yield path, shown


def _taken_apart(value: Any) -> bool:
    """Whether a value is a list of which it takes the items one by one."""
    return isinstance(value, list) and any(isinstance(item, (Mapping, torch.Tensor)) or _taken_apart(item) for item in value)


def _read(folder: str) -> tuple[dict[str, Any], _Values]:
    """The state of a checkpoint, with tensors that stand for those that are to be read."""
    parts = _parts(folder)
    path, whole, shards = _arranged(folder, parts)
    try:
        return _decoded(path, whole, shards)
    except (SnapshotError, OSError):
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
        raise SnapshotError(f"{path} is no snapshot: {error!r}") from error


def _decoded(path: str, whole: Source, shards: Mapping[int, Source]) -> tuple[dict[str, Any], _Values]:
    description, start = describe(path, whole)
    values, codec = _Values(), TensorCodec()

    def load(tag: Mapping, at: int, size: int, existing: Any) -> Any:
        memory, finish = codec.prepare({**tag, "shape": [0]} if "tensor" in tag else tag, size, None)
        if "tensor" not in tag:
            whole.read(memory, start + at)
            return finish()
        return values.add(finish(), tag["shape"], functools.partial(whole.read, at=start + at))

    def shard(number: int, existing: Any) -> Any:
        table = cut.tables[number]
        _, like = codec.prepare({"tensor": table.tensor, "shape": [0]}, 0, None)
        fill = functools.partial(_gather, shards, gathering, begins[number])
        return values.add(like(), table.whole, functools.partial(_turned, table, like().dtype, fill) if table.dim else fill)

    if "shards" in description or shards:
        cut = cut_in(path, description)
        gathering = Gathering(cut, Rank(0, 1))
        begins = gathering.now.offsets(0)
        _check_shards(path, cut, shards)
    state = Decoder(path, description["bytes"], load, shard).decode(description["state"], None)
    if _POSITION in state:
        raise SnapshotError(f"{path} has {_POSITION!r} in its state, which is the name of where the training was: give it another one")
    return state | {_POSITION: position_in(description)}, values


def _gather(shards: Mapping[int, Source], gathering: Gathering, begin: int, memory: memoryview) -> None:
    for source, at, size in gathering.where(begin, begin + len(memory)):
        shards[source].read(memory[:size], at)
        memory = memory[size:]


def _turned(table: Table, dtype: torch.dtype, fill: Callable[[memoryview], None], memory: memoryview) -> None:
    """Fills memory with a value whose rows are along another dimension than the first."""
    rows = torch.empty(table.shape, dtype=dtype)
    fill(memory_of(rows))
    memory[:] = memory_of(rows.movedim(0, table.dim or 0).contiguous())


def _check_shards(path: str, cut: Cut, shards: Mapping[int, Source]) -> None:
    if sorted(shards) != [*range(cut.ranks)]:
        raise SnapshotError(f"{path} is of a state in the shards of {cut.ranks} ranks, and those of {sorted(shards)} are there")
    for rank, shard in shards.items():
        if shard.size != cut.offsets(rank)[-1]:
            raise SnapshotError(f"the shard of rank {rank} has {shard.size} bytes, not {cut.offsets(rank)[-1]}")


class _Part:
    """A part of a checkpoint, in pieces. Each is checked when something of it is read for the first time. None is kept in memory: a value
    in shards has bytes in a piece of each, and nobody writes to a checkpoint that is whole."""

    def __init__(self, folder: str, described: Mapping):
        self._folder, self._pieces, self.size = folder, [], 0
        for piece in described.get("pieces") or ():
            size, name = piece["bytes"], piece["sha256"]
            if type(size) is not int or size < 1 or not _HASH.fullmatch(name):
                raise SnapshotError(f"the manifest in {folder} names a piece {name!r} of {size!r} bytes")
            self._pieces.append((self.size, size, name))
            self.size += size
        if self.size != described["bytes"]:
            raise SnapshotError(f"the manifest in {folder} has {self.size} of the {described['bytes']} bytes of a part")
        self._checked: set[str] = set()

    def read(self, memory: memoryview, at: int) -> None:
        """Fills memory with what is at an offset."""
        for begin, size, name in self._pieces:
            if memory and begin <= at < begin + size:
                here = memory[: begin + size - at]
                self._read(here, name, size, at - begin)
                memory, at = memory[len(here) :], at + len(here)
        if memory:
            raise SnapshotError(f"a part of the checkpoint in {self._folder} ends early")

    def _read(self, memory: memoryview, name: str, size: int, at: int) -> None:
        path = os.path.join(self._folder, "data", name)
        with open(path, "rb") as file:
            if name not in self._checked:
                if os.fstat(file.fileno()).st_size != size or hashlib.file_digest(file, "sha256").hexdigest() != name:
                    raise SnapshotError(_ALTERED.format(path))
                self._checked.add(name)
            file.seek(at)
            if file.readinto(memory) != len(memory):
                raise SnapshotError(_ALTERED.format(path))


class _Joined:
    """Parts, one after another."""

    def __init__(self, parts: Sequence[_Part]):
        self._parts = parts
        self.size = sum(part.size for part in parts)

    def read(self, memory: memoryview, at: int) -> None:
        """Fills memory with what is at an offset."""
        for part in self._parts:
            if memory and at < part.size:
                here = memory[: part.size - at]
                part.read(here, at)
                memory, at = memory[len(here) :], at + len(here)
            at -= part.size
        if memory:
            raise SnapshotError("a checkpoint ends early")


def _parts(folder: str) -> dict[str, _Part]:
    """The parts that a checkpoint's manifest names."""
    path = os.path.join(folder, "manifest.json")
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        version = manifest["version"]
        if version > _VERSION:
            raise SnapshotError(f"{path} is of version {version}, and {_VERSION} is known: take the SDK of the operator's version")
        return {str(part["key"]): _Part(folder, part) for part in manifest["parts"]}
    except FileNotFoundError as error:
        raise SnapshotError(
            f"there is no {path}: name the folder of one checkpoint, …/UID/attempt-A/ROUND-STEP, that is whole"
        ) from error
    except SnapshotError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SnapshotError(f"{path} is no manifest: {error!r}") from error


def _arranged(folder: str, parts: Mapping[str, _Part]) -> tuple[str, Source, dict[int, Source]]:
    """The name and the parts of what is in no shards, and the shards by rank."""
    if _WHOLE in parts:
        return f"{folder}: {_WHOLE}", parts[_WHOLE], {}
    found: dict[str, dict[int, str]] = {"d": {}, "r": {}, "s": {}}
    for key in parts:
        if not (named := _KEY.fullmatch(key)):
            raise SnapshotError(f"the checkpoint in {folder} has a part {key!r}, which the Python SDK does not write")
        found[named["kind"]][int(named["number"])] = key
        shares = int(named["of"])
    own = found["r"]
    if not own or not found["d"] and sorted(found["s"]) != [*range(shares)]:
        raise SnapshotError(f"the checkpoint in {folder} is not whole: it has the parts {', '.join(sorted(parts))}")
    first = own[min(own)]
    if found["s"] and "shards" in head_of(f"{folder}: {first}", parts[first])[0]:
        return f"{folder}: {first}", parts[first], {rank: parts[key] for rank, key in found["s"].items()}
    joined = _Joined([parts[first], *(parts[found["s"][i]] for i in sorted(found["s"]))])
    return f"{folder}: {first}", joined, {rank: parts[key] for rank, key in found["d"].items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 -m concertina.export", description="Write a checkpoint as one of torch.distributed.checkpoint."
    )
    parser.add_argument("checkpoint", help="its folder, with manifest.json")
    parser.add_argument("out", help="a folder that is not there yet")
    asked = parser.parse_args(arguments)
    try:
        export(asked.checkpoint, asked.out)
    except (OSError, SnapshotError) as error:
        print(f"concertina.export: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
