"""What training loses by a snapshot of a PyTorch state, beside what else keeps one:

    python3 benchmarks/stall.py [MIB] [FOLDER ON A DISK] [PAIRS]

Windows of a few steps with one snapshot take turns with windows without any; a figure is the median of the differences,
and so has in it what goes on in the background. A step's forward and backward take at least twice as long as a copy of the
state. PyTorch has one thread; a second core, where there is one, is to spare, and in the lines with one_core it is not. Those with
cpu are differences of processor time, which others on the machine change little.

barrier is what a snapshot before a change of the world takes, for which training stands still, and restore_memory what it takes to go
back to one that the own node has, beside cat of the same file.
"""

import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402

from concertina import keeper  # noqa: E402
from concertina.tensors import TensorCodec  # noqa: E402
from concertina.world import Assignment, from_environment  # noqa: E402

WINDOW = 3
"""Steps of a window."""
KEPT = 2
"""Snapshots that an agent keeps."""


class Cost(NamedTuple):
    """Seconds by the clock, and of processors, in all threads."""

    wall: float
    cpu: float


class Folder:
    """Stands for the agent: it takes a file over as soon as it is told of it, and leaves what that pushes out to be written over."""

    interval = 1e-9  # a snapshot is due whenever it is asked for
    asked = None  # whoever writes writes all of it
    gate = types.SimpleNamespace(phase=lambda phase: phase)

    def __init__(self, path: str):
        self.snapshots = path
        self.taken = 0
        self.held: list[str] = []

    def put(self, what: str, *, step: int, file: str = "", error: str = "", **_) -> None:
        if not file:
            self.snapshot_failed(step, error)
        self.taken += 1
        self.held.append(os.path.join(self.snapshots, file))
        if len(self.held) > KEPT:
            os.rename(self.held.pop(0), os.path.join(self.snapshots, "spare-0.part"))

    def push(self) -> None:
        pass

    say = put

    def snapshot_failed(self, step: int, why: str) -> None:
        raise SystemExit(f"the snapshot of step {step} failed: {why}")


