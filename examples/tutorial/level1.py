"""Learns which of four corners a point is nearest to. Stops, saves and goes on where it was."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from concertina.batches import Batches
from concertina.checkpoints import Checkpoints
from concertina.stopping import join

SAMPLES, BATCH = 2040, 120  # of all ranks together
EPOCHS = int(os.environ.get("EPOCHS", 12))
STEPS = EPOCHS * SAMPLES // BATCH


def points(count: int, seed: int) -> TensorDataset:
    x = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return TensorDataset(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
if device.type == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(2, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))
net.to(device)
opt = torch.optim.Adam(net.parameters(), lr=0.002)
sched = CosineAnnealingLR(opt, STEPS)
ddp = DistributedDataParallel(net)

job = join(total_steps=STEPS)
state = {"net": net, "opt": opt, "sched": sched}
checkpoints = Checkpoints("checkpoints")
step, path = checkpoints.newest()
if path:
    saved = torch.load(path, map_location=device, weights_only=True)
    for name, thing in state.items():
        thing.load_state_dict(saved[name])

data = points(SAMPLES, seed=1)
loader = DataLoader(data, batch_sampler=Batches(len(data), BATCH, done=step))

while step < STEPS:
    for x, y in loader:
        loss = F.cross_entropy(ddp(x.to(device)), y.to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        step += 1
        if rank == 0:
            print(f"step {step}/{STEPS} loss {loss.item():.6f}", flush=True)
        stop = job.should_stop(step)
        if stop or step % 50 == 0:
            with checkpoints.saving(step, dist.barrier) as path:
                if rank == 0:
                    torch.save({name: thing.state_dict() for name, thing in state.items()}, path)
        if stop:
            job.exit()

if rank == 0:
    x, y = points(1000, seed=2).tensors
    print(f"accuracy {(net(x.to(device)).argmax(1).cpu() == y).float().mean().item():.4f}", flush=True)
dist.destroy_process_group()
