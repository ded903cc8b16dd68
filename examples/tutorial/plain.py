"""Learns which of four corners a point is nearest to. A plain program: torchrun --nproc-per-node=2 plain.py"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

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

data = points(SAMPLES, seed=1)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=BATCH // size, sampler=sampler)

step = 0
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(ddp(x.to(device)), y.to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        step += 1
        if rank == 0:
            print(f"step {step}/{STEPS} loss {loss.item():.6f}", flush=True)

if rank == 0:
    x, y = points(1000, seed=2).tensors
    print(f"accuracy {(net(x.to(device)).argmax(1).cpu() == y).float().mean().item():.4f}", flush=True)
dist.destroy_process_group()
