"""A plain program for torchrun, with checkpoints of its own. It knows nothing of Concertina.

torchrun --rdzv-backend=concertina torchrun_loop.py
"""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import points

options = points.arguments()
torch.manual_seed(0)
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
net = torch.nn.Sequential(torch.nn.Linear(points.FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
ddp, opt = DistributedDataParallel(net), torch.optim.Adam(net.parameters(), lr=0.01)
x, y = torch.from_numpy(points.X), torch.from_numpy(points.Y)

checkpoint, step = os.path.join(options.checkpoints, "newest.pt"), 0
os.makedirs(options.checkpoints, exist_ok=True)
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint, weights_only=True)
    net.load_state_dict(saved["net"])
    opt.load_state_dict(saved["opt"])
    step = saved["step"]

per_epoch = points.SAMPLES // points.GLOBAL_BATCH
while step < points.STEPS:
    begin = time.monotonic()
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(points.SAMPLES, generator=torch.Generator().manual_seed(epoch))
    numbers = order[place * points.GLOBAL_BATCH : (place + 1) * points.GLOBAL_BATCH][rank::size]
    loss = torch.nn.functional.cross_entropy(ddp(x[numbers]), y[numbers])
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    points.tell(step, loss, numbers)
    time.sleep(max(0, begin + options.step_seconds - time.monotonic()))
    if rank == 0 and step % options.every == 0:
        torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "step": step}, checkpoint + ".part")
        os.replace(checkpoint + ".part", checkpoint)
dist.destroy_process_group()
