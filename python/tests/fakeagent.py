"""An agent for tests: it speaks docs/program-protocol.md over a real socket and a real memfd."""

import fcntl
import json
import mmap
import os
import queue
import select
import shutil
import socket
import struct
import tempfile
import threading

LINE = 64


def world(rank: int = 0, size: int = 1, **fields) -> dict:
    """A world message, for a worker of one process unless fields say otherwise."""
    message = {
        "type": "world",
        "term": 1,
        "round": 1,
        "fromStep": 0,
        "rank": rank,
        "size": size,
        "localRank": 0,
        "localSize": 1,
        "workerRank": rank,
        "workers": size,
        "masterAddress": "127.0.0.1",
        "masterPort": 1,
        "restore": True,
        "snapshot": "",
        "writer": fields.get("localRank", 0) == 0,
    }
    return message | fields


def excerpt(path: str, ranges: list) -> str:
    """A file as large as another one that has some bytes of it, and nonsense elsewhere; without ranges the other one."""
    if not ranges:
        return path
    with open(path, "rb") as file:
        content = file.read()
    some = bytearray(b"\xee" * len(content))
    for start, end in ranges:
        some[start:end] = content[start:end]
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), delete=False) as file:
        file.write(some)
    return file.name


class FakeAgent:
    """Serves one worker. Use it as a context manager.

    answers: messages of the program that are answered at once, by type, or what makes them of the message.
    """

    def __init__(self, *worlds: dict | None, listener: socket.socket | None = None):
        """worlds: one for each slot, sent at join unless it is None; listener goes to the process
        whose rank is 0."""
        self.worlds = worlds
        self.listener = listener
        self.messages: queue.Queue[tuple[int, dict]] = queue.Queue()
        self.greeting: dict = {}
        self.hello: dict = {}
        self.raw_greeting: bytes | None = None
        self.pieces = 1
        self.silent_after_join = False
        self.leaves = False
        self.sharded = True
        self.answers = {"finished": {"type": "end"}, "fault": {"type": "raise"}}
        self._dir = tempfile.mkdtemp()
        self.path = os.path.join(self._dir, "agent.sock")
        self.snapshots = os.path.join(self._dir, "snapshots")
        os.mkdir(self.snapshots)
        self.interval: object = 3600
        self.memfd = self._make_page(len(worlds))
        self.page = mmap.mmap(self.memfd, 0)
        self._taken: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.connections: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen()

    @staticmethod
    def _make_page(slots: int) -> int:
        fd = os.memfd_create("gate", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, LINE * (1 + 2 * slots))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        os.pwrite(fd, struct.pack("QQQ", 0x434E4352544E4131, 2, slots), 0)
        return fd

    def words(self, slot: int = 0) -> dict:
        """What the program of a slot has written."""
        names = "entered", "done", "lastStep", "phase", "samples"
        return dict(zip(names, struct.unpack_from("QQQQQ", self.page, LINE * (2 + 2 * slot))))

    def stamps(self, slot: int = 0) -> tuple[int, int]:
        """When the program of a slot ended its last step and began the first in its world."""
        return struct.unpack_from("QQ", self.page, LINE * (2 + 2 * slot) + 40)

    def worked(self, slot: int = 0) -> int:
        """For how long the program of a slot has worked in its steps, without waiting."""
        return struct.unpack_from("Q", self.page, LINE * (2 + 2 * slot) + 56)[0]

    def stop(self, step: int, slot: int = 0) -> None:
        """Writes the word that says which step is the last for now; 0: none."""
        struct.pack_into("Q", self.page, LINE * (1 + 2 * slot), step)

    def say(self, kind: str, slot: int = 0, **fields) -> None:
        """Sends a message to the program of a slot."""
        self.give({"type": kind} | fields, slot)

    def give(self, message: dict, slot: int = 0, listener: socket.socket | None = None) -> None:
        """Sends a message, perhaps with a socket. Before a world it clears what belongs to the last one."""
        if message["type"] == "world":
            struct.pack_into("Q", self.page, LINE * (2 + 2 * slot) + 48, 0)
        if listener is None:
            self._send(self._taken[slot], message)
        else:
            self._send(self._taken[slot], message | {"fds": 1}, listener.fileno())

    def hear(self, kind: str, slot: int = 0, seconds: float = 20) -> dict:
        """The next message of a program, which must be of this kind; progress does not count."""
        while True:
            whose, message = self.messages.get(timeout=seconds)
            if message["type"] != "progress":
                break
        assert (whose, message["type"]) == (slot, kind), f"waiting for {kind} of slot {slot}: {whose} says {message}"
        return message

    def take_over(self, message: dict, number: int) -> str:
        """Does with a snapshot what an agent does in the world of this round; returns its path."""
        path = os.path.join(self.snapshots, f"{number}-{message['step']}")
        os.rename(os.path.join(self.snapshots, message["file"]), path)
        assert os.stat(path).st_size == message["bytes"]
        return path

    def take_parts(self, message: dict, number: int) -> dict[str, str]:
        """The same with the parts of one; returns their paths by their keys."""
        found = {}
        for part in message["parts"]:
            found[part["key"]] = os.path.join(self.snapshots, f"{number}-{message['step']}.{part['key']}")
            os.rename(os.path.join(self.snapshots, part["file"]), found[part["key"]])
            assert os.stat(found[part["key"]]).st_size == part["bytes"]
        return found

    def received(self, kind: str | None = None) -> list[dict]:
        """Messages that have come since the last call, of one type if it is named. The
        connections must have ended."""
        for thread in self._threads[1:]:
            thread.join(10)
            assert not thread.is_alive(), "the program has not closed its connection"
        found = []
        while not self.messages.empty():
            message = self.messages.get()[1]
            if kind in (None, message["type"]):
                found.append(message)
        return found

    def __enter__(self) -> "FakeAgent":
        self._start(self._accept)
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a connection of the fake agent has not ended"
        self.page.close()
        os.close(self.memfd)
        shutil.rmtree(self._dir)

    def hang_up(self) -> None:
        """Ends all connections, as an agent that dies does."""
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # The program was first.

    def _start(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        slot = None
        with connection, connection.makefile("rb") as lines:
            try:
                for line in lines:
                    message = json.loads(line)
                    if message["type"] == "hello":
                        slot = self._hello(connection, message)
                        if slot is None:
                            return
                    self.messages.put((slot, message))
                    if message["type"] in self.answers:
                        answer = self.answers[message["type"]]
                        self._send(connection, answer(message) if callable(answer) else answer)
                    if message["type"] == "join" and self.worlds[slot]:
                        self._join(connection, slot)
                        if self.silent_after_join:
                            return self._hold(connection)
            except OSError:
                return
            finally:
                with self._lock:
                    if self._taken.get(slot) is connection:
                        del self._taken[slot]

    def _hello(self, connection: socket.socket, hello: dict) -> int | None:
        slot, self.hello = hello["localRank"], hello
        if self.raw_greeting is not None:
            connection.sendall(self.raw_greeting)
            return None
        with self._lock:
            if slot in self._taken or not slot < len(self.worlds):
                self._send(connection, {"type": "error", "message": f"slot {slot} is not free"})
                return None
            self._taken[slot] = connection
        welcome = {"type": "welcome", "protocol": 2, "namespace": "team", "job": "digits", "attempt": 2}
        welcome |= {"slot": slot, "slots": len(self.worlds), "fds": 1, "aFieldOfLater": True}
        welcome |= {"snapshots": self.snapshots, "interval": self.interval}
        if self.leaves and hello.get("leaves"):
            welcome["leaves"] = True
        if self.sharded and hello.get("sharded"):
            welcome["sharded"] = True
        if self.sharded and hello.get("local"):
            welcome["local"] = True
        self._send(connection, welcome | self.greeting, self.memfd)
        return slot

    def _join(self, connection: socket.socket, slot: int) -> None:
        message = self.worlds[slot]
        if message.get("rank") == 0 and self.listener:
            self._send(connection, message | {"fds": 1}, self.listener.fileno())
        else:
            self._send(connection, message)

    @staticmethod
    def _hold(connection: socket.socket) -> None:
        """Reads nothing until hang_up or the program's end."""
        poll = select.poll()
        poll.register(connection, 0)
        poll.poll()

    def _send(self, connection: socket.socket, message: dict, *fds: int) -> None:
        line = json.dumps(message).encode() + b"\n"
        size = -(-len(line) // self.pieces)
        socket.send_fds(connection, [line[:size]], fds)
        for start in range(size, len(line), size):
            connection.sendall(line[start : start + size])
