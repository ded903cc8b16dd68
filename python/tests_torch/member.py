"""A member of a world that changes, for the tests: trains a small model, prints the loss of each
step and when it ended, as JSON lines.

Arguments: epochs, MiB of ballast in the state, workers of the data loader, seconds of a step.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import concertina.torch as elastic

epochs, ballast, workers, seconds = (float(argument) for argument in sys.argv[1:])


def tell(**what) -> None:
    print(json.dumps(what | {"at": time.time_ns()}), flush=True)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(230, 5, generator=generator)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def main() -> None:
    torch.manual_seed(2)
    net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    weight = torch.nn.ParameterList([torch.ones(int(ballast * 2**18))])
    run = elastic.Run(
        state={"net": net, "opt": opt, "ballast": weight}, epochs=int(epochs), global_batch=20, micro_batch=8, seed=5
    )
    training = run.loader(data(), num_workers=int(workers)) if workers else data()

    def train(world):
        ddp = DistributedDataParallel(net)
        tell(world=world.round, rank=dist.get_rank(), size=dist.get_world_size(), done=run._done)
        for _ in run.epochs():
            for step in run.steps(training):
                begin = time.monotonic()
                opt.zero_grad()
                loss = torch.zeros(())
                for (x, y), weight in step.micro_batches(ddp):
                    part = weight * F.cross_entropy(ddp(x), y)
                    part.backward()
                    loss += part.detach()
                if os.path.exists(f"{os.environ['TEST_DIR']}/hang-{step.number}-{world.rank}"):
                    os.unlink(f"{os.environ['TEST_DIR']}/hang-{step.number}-{world.rank}")
                    tell(hanging=step.number)
                    dist.recv(torch.zeros(1), src=0)
                dist.all_reduce(loss)
                opt.step()
                tell(step=step.number, loss=loss.item() / world.size, pid=os.getpid())
                time.sleep(max(0, begin + seconds - time.monotonic()))

    run(train)
    tell(end=True, parameters=[p.sum().item() for p in net.parameters()])


main()
