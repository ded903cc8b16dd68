"""Learns which of four corners a point is nearest to. Lives on when its world changes."""

import os

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import TensorDataset

import concertina.torch as elastic

SAMPLES, BATCH = 2040, 120  # of all ranks together
EPOCHS = int(os.environ.get("EPOCHS", 12))
STEPS = EPOCHS * SAMPLES // BATCH


def points(count: int, seed: int) -> TensorDataset:
    x = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return TensorDataset(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())


device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu")

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(2, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))
net.to(device)
opt = torch.optim.Adam(net.parameters(), lr=0.002)
sched = CosineAnnealingLR(opt, STEPS)

job = elastic.join(state={"net": net, "opt": opt, "sched": sched}, seed=0)
for step in job.steps(points(SAMPLES, seed=1), global_batch=BATCH, epochs=EPOCHS):
    with step:
        for x, y in step.micro_batches():
            step.backward(F.cross_entropy(net(x.to(device)), y.to(device)))
        opt.step()
        sched.step()
        step.report(loss=step.loss)
    if step.committed and step.world.rank == 0:
        print(f"step {step.number}/{STEPS} loss {step.loss.item():.6f}", flush=True)

if job.world.rank == 0:
    x, y = points(1000, seed=2).tensors
    print(f"accuracy {(net(x.to(device)).argmax(1).cpu() == y).float().mean().item():.4f}", flush=True)
