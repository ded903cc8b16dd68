"""Whether an error of a GPU is the program's or the GPU's: what is started anew on a broken one fails as well.

After an error of CUDA nothing more can be asked of a device in the process that has met it. So another process looks: it copies
something there and back and multiplies matrices. If it gets something wrong, or an error that only a broken GPU has, or no answer, the
program ends with an exit code of its own, by which the worker is replaced elsewhere and no failure of the program is counted. Whatever
else comes of it says nothing: there are more ways to set a program up wrongly than anybody knows, and they would fail on any node.
docs/program-protocol.md has the rules.
"""

import atexit
import contextlib
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

EXIT_DEVICE = 113
"""As docs/program-protocol.md says."""

CHECK_FIRST = "CONCERTINA_CHECK_DEVICE"
"""In the environment of a program that is the first one after an end of which nobody knows whether a device was the cause."""

CRASHES = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS})
"""What libraries end a program by when its device has failed. The agent and the operator know these as well."""

PASSED_ON = "CONCERTINA_EXIT_CODE_PASSED_ON"
"""In the environment of a program whose torchrun ends with its exit code if that says that a device is broken, and of all that it
starts: it has the launch() of that torchrun's processes. Those of another launcher beneath have another one."""

_OF_DEVICES = re.compile(
    r"CUDA error|CUDA failure|CUDA driver error|CUDA_ERROR_|Triton Error \[CUDA\]|CUDNN_STATUS_EXECUTION_FAILED|cudaGetDeviceCount"
    r"|uncorrectable (ECC|NVLink)",
    re.IGNORECASE,
)
_OF_MEMORY = re.compile(r"out of memory|CUDA_ERROR_OUT_OF_MEMORY|ALLOC(ATION)?_FAILED|_STATUS_NOT_INITIALIZED", re.IGNORECASE)
_OF_THE_IMAGE = re.compile(r"no kernel image is available|unsupported toolchain", re.IGNORECASE)
"""The operator knows these as well: testdata/device_errors.json has what both have to make of some lines."""

_NO_PLACE = re.compile(_OF_MEMORY.pattern + r"|busy or unavailable", re.IGNORECASE)
_NO_PROGRAM_CAUSES = re.compile(r"uncorrectable (ECC|NVLink)", re.IGNORECASE)
_BROKEN = re.compile(
    _NO_PROGRAM_CAUSES.pattern + r"|unspecified launch failure|LAUNCH_FAILED|unknown error|CUDA_ERROR_UNKNOWN"
    r"|(device|GPU) (is|was) lost|fallen off the bus",
    re.IGNORECASE,
)
_SET_UP = re.compile(r"\bMPS\b|incorrectly set up environment")  # Neither is the device's.
_KILLED = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}  # By others.

_IMPORTS = 40.0
_ANSWERS = 20.0  # An operator waits a minute for all of it.
_ROOM = 1 << 30  # What a context, libraries and matrices take.
_BEGINS, _SOUND, _WRONG, _NO_ROOM, _UUID = "begins", "sound", "wrong", "no room", "uuid "
_LOOK = "import sys; sys.path[:] = {path!r}; from concertina import health; health.{by}({device})"
_ALL = -1
"""Instead of a device's number: each that the process has."""


