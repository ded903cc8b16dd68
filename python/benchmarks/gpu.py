"""What the SDK costs on a GPU: python3 benchmarks/gpu.py [loop] [groups] [MIB …] prints `name value unit` lines, of one process
with one GPU.

staging_SIZE is how fast a snapshot's copy comes from the device, and d2h_SIZE the same of a plain copy of as many bytes into pinned
memory. stall_SIZE is what a program that goes ahead of its device loses by a snapshot: windows of a few steps with one take turns
with windows without; forward and backward of a step take as long as that copy or longer. asks_SIZE is what its own thread does for
one, which is lost where the device has nothing to do meanwhile. stall_with_file_SIZE waits for the file at the end of a window,
which no training does.
restore_SIZE is a load of the snapshot's file into the tensors of the device, and h2d_SIZE a plain copy from pinned memory.
step_over_ddp: a step of the loop over one with DistributedDataParallel, taking turns, NCCL with one rank, by which each bucket goes.
sdk_cpu_us_per_step: the processor time of a step of the loop, with an agent, less that of the same step by hand.
reform: from the end of a group to the first exchange of the next one in the same process, and abort_reform the same from its abort.
"""

import functools
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

try:
    import torch
except ImportError:
    sys.exit(f"bench-gpu: {sys.executable} has no PyTorch: name a Python that has one, make bench-gpu PYTHON=…")
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

import concertina.torch as elastic  # noqa: E402
from stall import KEPT, Folder  # noqa: E402
from concertina import gradients, keeper  # noqa: E402
from concertina.groups import Groups  # noqa: E402
from concertina.tensors import InPlace, TensorCodec  # noqa: E402
from concertina.world import Assignment, World, from_environment  # noqa: E402
from tests.fakeagent import FakeAgent, world  # noqa: E402

DEVICE = os.environ.get("TEST_DEVICE", "cuda")
BACKEND = "nccl" if DEVICE == "cuda" else "gloo"
WINDOW = 4
"""Steps of a window with one snapshot."""
PAIRS = 10
SHORT, LONG = (60, 20), (12, 8)
"""Turns, and steps of each, of a small network and of a large one."""


def sync() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(action: Callable[[], object]) -> float:
    """Seconds, with what it leaves to the device."""
    sync()
    begin = time.perf_counter()
    action()
    sync()
    return time.perf_counter() - begin


def best(action: Callable[[], object], times: int = 5) -> float:
    return min(timed(action) for _ in range(times))


class Agent(Folder):
    """One of a world that nobody changes."""

    asked = None

    def __init__(self, path: str):
        super().__init__(path)
        self.gate = mock.Mock()


class Training:
    """A linear network and its Adam, of so many MiB together, on the device."""

    def __init__(self, mib: int):
        width = 1024 if mib < 512 else 2048
        layers = max(1, round(mib * 2**20 / (12 * (width * width + width))))
        self.net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to(DEVICE)
        self.opt = torch.optim.Adam(self.net.parameters(), fused=DEVICE == "cuda")
        self.batch = torch.randn(64, width, device=DEVICE)
        self.step()
        tensors = [p.detach() for p in self.net.parameters()] + [v for s in self.opt.state.values() for v in s.values()]
        self.bytes = sum(t.nbytes for t in tensors)
        self.flat = torch.empty(self.bytes, dtype=torch.uint8, device=DEVICE)
        self.pinned = torch.empty(self.bytes, dtype=torch.uint8, pin_memory=DEVICE == "cuda")
        self.pinned.zero_()
        self.d2h = best(lambda: self.pinned.copy_(self.flat, non_blocking=True))
        self.h2d = best(lambda: self.flat.copy_(self.pinned, non_blocking=True))
        pageable = torch.zeros(self.bytes, dtype=torch.uint8)
        self.pageable = best(lambda: pageable.copy_(self.flat), 2)
        del self.flat, self.pinned
        while timed(self.gradients) < self.d2h:
            self.batch = torch.randn(2 * len(self.batch), width, device=DEVICE)

    def gradients(self) -> None:
        self.opt.zero_grad(set_to_none=True)
        self.net(self.batch).square().mean().backward()

    def step(self) -> None:
        self.gradients()
        self.opt.step()

    def window(self, take: Callable[[], None] | None, settle: Callable[[], None]) -> float:
        def steps() -> None:
            self.step()
            if take:
                take()
            for _ in range(WINDOW - 1):
                self.step()

        return timed(steps) + timed(settle)


