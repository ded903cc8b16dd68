"""torchrun's rendezvous by the worker's agent: `torchrun --rdzv-backend=concertina train.py`.

torchrun finds it by itself where this package is installed (the entry point `torchrun.handlers`). The operator decides
which nodes there are and which rank each has; torchrun stays from world to world. When another world is to follow it
ends its processes and starts them there, which spends nothing of --max-restarts.

The job has `workers.launch: PerWorker`. A process that fails ends torchrun as it does without this, and the operator
decides what comes then: leave --max-restarts at 0. Where one has ended with code 113, since a device of its node is
broken, so does torchrun; and with that of SIGABRT, SIGSEGV or SIGBUS, where one was ended by that first.
"""

import datetime
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping

from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from concertina import health
from concertina.connections import keep_from_children

__all__ = ["Handler", "handler"]

_PROTOCOL = 2
_MAX_LINE = 64 * 1024
_GREETING_SECONDS = 30.0
_STORE_TIMEOUT = datetime.timedelta(minutes=5)


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What torchrun's entry point asks for: what makes a handler of the options of the command line."""
    return Handler


class Handler(RendezvousHandler):
    """The worlds that the agent gives to this torchrun."""

    def __init__(self, parameters: RendezvousParameters):
        """Connects to the agent that CONCERTINA_SOCKET names. Raises RendezvousConnectionError when there is none, or it
        refuses, as it does when the job has launch PerProcess."""
        path = os.environ.get("CONCERTINA_SOCKET")
        if not path:
            raise RendezvousConnectionError(
                "--rdzv-backend=concertina is for workers of a TrainingJob: CONCERTINA_SOCKET is not set. "
                "Elsewhere leave it out, or choose another backend"
            )
        self._run_id = parameters.run_id
        self._agent = _Agent(path)
        self._store: TCPStore | None = None

    def get_backend(self) -> str:
        """The name of this rendezvous."""
        return "concertina"

    @property
    def use_agent_store(self) -> bool:
        """The processes meet at the store of the torchrun of rank 0."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits for a world, as long as it takes to form one.

        Raises RendezvousClosedError when torchrun wants another world by itself, because a process has failed;
        RendezvousConnectionError when the agent goes away.
        """
        if self._store is not None:
            if not self._agent.stopping:
                raise RendezvousClosedError("a process has failed: the operator decides whether the job is started anew")
            self._store = None
            os.environ.pop(health.CHECK_FIRST, None)  # it was for the processes of the first world
            self._agent.stopped()
        world = self._agent.next_world()
        os.environ["CONCERTINA_ROUND"] = str(world["round"])
        address, port, rank = world["masterAddress"], world["masterPort"], world["workerRank"]
        os.environ[health.PASSED_ON] = health.launch(self._run_id, address, str(port))  # to the processes
        self._store = TCPStore(
            address, port, is_master=rank == 0, wait_for_workers=False, timeout=_STORE_TIMEOUT, use_libuv=False  # which some builds lack
        )
        return RendezvousInfo(self._store, rank, world["workers"], RendezvousStoreInfo(address, port))

    def num_nodes_waiting(self) -> int:
        """More than 0 when another world is to follow. torchrun asks ten times a second, and has seen then that none of
        its processes has failed."""
        if not self._agent.stopping:
            return 0
        _signal_children(signal.SIGCONT)
        return 1

    def is_closed(self) -> bool:
        """The operator ends the rendezvous by ending the worker."""
        return False

    def set_closed(self) -> None:
        """Does nothing: what becomes of the others is the operator's decision."""

    def get_run_id(self) -> str:
        """What --rdzv-id says."""
        return self._run_id

    def shutdown(self) -> bool:
        """Ends the connection to the agent. Raises SystemExit with code 113 where torchrun ends by a process that did, and with that
        of a signal, 128 more than its number, where it does by one that was ended as by a broken device: the operator would hear
        of 1 otherwise, which torchrun has for everything."""
        self._agent.close()
        self._store = None
        failed = sys.exc_info()[1]  # what torchrun is about to end by
        if isinstance(failed, ChildFailedError) and (code := _passed_on(failed)):
            print(failed, file=sys.stderr, flush=True)
            raise SystemExit(code)
        return True


