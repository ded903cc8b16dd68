"""A member of a world that changes, for the tests of which samples count: trains on data with numbers, and prints which of them its rank
uses in each step, as the ledger of the end-to-end tests reads it.

These put it into a pod beside tests_torch.sharded, so it imports nothing else of the tests.
"""

import argparse
import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import concertina.fsdp
import concertina.torch
from tests_torch import sharded

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--samples", type=int, default=110)
parser.add_argument("--stream", type=int, default=0, metavar="SHARDS", help="the data is a stream of so many shards, and has no length")
parser.add_argument("--sharded", action="store_true", help="each rank has a shard of the state, and no rank all of it")
parser.add_argument("--ballast", type=int, default=0, metavar="MIB", help="make the state so much larger, with values that stay")
parser.add_argument("--step-seconds", type=float, default=0, help="how much longer a step takes")
parser.add_argument("--slow-while", metavar="FILE", help="as long as it is there a step takes a tenth of a second longer")
args = parser.parse_args()

BATCH = 20
"""Of 110 samples six steps are an epoch, the last of them a smaller one; so a change often meets an end or an evaluation."""


def data() -> TensorDataset:
    x = torch.randn(args.samples, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return TensorDataset(x, (x.sum(dim=1) > 0).long(), torch.arange(args.samples))


def part(shard: int, epoch: int):
    """The samples of a shard: the more the higher its number is, and the first has none."""
    first, end = (args.samples * n * n // args.stream**2 for n in (shard, shard + 1))
    whole = data()
    yield from (whole[number] for number in range(first if shard else end, end))
    if shard == args.stream - 1:
        yield from (whole[number] for number in range(args.samples // args.stream**2))


class Ballast(torch.nn.Module):
    """Values that nobody trains, and each world has to have as they were."""

    def __init__(self):
        super().__init__()
        rows = args.ballast << 7
        self.values = torch.nn.Parameter(torch.arange(rows << 10, dtype=torch.float64).view(rows, 1 << 10), requires_grad=False)

    def check(self) -> None:
        values = self.values.full_tensor() if args.sharded else self.values
        if not torch.equal(values.flatten(), torch.arange(values.numel(), dtype=torch.float64)):
            raise AssertionError("the ballast is another one")


def build(mesh=None) -> dict:
    """What is trained; in shards over a mesh."""
    torch.manual_seed(2)
    state = {"net": sharded.build()["net"]} | ({"ballast": Ballast()} if args.ballast else {})
    if mesh:
        sharded.shard(state["net"], mesh)
        if args.ballast:
            fully_shard(state["ballast"], mesh=mesh)
    return state | {"opt": torch.optim.SGD(state["net"].parameters(), lr=0.05, momentum=0.9)}


def wait() -> None:
    slow = args.slow_while and os.path.exists(args.slow_while)
    time.sleep(args.step_seconds + 0.1 * bool(slow))


def tell(step, numbers: list[int]) -> None:
    at = f"round={step.world.round} step={step.number} epoch={step.epoch} rank={step.world.rank}"
    print(f"ledger {at} ids={','.join(map(str, numbers))}", flush=True)
    wait()


def batches(step) -> Iterator[list[torch.Tensor]]:
    """A step's micro-batches. It is told of before the last exchange: who is killed after that has used the samples too."""
    numbers, own = [], sum(piece.samples for piece in step._pieces)
    if not own:
        tell(step, numbers)
    for x, y, places in step.micro_batches():
        if len(numbers) < own:  # A rank that has fewer computes along with the others, and uses no sample more.
            numbers += places.tolist()
            if len(numbers) == own:
                tell(step, numbers)
        yield x, y


def train(job, state, steps, seen) -> None:
    """Makes the steps: all of the training, or those of one world."""
    net, opt = state["net"], state["opt"]
    for step in steps:
        rank, size = step.world.rank, step.world.size
        with step:
            if step.evaluates:
                seen.evaluations += 1
                x, y, _ = (tensor[rank::size] for tensor in data().tensors)
                with torch.no_grad():
                    right = (net(x).argmax(dim=1) == y).sum()
                wait()
                if size > 1:
                    dist.all_reduce(right)
                print(f"evaluation {step.epoch} of {seen.evaluations}: {right} right", flush=True)
                continue
            for x, y in batches(step):
                step.backward(F.cross_entropy(net(x), y))
            opt.step()
            loss = step.loss.item()
        if step.committed and not step.evaluates and rank == 0:
            print(f"step {step.number}/{-(-args.samples // BATCH) * args.epochs} loss {loss:.12g}", flush=True)


def main() -> None:
    state = {} if args.sharded else build()
    job = concertina.fsdp.join(seed=5) if args.sharded else concertina.torch.join(state, seed=5)
    seen = job.values(evaluations=0)

    @job.on_change
    def begin(change) -> None:
        if not change.world.rank:
            print(f"round {change.world.round}: {change.world.size} ranks, {args.samples} samples to train with", flush=True)
        if args.ballast:
            state["ballast"].check()

    plan = {"epochs": args.epochs, "global_batch": BATCH, "micro_batch": 8, "evaluate": "epoch"}
    training = concertina.torch.Stream(part, shards=args.stream) if args.stream else data()
    if args.sharded:
        for _ in job.worlds():
            state.clear()
            state.update(build(job.mesh))
            train(job, state, job.steps(training, state=state, **plan), seen)
    else:
        train(job, state, job.steps(training, **plan), seen)
    print(f"{seen.evaluations} evaluations in the end", flush=True)


if __name__ == "__main__":
    main()
