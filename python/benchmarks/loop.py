"""What the loop of concertina.torch costs beside PyTorch alone, and beside DistributedDataParallel.

    python3 benchmarks/loop.py            # needs PyTorch; starts two ranks on this machine

sdk_cpu_us_per_step is the processor time of a step in the loop, with an agent, less that of the same step written by hand,
in one process: the loop, the transaction, the gate, random numbers, hooks and buckets of a model with 48 parameters of 16
numbers. Both are the best of many short turns, so that what else the machine does counts little. collectives_* and
bytes_* are what a step of one rank exchanges. step_over_ddp is the time of a step over that with
DistributedDataParallel, in two ranks that take turns between them, with a model whose exchange takes longer than its
steps.
"""

import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import concertina.torch as elastic  # noqa: E402
from tests.fakeagent import FakeAgent, world  # noqa: E402

TURNS = 15
SHORT_TURNS = 150
TINY = 20
"""Steps of the tiny model in a turn, which are over before the machine turns to something else."""
LARGE = 4
"""Steps of the large one."""


def tiny() -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(24)))


def large() -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(12)))


def data(width: int, samples: int) -> TensorDataset:
    return TensorDataset(torch.ones(samples, width), torch.zeros(samples, width))


class Turns:
    """Two ways to make the same step, which take turns."""

    def __init__(self, steps: int, clock: Callable[[], int]):
        self._steps, self._clock = steps, clock
        self.ours: list[float] = []
        self.others: list[float] = []

    def run(self, step: Callable[[], None], other: Callable[[], None]) -> None:
        """One turn of each; the first one warms up, and does not count."""
        for make, times in (step, self.ours), (other, self.others):
            if dist.is_initialized() and dist.get_world_size() > 1:
                dist.barrier()
            begin = self._clock()
            for _ in range(self._steps):
                make()
            times.append((self._clock() - begin) / self._steps)


def our_steps(net: torch.nn.Module, opt: torch.optim.Optimizer, training: TensorDataset, batch: int, steps: int) -> Iterator[None]:
    """Makes a step of the loop each time it is asked for one."""
    job = elastic.join(state={"net": net, "opt": opt}, backend="gloo")
    for step in job.steps(training, global_batch=batch, max_steps=steps):
        with step:
            for x, y in step.micro_batches():
                step.backward(F.mse_loss(net(x), y))
            opt.step()
            step.report(loss=step.loss)
        yield


def own_cost() -> tuple[float, float]:
    """Microseconds of processor time that the loop adds to a step, and those of the step by hand."""
    with FakeAgent(world(writer=False)) as agent:
        os.environ["CONCERTINA_SOCKET"] = agent.path
        agent.answers = {"finished": {"type": "end"}}
        nets = tiny(), tiny()
        opts = [torch.optim.SGD(net.parameters(), lr=0.01) for net in nets]
        training = data(4, 4096)
        loop = our_steps(nets[0], opts[0], training, 8, TINY * (SHORT_TURNS + 1))

        def by_hand() -> None:
            x, y = (tensor[list(range(8))] for tensor in training.tensors)
            opts[1].zero_grad(set_to_none=False)
            F.mse_loss(nets[1](x), y).backward()
            opts[1].step()

        turns = Turns(TINY, time.process_time_ns)
        for _ in range(SHORT_TURNS):
            turns.run(lambda: next(loop), by_hand)
        loop.close()
        del os.environ["CONCERTINA_SOCKET"]
        return (min(turns.ours) - min(turns.others)) / 1e3, min(turns.others) / 1e3


def beside_ddp() -> None:
    """A rank of two: prints what a step exchanges and how long it takes, ours and with DistributedDataParallel."""
    torch.manual_seed(1)
    net, training = large(), data(1024, 16)
    opt = torch.optim.SGD(net.parameters(), lr=0.001)
    counts = [0, 0]
    reduce = dist.all_reduce

    def counted(tensor: torch.Tensor, *args, **options):
        counts[:] = counts[0] + 1, counts[1] + tensor.nbytes
        return reduce(tensor, *args, **options)

    loop = our_steps(net, opt, training, 16, LARGE * TURNS + 2)
    next(loop)
    with mock.patch.object(dist, "all_reduce", counted):
        next(loop)
    lines = [f"collectives_ours {counts[0]} a step", f"bytes_ours {counts[1]} a step", *against(loop, training)]
    if dist.get_rank() == 0:
        print("\n".join(lines), flush=True)
    for _ in loop:
        pass  # Its end.


def against(loop: Iterator[None], training: TensorDataset) -> list[str]:
    """What DistributedDataParallel exchanges, and the times of both."""
    net = large()
    opt = torch.optim.SGD(net.parameters(), lr=0.001)
    x, y = (tensor[dist.get_rank() * 8 : dist.get_rank() * 8 + 8] for tensor in training.tensors)
    counts = [0, 0]
    count_ddp(net, x, y, counts)
    ddp = DistributedDataParallel(net)

    def with_ddp() -> None:
        opt.zero_grad()
        F.mse_loss(ddp(x), y).backward()
        opt.step()

    turns = Turns(LARGE, time.perf_counter_ns)
    for _ in range(TURNS):
        turns.run(lambda: next(loop), with_ddp)
    ours, others = statistics.median(turns.ours[1:]), statistics.median(turns.others[1:])
    return [
        f"collectives_ddp {counts[0]} a step",
        f"bytes_ddp {counts[1]} a step",
        f"step_ours_p50 {ours / 1e6:.1f} ms",
        f"step_ddp_p50 {others / 1e6:.1f} ms",
        f"step_over_ddp {ours / others:.3f} ratio",
    ]


def count_ddp(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, counts: list[int]) -> None:
    """Counts the buckets that it exchanges in a step once it has its last order of them."""

    def counted(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        counts[0] += 1
        counts[1] += bucket.buffer().nbytes
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0] / dist.get_world_size())

    ddp = DistributedDataParallel(net)
    ddp.register_comm_hook(None, counted)
    for _ in range(3):
        counts[:] = 0, 0
        F.mse_loss(ddp(x), y).backward()


def main() -> None:
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        beside_ddp()
        return
    print(f"load {os.getloadavg()[0]:.1f} before")
    own, by_hand = own_cost()
    print(f"by_hand_cpu_us_per_step {by_hand:.0f} us")
    print(f"sdk_cpu_us_per_step {own:.0f} us", flush=True)
    if "--alone" in sys.argv:
        return
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    env = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [subprocess.Popen([sys.executable, "-W", "ignore", __file__], env=env | {"RANK": str(rank)}) for rank in range(2)]
    failed = [rank.wait() for rank in ranks]
    print(f"load {os.getloadavg()[0]:.1f} after")
    sys.exit(max(failed))


main()
