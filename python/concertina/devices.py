"""Copies between the memory of this process and its devices, beside what they compute.

A device copies to and from memory that is pinned five times as fast as to other memory, and does so while it computes, in
a stream of its own. What it computes later in other streams waits for a copy only where fence() says so.
"""

import collections
import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from concertina.codec import Coming, DeviceError, Elsewhere, Piece, Room

_PORTABLE = 1
"""Of cudaHostRegister: for all devices."""
_SAMPLE = 64
_SLOT = 8 << 20
_SLOTS = 4
"""A file is read by so many threads, each of which has so much pinned memory."""
_GATHERED = 64 << 20
_AT_A_TIME = 4
"""A device has so many pieces of so many bytes at most beside what it copies: a program has no memory to spare for all of it twice."""


class Cuda:
    """What CUDA has for it."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a device has a tensor."""
        return tensor.device.type == "cuda"

    def at(self, device: torch.device | None) -> contextlib.AbstractContextManager:
        """Has this thread work with a device. Another thread than the program's begins with the first one otherwise, which is
        another rank's, and takes half a GiB of it for whatever it asks of CUDA."""
        return torch.cuda.device(device)

    def pin(self, room: Room, device: torch.device | None) -> None:
        """Pins memory for all devices, as long as it is there. Where that is refused copies take longer."""
        start, size = _start(room), len(room)
        cudart = torch.cuda.cudart()
        with self.at(device):
            refused = int(cudart.cudaHostRegister(start, size, _PORTABLE))
            if refused:
                # CUDA keeps the error until somebody asks for it, and PyTorch does after the next thing that is computed: this.
                with contextlib.suppress(RuntimeError):
                    torch.zeros(1, device=device or "cuda")
                return

        def let_go() -> None:
            with self.at(device):
                cudart.cudaHostUnregister(start)

        room.let_go = let_go

    def copy(self, device: torch.device, into: list[torch.Tensor], sources: list[torch.Tensor]) -> torch.cuda.Event:
        """Begins to copy tensors to or from a device, after what that was given so far. Returns what says when it is done."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        side = self._streams[device]
        side.wait_stream(torch.cuda.current_stream(device))
        done = torch.cuda.Event(blocking=True)
        with torch.cuda.stream(side):
            # One call: Python gives its lock away in each, and gets it back late from a program that computes.
            torch._foreach_copy_(into, sources, non_blocking=True)
            done.record(side)
        return done

    def settle(self, device: torch.device) -> None:
        """Waits for what a device was given so far."""
        torch.cuda.current_stream(device).synchronize()

    def fence(self, device: torch.device, mark: torch.cuda.Event) -> None:
        """What a device is given from now on waits for a copy."""
        torch.cuda.current_stream(device).wait_event(mark)

    def wait(self, mark: torch.cuda.Event) -> None:
        """Waits for a copy."""
        with self.at(mark.device):
            mark.synchronize()


class Devices:
    """Copies from and to devices."""

    def __init__(self, kind: Cuda | None = None):
        self._kind = kind or Cuda()
        self._slots: queue.SimpleQueue[_Slot] | None = None
        self._device: torch.device | None = None  # one that has a tensor

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a device has a tensor."""
        if tensor.layout != torch.strided or not self._kind.has(tensor):
            return False
        self._device = tensor.device
        return True

    def room(self, size: int) -> memoryview:
        """Pinned memory for so many bytes. Raises DeviceError."""
        room = Room(size)
        with _failing():
            self._kind.pin(room, self._device)
        return memoryview(room)

    @torch.no_grad()
    def bring(self, pieces: Sequence[Piece]) -> "Copies":
        """Begins to copy to memory. Of what is held the first and last bytes are noted as they are now; the rest is copied
        on its device, now. Raises DeviceError."""
        devices: dict[torch.device, list[Piece]] = {}
        for piece in pieces:
            devices.setdefault(piece.source.value.device, []).append(piece)
        copies = Copies(self._kind)
        try:
            with _failing():
                for device, some in devices.items():
                    copies.begin(device, some)
        except DeviceError:
            with contextlib.suppress(DeviceError):
                copies.wait()  # Nobody else does before the memory is used for something else.
            raise
        return copies

    @contextlib.contextmanager
    def filling(self, read: Callable[[memoryview, int], None]) -> Iterator[Callable[..., None]]:
        """What fills contiguous tensors of devices with bytes that read() gives, several at once. All of them have theirs
        when the block has ended."""
        filling = _Filling(self._kind, self._ring, read)
        try:
            yield filling.fill
            filling.end()
        finally:
            filling.stop()

    def _ring(self) -> "queue.SimpleQueue[_Slot]":
        if self._slots is None:
            room = self.room(_SLOTS * _SLOT)
            self._slots = queue.SimpleQueue()
            for number in range(_SLOTS):
                self._slots.put(_Slot(room[number * _SLOT : (number + 1) * _SLOT]))
        return self._slots


