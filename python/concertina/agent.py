"""The connection to the agent, as docs/program-protocol.md describes it."""

import json
import os
import re
import socket
import time
from collections.abc import Mapping

from concertina import world
from concertina.gate import GatePage

_PROTOCOL = 1
_MAX_LINE = 64 * 1024
_MAX_FAULT = 16 * 1024
_MAX_FDS = 8
_GREETING_TIMEOUT = 30.0
_PARTING_TIMEOUT = 2.0
_PROGRESS_INTERVAL = 1.0

MAX_METRICS = 8
"""How many metrics one program may report."""

METRIC_NAME = re.compile(r"[A-Za-z0-9_]{1,32}")
"""What the name of a metric must look like, as a whole."""


class AgentError(RuntimeError):
    """The agent refused, or cannot be talked to."""


class Agent:
    """One process's connection to the agent of its worker."""

    def __init__(self, path: str, local_rank: int):
        """Connects to the socket at path and claims the slot of local_rank.

        Raises AgentError when the agent is not there or refuses.
        """
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._fds: list[int] = []
        self._next_progress = 0.0
        self._gate: GatePage | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_GREETING_TIMEOUT)
        try:
            self._socket.connect(path)
            self._send({"type": "hello", "protocol": _PROTOCOL, "localRank": local_rank})
            welcome = self._receive("welcome")
            self.job: str = welcome.get("job", "")
            self.namespace: str = welcome.get("namespace", "")
            self.attempt: int = welcome.get("attempt", 0)
            slot = welcome.get("slot")
            if type(slot) is not int:
                raise ValueError(f"the agent gave the slot {slot!r}")
            self.gate = self._gate = GatePage(self._take_fd(), slot)
        except (OSError, ValueError) as error:
            self.close()
            raise AgentError(f"greet the agent at {path}: {error}") from error
        except AgentError:
            self.close()
            raise

    def join(self) -> tuple[world.World, socket.socket | None]:
        """Waits for the world of this process, as long as it takes to form one.

        Returns it, and for rank 0 the listening socket of the master port where there is one.
        Raises AgentError when the agent goes away or refuses.
        """
        self._socket.settimeout(None)
        try:
            self._send({"type": "join"})
            message = self._receive("world")
            formed = world.from_message(message)
            listener = socket.socket(fileno=self._take_fd()) if message.get("fds") else None
        except (OSError, ValueError) as error:
            raise AgentError(f"join the world: {error}") from error
        return formed, listener

    def progress_due(self) -> bool:
        """Whether a second has passed since the last report."""
        return time.monotonic() >= self._next_progress

    def progress(self, total_steps: int, metrics: Mapping[str, float]) -> None:
        """Reports numbers to show. Never waits for the agent and never fails: numbers to show are
        not worth a training run. What an agent that does not read leaves behind is not added to.
        """
        self._next_progress = time.monotonic() + _PROGRESS_INTERVAL
        if self._flush():
            self._outgoing += _encode({"type": "progress", "totalSteps": total_steps, "metrics": dict(metrics)})
            self._flush()

    def fault(self, step: int, message: str) -> None:
        """Reports the exception that ends the program. Never fails."""
        text = message.encode(errors="replace")[-_MAX_FAULT:].decode(errors="ignore")
        self._part({"type": "fault", "step": step, "message": text})

    def finished(self) -> None:
        """Reports that training is over. Never fails."""
        self._part({"type": "finished"})

    def close(self) -> None:
        """Ends the connection. A second call does nothing."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self._socket.close()
        if self._gate:
            self._gate.close()

    def _part(self, message: Mapping) -> None:
        self._outgoing += _encode(message)
        try:
            self._socket.settimeout(_PARTING_TIMEOUT)
            self._socket.sendall(self._outgoing)
        except OSError:
            pass  # The agent is gone or stuck; the exit code still tells it.
        self._outgoing.clear()

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

    def _send(self, message: Mapping) -> None:
        self._socket.sendall(_encode(message))

    def _receive(self, expected: str) -> Mapping:
        message = json.loads(self._line())
        kind = message.get("type") if isinstance(message, dict) else None
        if kind == "error":
            raise AgentError(f"the agent refused: {message.get('message')}")
        if kind != expected:
            raise ValueError(f"expected {expected}, the agent sent {kind!r}")
        return message

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

    def _take_fd(self) -> int:
        if not self._fds:
            raise ValueError("the agent announced a file descriptor and sent none")
        return self._fds.pop(0)


def _encode(message: Mapping) -> bytes:
    return json.dumps(message, allow_nan=False).encode() + b"\n"
