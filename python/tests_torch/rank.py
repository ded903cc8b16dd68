"""One rank of a world, for the tests: trains a small model and prints what it found as JSON.

Arguments: the size of the data set (TEST_SAMPLES, where it is set), the global batch, the micro-batch, and the step
that fails on rank 1 (0: none).
"""

import json
import os
import sys
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import concertina.torch as elastic

n, global_batch, micro_batch, fail_at = (int(argument) for argument in sys.argv[1:])
n = int(os.environ.get("TEST_SAMPLES", n))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def model() -> torch.nn.Module:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2)).double()


def main() -> None:
    net = model()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    job = elastic.join({"net": net, "opt": opt}, seed=5)
    found = {"gradients": [], "losses": []}
    reduce = mock.Mock(side_effect=dist.all_reduce)
    with mock.patch.object(dist, "all_reduce", reduce):
        for step in job.steps(data(), epochs=2, global_batch=global_batch, micro_batch=micro_batch):
            with step:
                found.update(rank=dist.get_rank(), size=dist.get_world_size(), backend=dist.get_backend())
                if step.number == fail_at and step.world.rank == 1:
                    raise ArithmeticError("rank 1 had to fail")
                for x, y in step.micro_batches():
                    step.backward(F.cross_entropy(net(x), y))
                found["gradients"].append(torch.cat([p.grad.flatten() for p in net.parameters()]).tolist())
                found["losses"].append(step.loss.item())
                opt.step()
    found.update(exchanges=reduce.call_count, steps=job.total_steps, group_left=not dist.is_initialized())
    print(json.dumps(found))


main()