class Copies(Coming):
    """Copies that are on their way from devices."""

    def __init__(self, kind: Cuda):
        self._kind = kind
        self._marks: list[tuple[torch.device, Any]] = []
        self._kept: list[list[torch.Tensor]] = []  # as long as devices read it
        self._ends: list[tuple[torch.Tensor, list[memoryview]]] = []

    def begin(self, device: torch.device, pieces: Sequence[Piece]) -> None:
        """Begins with those of one device."""
        held = [*_sources(piece for piece in pieces if piece.held)]
        copies = self._noted(held) + [(source, torch.frombuffer(memory, dtype=torch.uint8)) for source, memory in held]
        gathered: collections.deque[tuple[Any, list]] = collections.deque()
        for parts in _together(_sources(piece for piece in pieces if not piece.held)):
            if len(gathered) == _AT_A_TIME:  # What the device is given from now on may have the memory of the first one.
                mark, kept = gathered.popleft()
                self._kind.fence(device, mark)
                kept.clear()
            sources = torch.cat([source for source, _ in parts]).split([len(memory) for _, memory in parts])
            into = [torch.frombuffer(memory, dtype=torch.uint8) for _, memory in parts]
            del parts
            gathered.append(self._copy(device, copies + [*zip(sources, into, strict=True)]))
            copies = []
            del sources
        if copies:
            self._copy(device, copies)

    def _noted(self, held: Sequence[tuple[torch.Tensor, memoryview]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Notes the first and last bytes of what is held, and returns what copies them."""
        if not held:
            return []
        noted = torch.cat([end for source, _ in held for end in (source[:_SAMPLE], source[-_SAMPLE:])])
        there = torch.empty(len(noted), dtype=torch.uint8, device="cpu", pin_memory=noted.device.type == "cuda")
        self._ends.append((there, [part for _, memory in held for part in (memory[:_SAMPLE], memory[-_SAMPLE:])]))
        return [(noted, there)]

    def _copy(self, device: torch.device, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[Any, list]:
        """Begins with some copies. Returns what says when they are done, and a list that keeps what they are made of."""
        kept = [source for source, _ in copies]
        mark = self._kind.copy(device, [into for _, into in copies], kept)
        self._marks.append((device, mark))
        self._kept.append(kept)
        return mark, kept

    def wait(self) -> None:
        with _failing():
            for _, mark in self._marks:
                self._kind.wait(mark)
        self._kept.clear()

    def fence(self) -> None:
        for device, mark in self._marks:
            self._kind.fence(device, mark)

    def intact(self) -> bool:
        for there, parts in self._ends:
            noted, at = memoryview(there.numpy()), 0
            for part in parts:
                if noted[at : at + len(part)] != part:
                    return False
                at += len(part)
        return True


class _Slot:
    """Pinned memory, and what a device still reads of it."""

    def __init__(self, memory: memoryview):
        self.memory = memory
        self.tensor = torch.frombuffer(memory, dtype=torch.uint8)
        self.mark: Any = None


class _Filling:
    """Tensors of devices that are being filled."""

    def __init__(self, kind: Cuda, ring: Callable[[], "queue.SimpleQueue[_Slot]"], read: Callable[[memoryview, int], None]):
        self._kind, self._ring, self._read = kind, ring, read
        self._threads: ThreadPoolExecutor | None = None
        self._jobs: list[Future] = []
        self._after: list[Callable[[], object]] = []
        self._failed = threading.Event()
        self._settled: set[torch.device] = set()

    def fill(self, tensor: torch.Tensor, at: int, after: Callable[[], object] | None = None) -> None:
        """Fills a tensor with the bytes at an offset. after: called when all tensors are full."""
        if self._threads is None:
            self._slots = self._ring()
            self._threads = ThreadPoolExecutor(_SLOTS, thread_name_prefix="concertina-load")
        if tensor.device not in self._settled:
            self._settled.add(tensor.device)
            self._kind.settle(tensor.device)
        flat = tensor.detach().view(-1).view(torch.uint8)
        for low in range(0, len(flat), _SLOT):
            self._jobs.append(self._threads.submit(self._part, flat[low : low + _SLOT], at + low))
        if after:
            self._after.append(after)

    @torch.no_grad()
    def _part(self, part: torch.Tensor, at: int) -> None:
        slot = self._slots.get()
        try:
            if self._failed.is_set():
                return
            with self._kind.at(part.device):
                if slot.mark is not None:
                    self._kind.wait(slot.mark)
                self._read(slot.memory[: len(part)], at)
                slot.mark = self._kind.copy(part.device, [part], [slot.tensor[: len(part)]])
        except BaseException:
            self._failed.set()
            raise
        finally:
            self._slots.put(slot)

    def end(self) -> None:
        """Waits until all is there. Raises what reading it, or a device, has raised."""
        for job in self._jobs:
            job.result()
        if self._threads is None:
            return
        for slot in self._all():
            if slot.mark is not None:
                self._kind.wait(slot.mark)
        for call in self._after:
            call()

    def stop(self) -> None:
        """Nothing of it is read any more."""
        self._failed.set()
        if self._threads is None:
            return
        self._threads.shutdown()
        for slot in self._all():  # Devices may still write to tensors that nobody has any more.
            if slot.mark is not None:
                with contextlib.suppress(RuntimeError):
                    self._kind.wait(slot.mark)

    def _all(self) -> "list[_Slot]":
        slots = [self._slots.get() for _ in range(_SLOTS)]
        for slot in slots:
            self._slots.put(slot)
        return slots


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    """Has a device that fails raise DeviceError, which ends no training: if it is broken the program finds out by itself."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise DeviceError(
            f"the GPU has no memory for what is gathered there of a copy of the state ({error}): leave it some, as by a smaller micro_batch"
        ) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error):
            raise  # This is the processor's.
        raise DeviceError(f"the GPU makes no copy of the state: {error}") from error