class Training:
    """A linear network and its Adam, of so many MiB together."""

    def __init__(self, mib: int):
        self.net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(max(1, mib // 12))))
        self.opt = torch.optim.Adam(self.net.parameters())
        self.batch = torch.randn(1, 1024)
        self.step()
        flat = self.large()
        self.bytes = sum(t.numel() * t.element_size() for t in flat)
        room = [torch.empty_like(t) for t in flat]
        self.memcpy = min(timed(lambda: [a.copy_(b) for a, b in zip(room, flat, strict=True)]) for _ in range(5))
        while timed(self.gradients) < 2 * self.memcpy:
            self.batch = torch.randn(2 * len(self.batch), 1024)

    def _tensors(self) -> list[torch.Tensor]:
        state = self.opt.state.values()
        return [p.detach() for p in self.net.parameters()] + [v for s in state for v in s.values()]

    def large(self) -> list[torch.Tensor]:
        return [t for t in self._tensors() if t.numel() > 1]

    def gradients(self) -> None:
        self.opt.zero_grad(set_to_none=True)
        self.net(self.batch).square().mean().backward()

    def step(self) -> None:
        self.gradients()
        self.opt.step()

    def state(self) -> dict:
        return {"net": self.net.state_dict(), "opt": self.opt.state_dict()}

    def window(self, snapshot: Callable[[], None] | None, settle: Callable[[], None]) -> Cost:
        """What a window costs, and nothing goes on behind it."""

        def steps() -> None:
            self.step()
            if snapshot:
                snapshot()
            for _ in range(WINDOW - 1):
                self.step()

        used = time.process_time()
        took = timed(steps) + timed(settle)
        return Cost(took, time.process_time() - used)

    def stall(self, snapshot: Callable[[], None], settle: Callable[[], None], pairs: int) -> Cost:
        """What a snapshot costs. What has not ended with the window is waited for, and counts."""
        for _ in range(KEPT + 1):
            self.window(snapshot, settle)
        with_one, without = [], []
        for _ in range(pairs):
            with_one.append(self.window(snapshot, settle))
            without.append(self.window(None, settle))
        return Cost(*(statistics.median(a) - statistics.median(b) for a, b in zip(zip(*with_one), zip(*without))))


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def keeps(training: Training, agent: Folder) -> keeper.Keeper:
    """One that keeps the training's state, and has begun."""
    kept = keeper.Keeper({"net": training.net, "opt": training.opt}, TensorCodec(), lambda: {"step": 1})
    kept.begin(agent, 1, Assignment(from_environment({}), restore=False, snapshot="", writer=True, listener=None))
    kept.consider(1)
    return kept


def ours(training: Training, memory: str, pairs: int) -> Cost:
    agent = Folder(tempfile.mkdtemp(dir=memory))
    kept = keeps(training, agent)
    step = 1

    def snapshot() -> None:
        nonlocal step
        step += 1
        kept.consider(step)

    took = training.stall(snapshot, kept._join, pairs)
    if agent.taken != pairs + KEPT + 1:
        raise SystemExit(f"{agent.taken} snapshots were taken, and {pairs + KEPT + 1} were due")
    shutil.rmtree(agent.snapshots)
    return took


class Still(NamedTuple):
    """Seconds for which training stands still, and beside them those of a plain copy of the state, and of cat for the same file."""

    barrier: float
    restore: float
    copy: float
    cat: float


def barrier(training: Training, memory: str, times: int) -> Still:
    """Medians of what a barrier's snapshot takes, and of what it takes to go back to it, in turns with what stands beside them. The
    first ones find no room that they could write over, and do not count."""
    agent = Folder(tempfile.mkdtemp(dir=memory))
    kept = keeps(training, agent)
    kept._join()
    flat = training.large()
    room = [torch.empty_like(t) for t in flat]
    saved, loaded, copied, read = [], [], [], []
    for _ in range(KEPT + 1 + times):
        training.step()
        saved.append(timed(lambda: kept.save(1)))
        loaded.append(timed(lambda: kept.load(agent.held[-1])))
        copied.append(timed(lambda: [a.copy_(b) for a, b in zip(room, flat, strict=True)]))
        read.append(timed(lambda: subprocess.run(["cat", agent.held[-1]], stdout=subprocess.DEVNULL, check=True)))
    shutil.rmtree(agent.snapshots)
    return Still(*(statistics.median(all[KEPT + 1 :]) for all in (saved, loaded, copied, read)))


def torch_save(training: Training, disk: str, pairs: int) -> Cost:
    path = os.path.join(disk, "state.pt")
    return training.stall(lambda: torch.save(training.state(), path), lambda: None, pairs)


def async_save(training: Training, disk: str, pairs: int) -> Cost:
    """torch.distributed.checkpoint, asynchronous, with the pinned or shared staging buffers that it has where it has them."""
    where, pending = os.path.join(disk, "dcp"), []

    def snapshot() -> None:
        shutil.rmtree(where, ignore_errors=True)
        pending.append(dcp.async_save(training.state(), checkpoint_id=where))

    def settle() -> None:
        while pending:
            pending.pop().result()

    return training.stall(snapshot, settle, pairs)


def main() -> None:
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    disk = tempfile.mkdtemp(dir=sys.argv[2] if len(sys.argv) > 2 else None)
    pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    training = Training(mib)
    name = f"{mib // 1024}gib" if mib >= 1024 else f"{mib}mib"
    copy = training.memcpy
    print(f"state_{name} {training.bytes / 2**20:.0f} MiB")
    print(f"memcpy_{name} {copy * 1000:.1f} ms")
    stall = ours(training, "/dev/shm", pairs)
    print(f"stall_{name} {stall.wall * 1000:.1f} ms")
    print(f"snapshot_cpu_{name} {stall.cpu * 1000:.1f} ms")
    print(f"stall_over_memcpy_{name} {stall.wall / copy:.2f} ratio")
    still = barrier(training, "/dev/shm", max(3, pairs // 2))
    print(f"barrier_over_memcpy_{name} {still.barrier / still.copy:.2f} ratio")
    print(f"restore_memory_{name} {still.restore * 1000:.1f} ms")
    print(f"restore_memory_over_cat_{name} {still.restore / still.cat:.2f} ratio")
    saved = torch_save(training, disk, max(3, pairs // 4))
    print(f"torchsave_cpu_{name} {saved.cpu * 1000:.1f} ms")
    print(f"torchsave_over_stall_{name} {saved.wall / max(stall.wall, 1e-4):.1f} ratio")
    staged = async_save(training, disk, max(3, pairs // 4))
    print(f"dcp_cpu_{name} {staged.cpu * 1000:.1f} ms")
    print(f"dcp_over_stall_{name} {staged.wall / max(stall.wall, 1e-4):.1f} ratio")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    crowded = ours(training, "/dev/shm", max(3, pairs // 2))
    print(f"stall_over_memcpy_{name}_one_core {crowded.wall / copy:.2f} ratio")
    shutil.rmtree(disk)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