def _passed_on(failed: ChildFailedError) -> int:
    """The exit code of a torchrun of which processes have failed; 0 for its own."""
    if any(one.exitcode == health.EXIT_DEVICE for one in failed.failures.values()):
        return health.EXIT_DEVICE
    number = -failed.get_first_failure()[1].exitcode  # the others may have failed by it
    return 128 + number if number in health.CRASHES else 0


class _Agent:
    """A launcher's connection to the agent of its worker. A thread reads what the agent sends."""

    def __init__(self, path: str):
        self._world: Mapping | None = None
        self._ended: str | None = None
        self._changed = threading.Condition()
        self.stopping = False
        """Whether the agent has asked for the end of the processes."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        keep_from_children(self._socket)
        try:
            self._socket.settimeout(_GREETING_SECONDS)
            self._socket.connect(path)
            self._lines = self._socket.makefile("rb")
            self._say({"type": "hello", "protocol": _PROTOCOL, "launcher": True})
            self._hear()
            self._socket.settimeout(None)
        except (OSError, ValueError) as error:
            self._socket.close()
            raise RendezvousConnectionError(f"greet the agent at {path}: {error}") from error
        threading.Thread(target=self._read, name="concertina-agent", daemon=True).start()

    def stopped(self) -> None:
        """Says that the processes have ended, as the agent has asked. Raises RendezvousConnectionError."""
        self.stopping = False
        try:
            self._say({"type": "stopped"})
        except OSError as error:
            raise RendezvousConnectionError(f"the agent went away: {error}") from error

    def next_world(self) -> Mapping:
        """The next world, however long it takes. Raises RendezvousConnectionError when the agent goes away."""
        with self._changed:
            self._changed.wait_for(lambda: self._world or self._ended)
            if self._world is None:
                raise RendezvousConnectionError(f"wait for a world: {self._ended}")
            world, self._world = self._world, None
            return world

    def close(self) -> None:
        """Ends the connection."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the agent was first
        self._socket.close()

    def _say(self, message: dict) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _hear(self) -> Mapping:
        line = self._lines.readline(_MAX_LINE)
        if not line.endswith(b"\n"):
            raise ValueError("the agent closed the connection" if not line else "the agent sent a message longer than 64 KiB")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("the agent sent a message that is no object")
        if message.get("type") == "error":
            raise ValueError(f"the agent refused: {message.get('message')}")
        return message

    def _read(self) -> None:
        try:
            while True:
                self._take(self._hear())
        except (OSError, ValueError) as error:
            self._end(str(error))
        except BaseException as error:
            self._end(f"the thread that reads what the agent says has failed: {error!r}")
            raise

    def _end(self, why: str) -> None:
        """Nothing more will be read: whoever waits for a world learns it."""
        with self._changed:
            self._ended = why
            self._changed.notify()

    def _take(self, message: Mapping) -> None:
        if message.get("type") == "stop":
            # Those of other workers may end first, and what then fails here would count as a failure: torchrun would
            # end, or spend a restart. It looks at its processes once more before it ends them.
            _signal_children(signal.SIGSTOP)
            self.stopping = True
        if message.get("type") == "world":
            for name, kind in (("round", int), ("workers", int), ("workerRank", int), ("masterPort", int), ("masterAddress", str)):
                if type(message.get(name)) is not kind:
                    raise ValueError(f"the agent sent a world with {name} = {message.get(name)!r}")
            with self._changed:
                self._world = message
                self._changed.notify()


def _signal_children(number: signal.Signals) -> None:
    """Sends a signal to the processes that this one has started."""
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
                children = file.read().split()
        except OSError:
            continue  # a thread that has ended, or a kernel that does not tell
        for child in children:
            try:
                os.kill(int(child), number)
            except OSError:
                pass  # it has ended, or belongs to another user
