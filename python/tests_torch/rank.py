"""One rank of a world, for the tests: trains a small model and prints what it found as JSON.

Arguments: the size of the data set, the global batch, the micro-batch, and the step that fails on
rank 1 (0: none).
"""

import json
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import concertina.torch as elastic

n, global_batch, micro_batch, fail_at = (int(argument) for argument in sys.argv[1:])


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def model() -> torch.nn.Module:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2)).double()


class Exchanges(DistributedDataParallel):
    """Counts the micro-batches in which gradients were exchanged."""

    count = 0

    def forward(self, *args):
        self.count += self.require_backward_grad_sync
        return super().forward(*args)


def main() -> None:
    net = model()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    run = elastic.Run(epochs=2, global_batch=global_batch, micro_batch=micro_batch, seed=5)
    found = {"gradients": []}

    def train(world):
        ddp = Exchanges(net)
        found.update(rank=dist.get_rank(), size=dist.get_world_size(), backend=dist.get_backend())
        for _ in run.epochs():
            for step in run.steps(data()):
                if step.number == fail_at and world.rank == 1:
                    raise ArithmeticError("rank 1 had to fail")
                opt.zero_grad()
                for (x, y), weight in step.micro_batches(ddp):
                    (weight * F.cross_entropy(ddp(x), y)).backward()
                gradient = torch.cat([p.grad.flatten() for p in net.parameters()])
                found["gradients"].append(gradient.tolist())
                opt.step()
        found.update(exchanges=ddp.count, steps=run.total_steps)

    run(train)
    found.update(group_left=not dist.is_initialized())
    print(json.dumps(found))


main()
