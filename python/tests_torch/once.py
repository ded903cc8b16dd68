"""A member of a world that changes, for the tests of which samples count: trains on data with numbers, and prints which of them its rank
uses in each step, as the ledger of the end-to-end tests reads it.

Arguments: shards of a stream (0: the data has a length), epochs, and a file: as long as it is there a step takes a tenth of a second.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import concertina.torch as elastic

SHARDS, EPOCHS, SLOW = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
SAMPLES, BATCH = 110, 20
"""Six steps are an epoch, the last of them a smaller one; so a change often meets an end or an evaluation."""


def data() -> TensorDataset:
    x = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return TensorDataset(x, (x.sum(dim=1) > 0).long(), torch.arange(SAMPLES))


def part(shard: int, epoch: int):
    """The samples of a shard: the more the higher its number is, and the first has none."""
    first, end = (SAMPLES * n * n // SHARDS**2 for n in (shard, shard + 1))
    whole = data()
    yield from (whole[number] for number in range(first if shard else end, end))
    if shard == SHARDS - 1:
        yield from (whole[number] for number in range(SAMPLES // SHARDS**2))


def wait() -> None:
    if os.path.exists(SLOW):
        time.sleep(0.1)


def tell(step, numbers: list[int]) -> None:
    at = f"round={step.world.round} step={step.number} epoch={step.epoch} rank={step.world.rank}"
    print(f"ledger {at} ids={','.join(map(str, numbers))}", flush=True)
    wait()


def main() -> None:
    torch.manual_seed(2)
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    job = elastic.join({"net": net, "opt": opt}, seed=5)
    seen = job.values(evaluations=0)
    training = elastic.Stream(part, shards=SHARDS) if SHARDS else data()
    for step in job.steps(training, epochs=EPOCHS, global_batch=BATCH, micro_batch=8, evaluate="epoch"):
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
            numbers, own = [], sum(piece.samples for piece in step._pieces)
            if not own:
                tell(step, numbers)
            for x, y, places in step.micro_batches():
                numbers += places.tolist()
                if len(numbers) == own:  # The exchange is next: who is killed after it has used them too.
                    tell(step, numbers)
                step.backward(F.cross_entropy(net(x), y))
            opt.step()
            loss = step.loss.item()
        if step.committed and not step.evaluates and rank == 0:
            print(f"step {step.number}/{6 * EPOCHS} loss {loss:.12g}", flush=True)
    print(f"{seen.evaluations} evaluations in the end", flush=True)


if __name__ == "__main__":
    main()