def _bytes(value: torch.Tensor, span: Elsewhere) -> torch.Tensor:
    """The bytes of a span of a value, as a tensor of the device that has the value."""
    plain = value.detach().contiguous().resolve_conj().resolve_neg()
    return plain.view(-1).view(torch.uint8)[span.low : span.high]


def _sources(pieces: Iterable[Piece]) -> Iterator[tuple[torch.Tensor, memoryview]]:
    """The bytes of each piece, on its device, and where they go. What a device has no room to put in order is copied here."""
    for piece in pieces:
        try:
            found = _bytes(piece.source.value, piece.source)
        except torch.cuda.OutOfMemoryError:
            # It lies in another order than in a file, and the device has no room for a second one.
            torch.frombuffer(piece.memory, dtype=torch.uint8).copy_(_bytes(piece.source.value.cpu(), piece.source))
            continue
        yield found, piece.memory
        del found


def _together(sources: Iterable[tuple[torch.Tensor, memoryview]]) -> Iterator[list[tuple[torch.Tensor, memoryview]]]:
    """The same, as many at a time as are gathered in one piece. A large one is divided."""
    some: list[tuple[torch.Tensor, memoryview]] = []
    size = 0
    for source, memory in sources:
        low = 0
        while low < len(source):
            high = min(len(source), low + _GATHERED - size)
            some.append((source[low:high], memory[low:high]))
            size, low = size + high - low, high
            if size == _GATHERED:
                yield some
                some, size = [], 0
        del source  # One that was put in order goes as soon as it is gathered.
    if some:
        yield some


def _start(room: Room) -> int:
    return torch.frombuffer(room, dtype=torch.uint8).data_ptr()
