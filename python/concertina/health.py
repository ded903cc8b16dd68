"""Whether an error of a GPU is the program's or the GPU's: what is started anew on a broken one fails as well.

After an error of CUDA nothing more can be asked of a device in the process that has met it. So another process looks: it copies
something there and back and multiplies matrices. If it cannot, or gets something wrong, the program ends with an exit code of its own,
by which the worker is replaced elsewhere and no failure of the program is counted. docs/program-protocol.md has the rules.
"""

import atexit
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator

EXIT_DEVICE = 113
"""As docs/program-protocol.md says."""

CHECK_FIRST = "CONCERTINA_CHECK_DEVICE"
"""In the environment of a program that was started anew after an end of which nobody knows whether its device was the cause."""

_OF_DEVICES = re.compile(r"CUDA error|CUDA failure|CUDA_ERROR_|uncorrectable ECC", re.IGNORECASE)
_OF_MEMORY = re.compile(r"out of memory|CUDA_ERROR_OUT_OF_MEMORY", re.IGNORECASE)
_NO_PLACE = re.compile(_OF_MEMORY.pattern + r"|busy or unavailable", re.IGNORECASE)
_NO_PROGRAM_CAUSES = re.compile(r"\bECC\b|NVLink", re.IGNORECASE)

_IMPORTS = 40.0
_ANSWERS = 20.0  # An operator waits a minute for all of it.
_BEGINS, _SOUND, _NO_ROOM, _FAILED = "begins", "sound", "no room", "failed"
_LOOK = "import sys; sys.path[:] = {path!r}; from concertina.health import look; look({device})"


def device_error(error: BaseException | None) -> str:
    """The line that tells of an error of a device, which an exception is or comes of; empty for none. That it had no memory left
    is none."""
    for one in _chain(error):
        text = str(one).splitlines()
        lines = [line for line in text if _OF_DEVICES.search(line)]
        if not lines or any(map(_OF_MEMORY.search, lines)):
            continue
        if lines[-1] is text[0]:
            return f"{type(one).__module__}.{type(one).__name__}: {text[0]}".removeprefix("builtins.")
        return lines[-1].strip()  # Libraries have it at the end of what they say of their own.
    return ""


def _chain(error: BaseException | None, seen: frozenset[int] = frozenset()) -> Iterator[BaseException]:
    if error is None or id(error) in seen:
        return
    seen |= {id(error)}
    yield error
    for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
        yield from _chain(other, seen)


