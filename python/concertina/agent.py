"""The connection to the agent, as docs/program-protocol.md describes it."""

import collections
import contextlib
import json
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from concertina import health, stacks
from concertina.connections import keep_from_children
from concertina.gate import GatePage
from concertina.world import Staging

_PROTOCOL = 2
_MAX_LINE = 64 * 1024
_MAX_FAULT = 16 * 1024
_MAX_ERROR = 1024
_MAX_FDS = 8
_GREETING_TIMEOUT = 30.0
_SEND_TIMEOUT = 2.0
_PROGRESS_INTERVAL = 1.0
_INTERRUPT_INTERVAL = 0.02

MAX_METRICS = 8
"""How many metrics one program may report."""

METRIC_NAME = re.compile(r"[A-Za-z0-9_]{1,32}")
"""What the name of a metric must look like, as a whole."""


class AgentError(RuntimeError):
    """The agent refused, or cannot be talked to."""


class Agent:
    """One process's connection to the agent of its worker.

    A thread reads what the agent sends, so that an abort reaches a program that is stuck.
    """

    def __init__(
        self,
        path: str,
        local_rank: int,
        *,
        leaves: bool = False,
        sharded: bool = False,
        local: bool = False,
        handover: bool = False,
    ):
        """Connects to the socket at path and claims the slot of local_rank. leaves: the program was started in its
        world, asks for none, and can be told to leave it; whether the agent knows what that means says self.leaves. sharded:
        each process has its own shard of the state. local: it has the share of its local rank of a state that is the same on all workers.
        handover: it can give its state to others over the links of their world, and get it so.

        Raises AgentError when the agent is not there or refuses, or knows no such state.
        """
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._fds: list[int] = []
        self._inbox: collections.deque[tuple[Mapping, list[int]]] = collections.deque()
        self._arrived = threading.Condition()
        self._ended: str | None = None
        self._sending = threading.Lock()
        self._world = threading.Lock()
        self._round = -1
        self._aborted = -1
        self._interrupt: Callable[[], None] | None = None
        self._hang: stacks.Hang | None = None
        self._next_progress = 0.0
        self._gate: GatePage | None = None
        self._reader: threading.Thread | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        keep_from_children(self._socket)
        try:
            self._greet(path, local_rank, {"leaves": leaves, "sharded": sharded, "local": local}, handover)
        except (OSError, ValueError) as error:
            self.close()
            raise AgentError(f"greet the agent at {path}: {error}") from error
        except AgentError:
            self.close()
            raise
        stacks.offer()
        health.watch.begin()
        self._reader = threading.Thread(target=self._read, name="concertina-agent", daemon=True)
        self._reader.start()

    def _greet(self, path: str, local_rank: int, asked: Mapping[str, bool], handover: bool) -> None:
        self._socket.settimeout(_GREETING_TIMEOUT)
        self._socket.connect(path)
        hello = {"type": "hello", "protocol": _PROTOCOL, "localRank": local_rank}
        can = next((name for name, is_so in asked.items() if is_so), "shares")
        self._socket.sendall(_encode(hello | {can: True} | ({"handover": True} if handover else {})))
        welcome = self._parse(self._line())
        if welcome.get("type") == "error":
            raise AgentError(f"the agent refused: {welcome.get('message')}")
        if welcome.get("type") != "welcome":
            raise ValueError(f"expected welcome, the agent sent {welcome.get('type')!r}")
        if welcome.get("protocol") != _PROTOCOL:
            raise AgentError(
                f"the agent speaks protocol {welcome.get('protocol')}, this SDK {_PROTOCOL}: install the SDK of the operator's "
                "version"
            )
        if can in ("sharded", "local") and welcome.get(can) is not True:
            raise AgentError("the agent knows no state in shards: install the operator of the SDK's version")
        slot = welcome.get("slot")
        if type(slot) is not int:
            raise ValueError(f"the agent gave the slot {slot!r}")
        self.snapshots = welcome.get("snapshots", "")
        if type(self.snapshots) is not str:
            raise ValueError(f"the agent gave the snapshot folder {self.snapshots!r}")
        self.interval = _seconds(welcome.get("interval", "auto"))
        self.best = welcome.get("best", "")
        """The metric by which the job keeps its best checkpoints; empty for none."""
        if type(self.best) is not str:
            raise ValueError(f"the agent gave the metric {self.best!r}")
        self.leaves = welcome.get("leaves") is True
        self.gate = self._gate = GatePage(self._take_fd(), slot)
        self._socket.settimeout(None)

        self.asked: Staging | None = None
        """What of the state the agent wants with the last save; None for all of it."""

    # What the program says.

    def say(self, kind: str, **fields: object) -> None:
        """Sends a message, and waits a little for an agent that does not read. Never fails: whoever waits for an agent that
        is gone learns it there."""
        self.put(kind, **fields)
        self.push()

    def put(self, kind: str, **fields: object) -> None:
        """Sends a message without waiting: what the agent does not take at once goes before the next one, or with push().
        Never fails."""
        with self._sending:
            self._outgoing += _encode({"type": kind, **fields})
            self._flush()

    def push(self) -> None:
        """Waits until the agent has taken all that was put, two seconds at most. Whoever says something meanwhile does not
        wait. Never fails."""
        deadline = time.monotonic() + _SEND_TIMEOUT
        while True:
            with self._sending:
                if self._flush() or time.monotonic() >= deadline:
                    return
                poll = select.poll()  # Unlike select() it takes any number that a file has.
                poll.register(self._socket, select.POLLOUT)
            poll.poll(100)

    def fault(self, done: int, clean: bool, message: str) -> None:
        """Reports the exception that has ended a step; clean: the state is the one after done
        steps. Never fails."""
        self.say("fault", step=done, clean=clean, message=_last(message, _MAX_FAULT))

    def snapshot_failed(self, step: int, error: str) -> None:
        """Reports that a snapshot could not be written. Never fails."""
        self.say("snapshot", step=step, **failure(error))

    def score(self, step: int, value: float) -> None:
        """Says how good the state after this step is, by the metric of best. Never fails."""
        self.say("score", step=step, value=value)

    def score_missing(self, step: int, why: str) -> None:
        """Says why it is not known how good a state is. Never fails."""
        self.say("score", step=step, **failure(why))

    def progress_due(self) -> bool:
        """Whether a second has passed since the last report."""
        return time.monotonic() >= self._next_progress

    def progress(self, total_steps: int, metrics: Mapping[str, float]) -> None:
        """Reports numbers to show. Never waits for the agent and never fails: numbers to show are
        not worth a training run. What an agent that does not read leaves behind is not added to.
        """
        self._next_progress = time.monotonic() + _PROGRESS_INTERVAL
        with self._sending:
            if self._flush():
                self._outgoing += _encode({"type": "progress", "totalSteps": total_steps, "metrics": dict(metrics)})
                self._flush()

    # What the agent says.

    def wait(self) -> tuple[Mapping, list[int]]:
        """The next message of the agent, and the file descriptors with it, however long it takes.

        Raises AgentError when the agent goes away or refuses.
        """
        with self._arrived:
            self._arrived.wait_for(lambda: self._inbox or self._ended)
            if self._inbox:
                return self._inbox.popleft()
        raise AgentError(self._ended)

    @property
    def gone(self) -> bool:
        """Whether the connection has ended."""
        return self._ended is not None

    def begin(self, number: int, interrupt: Callable[[], None], describe: Callable[[], str] = str) -> None:
        """The world of this round begins. From an abort on, interrupt is called, again and again,
        in another thread, until end(). What describe returns goes to the log if the program hangs there then; it is called in
        another thread, once at most."""
        with self._world:
            self._round, self._interrupt = number, interrupt
            self._hang = stacks.Hang(self._gate.at, describe)

    def end(self) -> None:
        """The world has ended: interrupt is not called any more, and not being called."""
        with self._world:
            if self._hang:
                self._hang.over()
            self._interrupt = self._hang = None

    @property
    def aborted(self) -> bool:
        """Whether the agent wants this process out of its world."""
        return self._aborted >= self._round >= 0

    def close(self) -> None:
        """Ends the connection. A second call does nothing."""
        if self._reader:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # The agent was first.
            self._reader.join()
            self._reader = None
        with self._sending:  # Another thread may be about to use it.
            self._socket.close()
        for _, fds in self._inbox:
            self._fds += fds
        self._inbox.clear()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        if self._hang:
            self._hang.over()
        if self._gate:
            self._gate.close()

    # The reading thread.

    def _read(self) -> None:
        try:
            while True:
                self._wait_readable()
                message = self._parse(self._line())
                fds = [self._take_fd() for _ in range(_count(message))]
                if message.get("type") == "error":
                    raise AgentError(f"the agent refused: {message.get('message')}")
                if message.get("type") == "abort":
                    self._abort(message)
                with self._arrived:
                    self._inbox.append((message, fds))
                    self._arrived.notify()
        except (OSError, ValueError, AgentError) as error:
            self._end(str(error))
        except BaseException as error:
            self._end(f"the thread that reads what the agent says has failed: {error!r}")
            raise

    def _end(self, why: str) -> None:
        """Nothing more will be read: whoever waits for the agent learns it."""
        with self._arrived:
            self._ended = why
            self._arrived.notify()

    def _abort(self, message: Mapping) -> None:
        number = message.get("round")
        if type(number) is not int:
            raise ValueError(f"the agent sent an abort with round = {number!r}")
        self._aborted = max(self._aborted, number)
        with self._world:
            if self.aborted and self._hang:
                self._hang.watch()

    def _wait_readable(self) -> None:
        """Waits for the next message, and works on leaving an aborted world meanwhile: there may
        be connections to come."""
        if b"\n" in self._incoming:
            return
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while True:
            with self._world:
                breaking = self.aborted and self._interrupt is not None
                if breaking:
                    # Of a library that is broken off in the middle of anything: it is tried again.
                    with contextlib.suppress(Exception):
                        self._interrupt()
            if poll.poll(_INTERRUPT_INTERVAL * 1000 if breaking else None):
                return

    def _line(self) -> bytes:
        while b"\n" not in self._incoming:
            if len(self._incoming) > _MAX_LINE:
                raise ValueError("the agent sent a message longer than 64 KiB")
            data, fds, _, _ = socket.recv_fds(self._socket, _MAX_LINE, _MAX_FDS)
            for fd in fds:
                os.set_inheritable(fd, False)
            self._fds += fds
            if not data:
                raise AgentError("the agent closed the connection")
            self._incoming += data
        line, _, rest = self._incoming.partition(b"\n")
        self._incoming = rest
        return bytes(line)

    @staticmethod
    def _parse(line: bytes) -> Mapping:
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("the agent sent a message that is no object")
        return message

    def _take_fd(self) -> int:
        if not self._fds:
            raise ValueError("the agent announced a file descriptor and sent none")
        return self._fds.pop(0)

    def _flush(self) -> bool:
        """Sends what the socket takes at once; true when nothing is left."""
        try:
            while self._outgoing:
                sent = self._socket.send(self._outgoing, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                del self._outgoing[:sent]
        except BlockingIOError:
            return False
        except OSError:
            self._outgoing.clear()  # The agent is gone; the program trains on.
        return True


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a program as numbers. Raises what float() raises for a value, and says which one."""
    found = {}
    for name, value in metrics.items():
        try:
            found[name] = float(value)
        except Exception as error:
            error.add_note(f"report({name}=…) got a {type(value).__name__}, which is not one number: give a scalar, such as loss.mean()")
            raise
    return found


def _encode(message: Mapping) -> bytes:
    return json.dumps(message, allow_nan=False).encode() + b"\n"


def failure(error: str) -> dict[str, str]:
    """What is told of a snapshot that could not be written, or of a score that is missing."""
    return {"error": _last(error, _MAX_ERROR)}


def _last(text: str, most: int) -> str:
    return text.encode(errors="replace")[-most:].decode(errors="ignore")


def _count(message: Mapping) -> int:
    count = message.get("fds", 0)
    if type(count) is not int or not 0 <= count <= _MAX_FDS:
        raise ValueError(f"the agent sent a message with fds = {count!r}")
    return count


def _seconds(interval: Any) -> float | None:
    """The interval in seconds; None for auto. Raises ValueError for anything else."""
    if interval == "auto":
        return None
    try:
        seconds = float(interval)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"the agent gave the snapshot interval {interval!r}")
    return seconds
