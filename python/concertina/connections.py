"""The TCP connections of this process, as the kernel lists them.

Libraries that exchange gradients block in a read until their own timeout, minutes later, when a
peer is gone. Shutting the connection down ends the read at once, whoever waits in it.
"""

import contextlib
import os
import socket
import stat
import weakref


class Connections:
    """The TCP connections that were made since the last call of begin(), once formed() was called those to the
    machines that they went to by then."""

    def __init__(self):
        self._before: frozenset[int] | None = None
        self._peers: frozenset[str] | None = None
        self._only: frozenset[int] | None = None
        _known.add(self)

    def begin(self) -> None:
        """What is open now does not belong to them."""
        self._peers = self._only = None
        self._before = frozenset(inode for _, inode in _sockets())

    def formed(self, size: int) -> None:
        """The world of so many members is formed. If every one is connected with every other one, what goes elsewhere from now
        on, such as to a store of files, is the program's own."""
        peers = [peer for fd in self._made() if (peer := _peer(fd))]
        if len(peers) >= size:  # With one connection to the store. Some libraries connect when they first have to.
            self._peers = frozenset(peers)

    def close(self) -> None:
        """All of them are there: what is made from now on does not belong to them."""
        made = {fd for fd in self._made()}
        self._only = frozenset(inode for fd, inode in _sockets() if fd in made)

    def shut_down(self) -> None:
        """Ends all of them: who waits for one gets an error. Listening sockets stay, since a
        server that loses its own may end the process."""
        for fd in self._made():
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
                if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    connection.shutdown(socket.SHUT_RDWR)

    def _made(self) -> list[int]:
        if self._before is None:
            return []
        sockets = [(fd, inode) for fd, inode in _sockets() if inode not in self._before and _is_tcp(fd)]
        made = [fd for fd, inode in sockets if self._only is None or inode in self._only]
        peers = self._peers
        return made if peers is None else [fd for fd in made if _peer(fd) in peers or not _peer(fd)]

    def _drop(self) -> None:
        """In a child: lets go of them, so that peers see it when the parent ends."""
        for fd in self._made():
            _put_aside(fd)


def keep_from_children(sock: socket.socket) -> None:
    """Forked children close this socket."""
    _private.add(sock)


_known: weakref.WeakSet[Connections] = weakref.WeakSet()
_private: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _after_fork() -> None:
    for connections in list(_known):
        connections._drop()
    for sock in list(_private):
        if sock.fileno() >= 0:
            _put_aside(sock.fileno())


os.register_at_fork(after_in_child=_after_fork)


def _put_aside(fd: int) -> None:
    # The number stays taken: whoever thinks that it owns it closes nothing of somebody else's.
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, fd, inheritable=False)
        os.close(nothing)


def _sockets() -> list[tuple[int, int]]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found.append((int(name), status.st_ino))
    return found


def _is_tcp(fd: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(fd)) as copy:
            return copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
    except OSError:
        return False  # Closed meanwhile.


def _peer(fd: int) -> str:
    """The address of the other end; empty where there is none, as of a socket that listens or is being connected."""
    try:
        with socket.socket(fileno=os.dup(fd)) as copy:
            return copy.getpeername()[0].removeprefix("::ffff:")
    except OSError:
        return ""
