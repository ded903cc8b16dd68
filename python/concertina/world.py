"""The world a program trains in: who takes part, and where rank 0 is."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class World:
    """One round of a job, as one of its processes sees it."""

    term: int
    """The leadership under which the round was made; 0 outside Concertina."""
    round: int
    """The number of this world; it only grows within a job; 0 outside Concertina."""
    from_step: int
    """The last step that was done when this world began."""
    rank: int
    """Place of this process, 0 … size-1."""
    size: int
    """Processes in this world."""
    local_rank: int
    """Place of this process in its worker, 0 … local_size-1."""
    local_size: int
    """Processes in this worker."""
    worker_rank: int
    """Place of this worker, 0 … workers-1."""
    workers: int
    """Workers in this world."""
    master_address: str
    """Where rank 0 is; empty in a world of one outside Concertina."""
    master_port: int
    """A TCP port at master_address that is kept for this world; 0 in a world of one outside
    Concertina."""


@dataclass(frozen=True)
class Change:
    """A world that has begun, as one of its processes sees it."""

    before: World | None
    """The last world of which this process has heard the whole change; None if there was none yet."""
    world: World
    """The world that has begun."""
    lost: int
    """Steps that this process had done in the world before and that are made again; 0 after a planned change, and for a
    process that has come new."""


@dataclass(frozen=True)
class Staging:
    """What one process writes of a snapshot that several make."""

    of: int
    """Into how many shares the state is cut, at least 2."""
    shares: tuple[int, ...]
    """Which of them it writes, counted from 0."""


@dataclass(frozen=True)
class Assignment:
    """A world that this process is to enter, and how."""

    world: World
    restore: bool
    """Whether it loads the state of step world.from_step, or goes on with what it has."""
    snapshot: str
    """The file to load; empty: the state that the program was started with."""
    writer: bool
    """Whether this process writes snapshots of all of its state."""
    listener: socket.socket | None
    """The listening socket of the master port, for rank 0 where there is one."""
    shares: tuple[str, ...] = ()
    """The files with the shares of the snapshot; none when that is whole."""
    staging: Staging | None = None
    """What it writes of a state that is large enough for shares."""
    handover: bool = False
    """Whether those who restore get the state from the others, over the links of the world, and there is no snapshot."""
    shards: tuple[str, ...] = ()
    """The names of the parts with the shards of the snapshot, by rank; none when the state is in no shards."""


_MESSAGE = {
    "from_step": "fromStep",
    "local_rank": "localRank",
    "local_size": "localSize",
    "worker_rank": "workerRank",
    "master_address": "masterAddress",
    "master_port": "masterPort",
}


def from_message(message: Mapping) -> World:
    """The world that the agent's message describes. Raises ValueError when one is not whole."""
    values = {}
    for field in fields(World):
        name = _MESSAGE.get(field.name, field.name)
        value = message.get(name)
        if type(value) is not field.type:
            raise ValueError(f"the agent sent a world with {name} = {value!r}")
        values[field.name] = value
    world = World(**values)
    if not 0 <= world.rank < world.size:
        raise ValueError(f"the agent sent a world with rank {world.rank} of {world.size}")
    return world


def assignment(message: Mapping, listener: socket.socket | None) -> Assignment:
    """What the agent's message asks for. Raises ValueError when it is not whole."""
    kinds = {"restore": bool, "snapshot": str, "writer": bool, "handover": bool}
    values: dict[str, Any] = {name: message.get(name, kind()) for name, kind in kinds.items()}
    for name, kind in kinds.items():
        if type(values[name]) is not kind:
            raise ValueError(f"the agent sent a world with {name} = {values[name]!r}")
    formed = from_message(message)
    if values["restore"] and formed.from_step and not values["snapshot"] and not values["handover"]:
        raise ValueError(f"the agent sent a world that begins after step {formed.from_step}, and no snapshot")
    for name in "shares", "shards":
        values[name] = message.get(name, [])
        if type(values[name]) is not list or not all(type(text) is str for text in values[name]):
            raise ValueError(f"the agent sent a world with {name} = {values[name]!r}")
        values[name] = tuple(values[name])
    return Assignment(formed, listener=listener, staging=staging(message), **values)


def staging(message: Mapping) -> Staging | None:
    """What the agent's message says is to be written; None for everything. Raises ValueError when it makes no sense."""
    asked = message.get("staging")
    if asked is None:
        return None
    of, shares = (asked.get("of"), asked.get("shares")) if isinstance(asked, dict) else (None, None)
    if type(of) is not int or type(shares) is not list or not all(type(i) is int and 0 <= i < of for i in shares):
        raise ValueError(f"the agent wants shares of a snapshot that cannot be: {asked!r}")
    return Staging(of, tuple(shares))


def from_environment(env: Mapping[str, str] = os.environ) -> World:
    """The world that torchrun, mpirun or a shell describes with RANK and WORLD_SIZE; a world of
    one when neither is set.

    Raises ValueError for a variable that is missing beside the others or is no number in range.
    """
    if "RANK" not in env and "WORLD_SIZE" not in env:
        return World(0, 0, 0, 0, 1, 0, 1, 0, 1, "", 0)
    size = _number(env, "WORLD_SIZE", None, 1, 2**31)
    rank = _number(env, "RANK", None, 0, size - 1)
    local_size = _number(env, "LOCAL_WORLD_SIZE", 1, 1, size)
    local_rank = _number(env, "LOCAL_RANK", 0, 0, local_size - 1)
    workers = -(-size // local_size)
    worker_rank = _number(env, "GROUP_RANK", rank // local_size, 0, workers - 1)
    address = env.get("MASTER_ADDR", "")
    if size > 1 and not address:
        raise ValueError("MASTER_ADDR is not set: say where rank 0 is, or start the program with torchrun")
    port = _number(env, "MASTER_PORT", None if size > 1 else 0, 0, 65535)
    return World(0, 0, 0, rank, size, local_rank, local_size, worker_rank, workers, address, port)


def _number(env: Mapping[str, str], name: str, default: int | None, low: int, high: int) -> int:
    text = env.get(name)
    if text is None:
        if default is None:
            other = "RANK" if name == "WORLD_SIZE" else "WORLD_SIZE"
            raise ValueError(f"{name} is not set although {other} is: set it, or start with torchrun")
        return default
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ValueError(f"{name} is {text!r}: it must be a number from {low} to {high}")
    return value
