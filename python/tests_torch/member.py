"""A member of a world that changes, for the tests: trains a small model, prints the loss of each
step and when it ended, as JSON lines.

Arguments: epochs, MiB of ballast in the state, workers of the data loader, seconds of a step, shards of a stream (0: the
data has a length). It computes at the place that place.py says.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import concertina.torch as elastic
from tests_torch import place, stops

epochs, ballast, workers, seconds, shards = (float(argument) for argument in sys.argv[1:])
device, backend = place.device(), place.backend()
exchanged = device if backend == "nccl" else torch.device("cpu")
place.share_one_device()


def tell(**what) -> None:
    print(json.dumps(what | {"at": time.time_ns()}), flush=True)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(230, 5, generator=generator)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def part(shard: int, epoch: int):
    """The samples of a shard, which is the longer the higher its number; with their numbers in all of the data."""
    last = shard == int(shards) - 1
    first, end = ((n * (n + 1) // 2 * 10) for n in (shard, shard + 1))
    for number in range(first, 230 if last else end):
        yield *data()[number], number


def main() -> None:
    torch.manual_seed(2)
    stops.in_handovers(tell)
    net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + step / 20))
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, growth_interval=7)
    ema = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    weight = torch.nn.ParameterList([torch.ones(int(ballast * 2**18), device=device)])
    state = {"net": net, "opt": opt, "schedule": schedule, "scaler": scaler, "ema": ema, "ballast": weight}
    job = elastic.join(state, seed=5, backend=backend)
    best = job.values(epochs=0, right=0)
    training, world = elastic.Loader(data(), num_workers=int(workers)) if workers else data(), None
    if shards:
        training = elastic.Stream(part, shards=int(shards))
    for step in job.steps(training, epochs=int(epochs), global_batch=20, micro_batch=8, evaluate="epoch"):
        with step:
            if step.world is not world:
                world = step.world
                tell(world=world.round, rank=dist.get_rank(), size=dist.get_world_size(), done=job._place.step)
            if step.evaluates:
                right = correct(ema, world)
                best.epochs, best.right = best.epochs + 1, max(best.right, right)
                tell(evaluated=step.epoch, right=right)
                continue
            begin = time.monotonic()
            hang = f"{os.environ['TEST_DIR']}/hang-{step.number}-{world.rank}"
            if os.path.exists(hang):
                os.unlink(hang)
                tell(hanging=step.number)
                dist.recv(torch.zeros(1, device=exchanged), src=0)
            for x, y, *numbers in step.micro_batches():
                if numbers:  # Who is killed after the exchange has used them too.
                    tell(uses=numbers[0].tolist(), in_step=step.number, epoch=step.epoch, round=world.round)
                step.backward(scaler.scale(F.cross_entropy(net(x.to(device)), y.to(device))))
            loss = step.loss.item() / scaler.get_scale()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            scaler.step(opt)
            scaler.update()
            schedule.step()
            ema.update_parameters(net)
            tell(step=step.number, loss=loss, pid=os.getpid())
            time.sleep(max(0, begin + seconds - time.monotonic()))
    found = [p.sum().item() for p in (*net.parameters(), *ema.parameters())]
    tell(end=True, parameters=found, rate=schedule.get_last_lr()[0], scale=scaler.get_scale(), evaluations=best.epochs)


@torch.no_grad()
def correct(model, world) -> int:
    """How many samples of all a model gets right; each rank looks at its part."""
    x, y = (tensor[world.rank :: world.size].to(device) for tensor in data().tensors)
    right = (model(x).argmax(dim=1) == y).sum().to(exchanged)
    dist.all_reduce(right)
    return int(right)


main()
