"""Python programs that begin with PyTorch imported. Importing it takes longer than most of what the tests' programs do, so servers have
imported it, do nothing else, and are forked for each of them.

What a program sees is what it would see if Python had begun it: its arguments, environment, folder and output, its file as __main__, and its
own end, with all that Python does then. What PyTorch has not imported it imports itself; who lacks an import of a part of PyTorch shows in the
programs that Python begins, of test_local, test_staging, test_launcher and test_tutorial. There are two servers, which take turns: the
members of a world order their sets differently, as they do where Python begins each of them.

A server has one thread, and nothing of PyTorch has run in it: a copy has no thread but that one, and might wait for another for ever.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import itertools
import json
import os
import pathlib
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import types

PRELOADED = ("torch", "torch.distributed", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel")
"""What most programs import, at once or where they use it first."""
LARGEST = 128 << 10
"""Bytes of what a server is asked."""
_PR_SET_PDEATHSIG = 1
_NUMBER = struct.Struct("i")


def start(command, env, stdout=None, stderr=None):
    """Starts a program, which is a file and its arguments; the result is used like a subprocess.Popen. stdout and stderr: files, None for
    those of this process, or subprocess.PIPE for stdout. Who computes elsewhere than on a processor is begun by Python: what a driver
    has done in a server when that is forked nobody knows. So is everybody where PyTorch begins threads as it is imported, as newer ones do."""
    if env.get("TEST_DEVICE", "cpu") != "cpu" or (server := _next()).threads() > 1:
        begun = [sys.executable, "-X", "faulthandler", *map(str, command)]
        return subprocess.Popen(begun, env=env, stdout=stdout, stderr=stderr, text=True)
    return server.start(command, env, stdout, stderr)


class Program:
    """A process that a server has forked. Whoever drops it without having waited for it has it killed."""

    def __init__(self, pid, channel, stdout=None):
        self.pid, self.stdout, self.returncode = pid, stdout, None
        self._channel = channel

    def poll(self):
        """Its exit code, or the signal that has ended it as a negative number; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        """Waits until it has ended, for so many seconds at most. Raises subprocess.TimeoutExpired after that."""
        if self.returncode is None:
            self._channel.settimeout(timeout)
            try:
                self.returncode = _number(self._channel)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout) from None
            self._channel.close()  # Until now it was a zombie: nobody else had its number.
        return self.returncode

    def send_signal(self, number):
        """Sends it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Server:
    """A process that is forked for programs. It ends with this one, and so do they."""

    def __init__(self, preloaded=PRELOADED):
        """preloaded: the modules that it imports."""
        self._asking, self._threads = threading.Lock(), None
        self._control, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            command = [sys.executable, "-X", "faulthandler", "-m", __name__, str(there.fileno()), *preloaded]
            env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
            self.process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, pass_fds=[there.fileno()])

    def start(self, command, env, stdout=None, stderr=None):
        """Starts a program, as start() does."""
        asked = json.dumps({"command": [*map(str, command)], "env": dict(env), "folder": os.getcwd()}).encode()
        if len(asked) > LARGEST:
            raise ValueError(f"{len(asked)} bytes of arguments and environment: {LARGEST} are taken at most")
        with contextlib.ExitStack() as stack:
            reading = None
            if stdout == subprocess.PIPE:
                reading, writing = os.pipe()
                stdout = stack.enter_context(open(writing, "wb"))
                reading = open(reading)
            here, there = socket.socketpair()
            stack.enter_context(there)
            files = [there.fileno(), *(own if file is None else file.fileno() for own, file in ((1, stdout), (2, stderr)))]
            with self._asking:
                socket.send_fds(self._control, [asked], files)
        return Program(_number(here), here, reading)

    def threads(self):
        """How many threads it has once it has imported everything. One that has more than one cannot be forked."""
        with self._asking:
            if self._threads is None:
                self._threads = _number(self._control)
            return self._threads

    def close(self):
        """Ends it, and all of its programs."""
        with contextlib.suppress(RuntimeError):
            self.threads()  # Where something is left to be read its end would see a broken connection.
        self._control.close()
        self.process.wait()


_servers: list[Server] = []
_turns = itertools.count()
_beginning = threading.Lock()


def _next():
    """The server whose turn it is."""
    with _beginning:
        if not _servers:
            _servers.extend(Server() for _ in range(2))
            atexit.register(_close_all)
        return _servers[next(_turns) % len(_servers)]


def _close_all():
    while _servers:
        _servers.pop().close()


def _number(channel):
    """The next number that a server says. Raises RuntimeError where it has ended."""
    said = channel.recv(_NUMBER.size, socket.MSG_WAITALL)
    if not said:
        raise RuntimeError("the fork server has ended: its own output tells why")
    return _NUMBER.unpack(said)[0]


class _Child:
    """A program, as its server has it."""

    def __init__(self, pid, channel):
        self.pid, self.channel, self.end = pid, channel, os.pidfd_open(pid)
        self.say(pid)

    def say(self, number):
        """Says a number to whoever has asked for it, who may not wait for that any more."""
        with contextlib.suppress(OSError):
            self.channel.send(_NUMBER.pack(number))

    def forget(self):
        """Closes what the server has of it."""
        self.channel.close()
        os.close(self.end)


class _Forks:
    """What is done in a server. control: where programs are asked for."""

    def __init__(self, control):
        self._control, self._children = control, []
        self._watched = selectors.DefaultSelector()
        self._watched.register(control, selectors.EVENT_READ)

    def serve(self):
        """Forks a process for whatever is asked for, and returns in that, with what was asked; in the server itself it returns None, once
        nobody is there any more who might ask."""
        while True:
            for key, _ in self._watched.select():
                child = key.data
                if child is None:
                    asked, files, *_ = socket.recv_fds(self._control, LARGEST, 3)
                    if not asked:
                        return self._end()
                    if self._fork(*files):
                        return json.loads(asked)
                elif key.fileobj == child.end:
                    self._tell(child)
                else:  # Nobody waits for it any more.
                    self._reap(child)
                    break  # What else is ready may be of the same child.

    def _fork(self, channel, out, err):
        """Whether this is the new process."""
        if _threads() > 1:
            raise RuntimeError(f"the fork server has {_threads()} threads: whatever it imports may have none")
        server, pid = os.getpid(), os.fork()
        if pid:
            for file in out, err:
                os.close(file)
            child = _Child(pid, socket.socket(fileno=channel))
            self._children.append(child)
            for file in child.channel, child.end:
                self._watched.register(file, selectors.EVENT_READ, child)
            return False
        if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) or os.getppid() != server:
            os._exit(1)
        for number, file in (1, out), (2, err):
            os.dup2(file, number)
            os.close(file)
        os.close(channel)
        for child in self._children:
            child.forget()
        self._watched.close()
        self._control.close()
        return True

    def _tell(self, child):
        """Says how a program has ended. It stays a zombie for as long as somebody may use its number."""
        self._watched.unregister(child.end)
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        child.say(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)

    def _reap(self, child):
        self._children.remove(child)
        for file in child.channel, child.end:
            with contextlib.suppress(KeyError):
                self._watched.unregister(file)
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        child.forget()

    def _end(self):
        for child in [*self._children]:
            self._reap(child)


def _threads():
    """How many threads this process has."""
    return len(os.listdir("/proc/self/task"))


def _begin(command, env, folder):
    """Runs a program as Python does."""
    gc.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    path, *_ = sys.argv = command
    sys.path[0] = str(pathlib.Path(path).resolve().parent)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = path
    exec(compile(pathlib.Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(main))


def _main(control, *preloaded):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # It ends after those who have it.
    for name in preloaded:
        importlib.import_module(name)
    gc.disable()
    gc.collect()
    gc.freeze()  # or the first collection of each copies all of it
    control = socket.socket(fileno=int(control))
    control.send(_NUMBER.pack(_threads()))
    asked = _Forks(control).serve()
    if asked:
        _begin(**asked)


if __name__ == "__main__":
    _main(*sys.argv[1:])