def device_error(error: BaseException | None) -> str:
    """The line that tells of an error of a device, which an exception is or comes of; empty for none. That it had no memory left
    is none, and neither is that a program was not compiled for it."""
    for one in _chain(error):
        text = str(one).splitlines()
        lines = [line for line in text if _OF_DEVICES.search(line)]
        if not lines or any(_OF_MEMORY.search(line) or _OF_THE_IMAGE.search(line) for line in lines):
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

    def __init__(self, device: int, command: list[str] | None = None, by: str = "look"):
        """device: its number, as this process counts them. command: another program that looks. by: the function here that does."""
        self._device = device
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command or [sys.executable, "-c", _LOOK.format(path=sys.path, by=by, device=device)],
            env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},  # Else JAX takes most of the memory that is left.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._begun, self._ended = threading.Event(), threading.Event()
        self._told: list[str] = []
        self._reader = threading.Thread(target=self._read, name="concertina-health", daemon=True)
        self._reader.start()

    @property
    def gpu(self) -> str:
        """Which GPU it is, by its number in this process and, where that is known, by its own name."""
        uuids = [line.removeprefix(_UUID) for line in self._told if line.startswith(_UUID)]
        return ", ".join(["all of its devices" if self._device == _ALL else f"device {self._device}", *uuids])

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
        self._errors.close()

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
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        said = lines[-1] if lines else f"its process ended with {self._process.returncode}"
        if _WRONG in self._told:
            return False, said
        if _SOUND in self._told:
            return True, "it computes what it should"
        if self._process.returncode in _KILLED:
            return None, f"the process that was to look at it was killed by signal {-self._process.returncode}"
        if _NO_ROOM in self._told:
            return None, "it has no room for another process"
        broken = [line for line in lines if _BROKEN.search(line)]
        if broken and not any(map(_SET_UP.search, lines)):
            return False, broken[-1]
        return None, f"the process that was to look at it failed: {said}"


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
        if told and self._check is None and (by := _looks()):
            with contextlib.suppress(OSError):  # Then nobody knows.
                self._error, self._check = told, Check(_device(by), by=by)
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
            leave(self._error, why, self._check.gpu)
        if _NO_PROGRAM_CAUSES.search(self._error):
            leave(self._error, f"no program causes that, though by now {why}", self._check.gpu)
        what = "the GPU is sound, and the error is the program's"
        if not sound:
            what = "nobody knows whether the GPU is sound, and the error counts as the program's"
            why += "; if it comes again on this node alone, look for lines with Xid in its dmesg"
        print(f"concertina: after {self._error}: {what} ({self._check.gpu}: {why})", file=sys.stderr)


def check_first() -> None:
    """Ends the program if it was asked to look at its device before it joins, and that is broken."""
    if not os.environ.pop(CHECK_FIRST, "") or not (by := _looks()):
        return
    with contextlib.suppress(OSError):
        check = Check(_device(by), by=by)
        sound, why = check.outcome()
        if sound is False:
            leave("another program ended by a signal here", why, check.gpu)


def leave(error: str, why: str, gpu: str) -> None:
    """Ends this process: its device is broken. At once, since what CUDA does at the end of a process may hang, or end it otherwise."""
    print(
        f"concertina: after {error}: the GPU is broken ({gpu}: {why}): the program ends with code {EXIT_DEVICE}, so that another "
        "worker takes the place of this one. The job's status.avoidedNodes names the node: look for lines with Xid in its dmesg",
        file=sys.stderr,
    )
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(EXIT_DEVICE)


def launch(run: str, address: str, port: str) -> str:
    """What tells processes of one torchrun and one world from others. The run's name does not: it is the same for all that were given none."""
    return f"{run} {address} {port}"