def staging(mib: int, memory: str) -> Iterator[tuple[str, float, str]]:
    """What a snapshot costs, and what it takes to load one."""
    need, free = (KEPT + 2) * mib * 2**20, shutil.disk_usage(memory).free
    if free < need:
        sys.exit(
            f"bench-gpu: {memory} has {free // 2**20} MiB left, the snapshots of a state of {mib} MiB take {need // 2**20}: make room "
            'there, or take smaller states, as by BENCH_ARGS="loop groups 64"'
        )
    training = Training(mib)
    name = f"{mib // 1024}gib" if mib >= 1024 else f"{mib}mib"
    size = training.bytes
    agent = Agent(tempfile.mkdtemp(dir=memory))
    codec = TensorCodec(lambda: [training.net])
    state = {"net": training.net, "opt": InPlace(training.opt)}
    kept = keeper.Keeper(state, codec, lambda: {"step": step})
    kept.begin(agent, 1, Assignment(from_environment({}), restore=False, snapshot="", writer=True, listener=None))
    hook = register_optimizer_step_pre_hook(lambda *_: kept.fence())
    step = 1
    kept.consider(step)
    copies, callings = [], []

    def take() -> None:
        nonlocal step
        step += 1
        begin = time.perf_counter()
        kept.consider(step)
        callings.append(time.perf_counter() - begin)

    for _ in range(KEPT + 1):
        training.window(take, kept._join)
    with_one, without = [], []
    callings.clear()
    pairs = max(4, min(PAIRS, 10 * 1024 // mib))
    for _ in range(pairs):
        with_one.append(training.window(take, kept._join))
        without.append(training.window(None, kept._join))
    stall = statistics.median(with_one) - statistics.median(without)
    hidden = []
    for _ in range(pairs):  # what training alone waits for: the file is written behind it, in the time of later steps
        sync()
        hidden.append((training_alone(training, take), training_alone(training, None)))
        kept._join()
    lost = statistics.median(a for a, _ in hidden) - statistics.median(b for _, b in hidden)
    for _ in range(5):
        image = kept.image()
        room = kept._memory_of(image.away, near=DEVICE == "cuda")
        copies.append(timed(lambda: image.bring(room)))
    path = agent.held[-1]
    loads = [timed(lambda: kept.load(path)) for _ in range(4)]
    load = statistics.median(loads[1:])
    hook.remove()
    yield f"state_{name}", size / 2**20, "MiB"
    yield f"d2h_{name}", size / training.d2h / 1e9, "GB/s"
    yield f"d2h_pageable_{name}", size / training.pageable / 1e9, "GB/s"
    yield f"staging_{name}", size / min(copies) / 1e9, "GB/s"
    yield f"step_{name}", statistics.median(without) / WINDOW * 1e3, "ms"
    yield f"asks_{name}", statistics.median(callings) * 1e3, "ms"
    yield f"asks_over_d2h_{name}", statistics.median(callings) / training.d2h, "ratio"
    yield f"stall_{name}", lost * 1e3, "ms"
    yield f"stall_over_d2h_{name}", lost / training.d2h, "ratio"
    yield f"stall_with_file_{name}", stall * 1e3, "ms"
    yield f"stall_with_file_over_d2h_{name}", stall / training.d2h, "ratio"
    yield f"h2d_{name}", size / training.h2d / 1e9, "GB/s"
    yield f"restore_{name}", load * 1e3, "ms"
    yield f"restore_over_h2d_{name}", load / training.h2d, "ratio"
    shutil.rmtree(agent.snapshots)


def training_alone(training: Training, take: Callable[[], None] | None) -> float:
    """Seconds of a window, without what is left to be done behind it."""

    def steps() -> None:
        training.step()
        if take:
            take()
        for _ in range(WINDOW - 1):
            training.step()

    return timed(steps)


def our_steps(net: torch.nn.Module, data: TensorDataset, batch: int, steps: int, exchanges: bool) -> Iterator[None]:
    """Makes a step of the loop each time it is asked for one."""
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    begin = gradients.Gradients.begin
    as_many = (lambda self, samples, among: begin(self, samples, among._replace(size=2))) if exchanges else begin
    with mock.patch.object(gradients.Gradients, "begin", as_many):
        job = elastic.join(state={"net": net, "opt": opt}, backend=BACKEND)
        for step in job.steps(data, global_batch=batch, max_steps=steps):
            with step:
                for x, y in step.micro_batches():
                    step.backward(F.mse_loss(net(x), y))
                opt.step()
                step.report(loss=step.loss)
            yield


def by_hand(net: torch.nn.Module, model: torch.nn.Module, data: TensorDataset, batch: int) -> Callable[[], None]:
    opt = torch.optim.SGD(net.parameters(), lr=0.01)

    def step() -> None:
        x, y = (tensor[list(range(batch))] for tensor in data.tensors)
        opt.zero_grad(set_to_none=False)
        F.mse_loss(model(x), y).backward()
        opt.step()

    return step


def turns(
    ours: Callable[[], object], other: Callable[[], object], clock: Callable[[], int], count: int, steps: int
) -> tuple[list[float], list[float]]:
    """Nanoseconds of a step of each; the first turn warms up."""
    found: tuple[list[float], list[float]] = [], []
    for _ in range(count):
        for make, times in zip((ours, other), found, strict=True):
            sync()
            begin = clock()
            for _ in range(steps):
                make()
            sync()
            times.append((clock() - begin) / steps)
    return found[0][1:], found[1][1:]


def loops() -> Iterator[tuple[str, float, str]]:
    """What the loop costs."""
    for large in False, True:
        width, batch = (4096, 4096) if large else (4, 8)
        layers = 6 if large else 24
        if DEVICE == "cpu":
            width, batch = min(width, 64), 8
        data = TensorDataset(torch.randn(4 * batch, width, device=DEVICE), torch.zeros(4 * batch, width, device=DEVICE))
        nets = [torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to(DEVICE) for _ in range(2)]
        with FakeAgent(world(writer=False)) as agent, mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": agent.path}):
            count, steps = LONG if large else SHORT
            loop = our_steps(nets[0], data, batch, steps * count + 1, exchanges=large)
            next(loop)  # It makes the group.
            model = DistributedDataParallel(nets[1]) if large else nets[1]
            step = by_hand(nets[1], model, data, batch)
            ours, others = turns(lambda: next(loop), step, time.perf_counter_ns if large else time.process_time_ns, count, steps)
            del model
            for _ in loop:
                pass
        if large:
            a, b = statistics.median(ours), statistics.median(others)
            yield "step_ours_p50", a / 1e6, "ms"
            yield "step_ddp_p50", b / 1e6, "ms"
            yield "step_over_ddp", a / b, "ratio"
        else:
            yield "by_hand_cpu_us_per_step", min(others) / 1e3, "us"
            yield "sdk_cpu_us_per_step", (min(ours) - min(others)) / 1e3, "us"


def reforming() -> Iterator[tuple[str, float, str]]:
    """What another group takes in the same process."""
    groups = Groups(BACKEND)
    times: dict[str, list[float]] = {name: [] for name in ("form", "leave", "reform", "abort", "leave_aborted", "abort_reform")}
    told = torch.ones(1, device=DEVICE)
    for number in range(1, 17):
        alone = World(1, number, 0, 0, 1, 0, 1, 0, 1, "127.0.0.1", 1)

        def form() -> None:
            groups.form(alone, None, lambda: False)
            dist.all_reduce(told)

        times["form"].append(timed(form))
        if number % 2:
            times["leave"].append(timed(groups.leave))
            times["reform"].append(times["form"][-1] + times["leave"][-1])
        else:
            times["abort"].append(timed(groups.abort))
            times["leave_aborted"].append(timed(groups.leave))
            times["abort_reform"].append(times["form"][-1] + times["abort"][-1] + times["leave_aborted"][-1])
    yield "form_first", times["form"][0], "s"
    for name, seconds in times.items():
        yield f"{name}_p50", statistics.median(seconds[1:]), "s"


def main() -> None:
    if DEVICE == "cuda" and not torch.cuda.is_available():
        sys.exit(f"bench-gpu: PyTorch {torch.__version__} sees no GPU on this machine: run it on one that has one")
    print(f"# PyTorch {torch.__version__} on {torch.cuda.get_device_name() if DEVICE == 'cuda' else DEVICE}", flush=True)
    wanted = sys.argv[1:] or ["loop", "groups", "64", "1024", "4096"]
    for part in wanted:
        figures = {"loop": loops, "groups": reforming}.get(part) or functools.partial(staging, int(part), "/dev/shm")
        for name, value, unit in figures():
            print(f"{name} {value:.4g} {unit}", flush=True)


main()