class Check:
    """A process that looks at a device."""

    def __init__(self, device: int, command: list[str] | None = None):
        """device: its number, as this process counts them. command: another program that looks."""
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command or [sys.executable, "-c", _LOOK.format(path=sys.path, device=device)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._begun, self._ended = threading.Event(), threading.Event()
        self._told: list[str] = []
        self._reader = threading.Thread(target=self._read, name="concertina-health", daemon=True)
        self._reader.start()

    def outcome(self, imports: float = _IMPORTS, answers: float = _ANSWERS) -> tuple[bool | None, str]:
        """Whether the device is sound, None where nobody knows, and why. Waits so many seconds for the process to
        begin, and for the device to answer."""
        try:
            if not self._begun.wait(imports):
                return None, "the process that was to look at it did not begin"
            if not self._ended.wait(answers):
                return False, f"it does not answer for {answers:.0f} s"
            return self._judge()
        finally:
            self.end()

    def end(self) -> None:
        """Nobody wants to know any more. One that waits for a device may not go, and nobody waits for it."""
        self._process.kill()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._told.append(line.strip())
            if line.strip() == _BEGINS:
                self._begun.set()
        self._process.wait()
        self._ended.set()
        self._begun.set()

    def _judge(self) -> tuple[bool | None, str]:
        self._errors.seek(0)
        said = self._errors.read().strip() or f"its process ended with {self._process.returncode}"
        if _BEGINS not in self._told:
            return None, f"the process that was to look at it failed: {said.splitlines()[-1]}"
        if _SOUND in self._told:
            return True, "it computes what it should"
        if _NO_ROOM in self._told:
            return None, "it has no room for another process"
        if _FAILED in self._told:
            return None, f"the process that was to look at it failed: {said.splitlines()[-1]}"
        return False, device_error(RuntimeError(said)).removeprefix("RuntimeError: ") or said.splitlines()[-1]


class Watch:
    """Finds out at the end of a program whether a device was to blame."""

    def __init__(self) -> None:
        self._check: Check | None = None
        self._error = ""
        self._process = 0

    def begin(self) -> None:
        """From now on the end of this process is looked at."""
        if not self._process:
            atexit.register(self._at_exit)
        self._process = os.getpid()

    def suspect(self, error: BaseException | None) -> str:
        """Has a device looked at if an error is one of a device. Its first line, or nothing."""
        told = device_error(error)
        if told and self._check is None and _uses_cuda():
            with contextlib.suppress(OSError):  # Then nobody knows.
                self._error, self._check = told, Check(_device())
        return told

    def forget(self) -> None:
        """The program goes on."""
        check, self._check = self._check, None
        if check:
            check.end()

    def _at_exit(self) -> None:
        if os.getpid() != self._process:
            return  # a child that was forked
        self.suspect(getattr(sys, "last_value", None))  # what has ended the program, where nobody has caught it
        if self._check is None:
            return
        # The agent stops a worker's other processes when one has failed, and this is how it learns why.
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sound, why = self._check.outcome()
        if sound is False:
            leave(self._error, why)
        if _NO_PROGRAM_CAUSES.search(self._error):
            leave(self._error, f"no program causes that, though by now {why}")
        what = "the GPU is sound" if sound else "nobody knows whether the GPU is sound"
        print(f"concertina: after {self._error}: {what} ({why})", file=sys.stderr)


def check_first() -> None:
    """Ends the program if it was asked to look at its device before it joins, and that is broken."""
    if not os.environ.pop(CHECK_FIRST, "") or not _uses_cuda():
        return
    with contextlib.suppress(OSError):
        sound, why = Check(_device()).outcome()
        if sound is False:
            leave("the program was started anew", why)


def leave(error: str, why: str) -> None:
    """Ends this process: its device is broken. At once, since what CUDA does at the end of a process may hang, or end it otherwise."""
    print(
        f"concertina: after {error}: the GPU is broken ({why}): the program ends with code {EXIT_DEVICE}, so that another worker "
        "takes the place of this one",
        file=sys.stderr,
    )
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(EXIT_DEVICE)


def _uses_cuda() -> bool:
    """Whether this program has a PyTorch that computes on GPUs."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.version.cuda)


def _device() -> int:
    """The number of this process's device, as far as it can be asked."""
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch.cuda.is_initialized():
            return torch.cuda.current_device()
    with contextlib.suppress(ValueError):
        return int(os.environ.get("LOCAL_RANK", "0"))
    return 0


def look(number: int) -> None:
    """Looks at a device: what it is given comes back, and what it computes is right. Says so on the standard output."""
    import torch

    print(_BEGINS, flush=True)
    try:
        _try(torch, torch.device("cuda", number))
        print(_SOUND, flush=True)
        os._exit(0)
    except RuntimeError as error:
        if _NO_PLACE.search(str(error)):
            print(_NO_ROOM, flush=True)
        print(error, file=sys.stderr, flush=True)
    except Exception as error:  # not one of a device
        print(_FAILED, flush=True)
        print(repr(error), file=sys.stderr, flush=True)
    os._exit(1)  # What CUDA does at the end may hang.


def _try(torch, device) -> None:
    numbers = torch.arange(1 << 22, dtype=torch.int32)
    there = numbers.to(device)
    if not torch.equal(there.clone().cpu(), numbers):
        raise RuntimeError("what is copied to the GPU does not come back as it was")
    bits = numbers[: 1 << 18].remainder(3).eq(0).view(512, 512)
    for kind in torch.float32, torch.float16:  # in which all of these sums are exact
        got = (bits.to(device, kind) @ bits.to(device, kind)).cpu()
        if not torch.equal(got.double(), bits.double() @ bits.double()):
            raise RuntimeError(f"the GPU multiplies matrices of {kind} wrongly")


watch = Watch()
"""That of this process."""