def _passed_on() -> bool:
    """Whether this program's own exit code gets anywhere."""
    run, address, port = (os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"))
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get(PASSED_ON) == launch(run, address, port)


def _looks() -> str:
    """What can look at this program's device, as Check wants it: it has a PyTorch that computes on GPUs, and one to look at, or a JAX
    that does. Empty for nothing, and where the program's exit code does not get anywhere: torchrun has one for everything, unless
    its rendezvous is ours."""
    if not _passed_on():
        return ""
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda:
        with contextlib.suppress(Exception):
            if torch.cuda.is_initialized() or torch.cuda.device_count() > 0:
                return "look"
    return "look_by_jax" if "jax" in sys.modules and _jax_knows_gpus() else ""


def _jax_knows_gpus() -> bool:
    """Whether there is what JAX computes on GPUs with. It is not asked itself: that begins it, and before
    jax.distributed.initialize() it must not have begun."""
    with contextlib.suppress(Exception):
        import jax_plugins

        return any("cuda" in plugin.name for plugin in pkgutil.iter_modules(jax_plugins.__path__))
    return False


def _device(by: str = "look") -> int:
    """The number of this process's device, as far as it can be asked: the one that it has chosen, or else that of its rank. A program
    that names a device with each thing that it puts there has chosen none. With JAX a process that is alone in its worker has all."""
    if by == "look_by_jax":
        with contextlib.suppress(Exception):
            return int(os.environ["LOCAL_RANK"]) if int(os.environ["LOCAL_WORLD_SIZE"]) > 1 else _ALL
        return _ALL
    torch, chosen = sys.modules.get("torch"), 0
    with contextlib.suppress(Exception):
        chosen = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    with contextlib.suppress(Exception):
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        return rank if not chosen and 0 <= rank < torch.cuda.device_count() else chosen
    return chosen


def look(number: int) -> None:
    """Looks at a device: what it is given comes back, and what it computes is right. Says so on the standard output, and ends the
    process."""
    _tell(lambda: _look(number))


def look_by_jax(number: int, platform: str = "gpu") -> None:
    """The same with JAX; of all devices where the number is below 0."""
    _tell(lambda: _look_by_jax(number, platform))


def _tell(look: Callable[[], str]) -> None:
    """Says what comes of looking, and ends the process."""
    try:
        print(look(), flush=True)
        os._exit(0)
    except _WrongResult as error:
        print(_WRONG, flush=True)
        print(error, file=sys.stderr, flush=True)
    except Exception as error:
        if _NO_PLACE.search(str(error)):
            print(_NO_ROOM, flush=True)
        print(error if isinstance(error, RuntimeError) else repr(error), file=sys.stderr, flush=True)
    os._exit(1)  # What CUDA does at the end may hang.


def _look(number: int) -> str:
    import torch

    if not torch.cuda.device_count():
        raise LookupError("there is no GPU")
    device = torch.device("cuda", number)
    torch.zeros(1, device=device)  # With that its context is there: who says nothing from now on waits for the device.
    with contextlib.suppress(Exception):
        print(f"{_UUID}GPU-{torch.cuda.get_device_properties(device).uuid}", flush=True)
    print(_BEGINS, flush=True)
    if torch.cuda.mem_get_info(device)[0] < _ROOM:
        return _NO_ROOM
    _try(torch, device)
    return _SOUND


def _look_by_jax(number: int, platform: str) -> str:
    import jax
    import numpy

    there = jax.devices(platform)
    devices = there if number < 0 else [there[number]]
    numbers = numpy.arange(1 << 22, dtype="int32")
    bits = numpy.equal(numbers[: 1 << 18] % 3, 0).reshape(512, 512)
    kinds = "float32", "float16"  # in which all of these sums are exact
    products = {}
    for device in devices:
        jax.device_put(numpy.zeros(1, "int32"), device).block_until_ready()
        for kind in kinds:
            matrix = jax.ShapeDtypeStruct(bits.shape, kind, sharding=jax.sharding.SingleDeviceSharding(device))
            products[device, kind] = jax.jit(lambda a, b: a @ b).lower(matrix, matrix).compile()
    print(_BEGINS, flush=True)  # Compiling takes its time, and waits for no device.
    for device in devices:
        if not numpy.array_equal(numpy.asarray(jax.device_put(numbers, device) + 1), numbers + 1):
            raise _WrongResult(f"{device} does not count right")
        for kind in kinds:
            matrix = jax.device_put(bits.astype(kind), device)
            got = numpy.asarray(products[device, kind](matrix, matrix))
            if not numpy.array_equal(got.astype("float64"), bits.astype("float64") @ bits.astype("float64")):
                raise _WrongResult(f"{device} multiplies matrices of {kind} wrongly")
    return _SOUND


class _WrongResult(Exception):
    pass


def _try(torch: Any, device: Any) -> None:
    numbers = torch.arange(1 << 22, dtype=torch.int32)
    there = numbers.to(device)
    if not torch.equal(there.clone().cpu(), numbers):
        raise _WrongResult("what is copied to the GPU does not come back as it was")
    bits = numbers[: 1 << 18].remainder(3).eq(0).view(512, 512)
    for kind in torch.float32, torch.float16:  # in which all of these sums are exact
        got = (bits.to(device, kind) @ bits.to(device, kind)).cpu()
        if not torch.equal(got.double(), bits.double() @ bits.double()):
            raise _WrongResult(f"the GPU multiplies matrices of {kind} wrongly")


watch = Watch()
"""That of this process."""
