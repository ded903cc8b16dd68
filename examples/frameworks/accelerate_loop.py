"""A loop with Accelerate, elastic by a few lines."""

import os
import time

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from torch.utils.data import DataLoader, TensorDataset

import points
from concertina.batches import Batches
from concertina.checkpoints import Checkpoints
from concertina.stopping import join

options = points.arguments()
torch.manual_seed(0)
job = join(total_steps=points.STEPS)
# Without a name it is MPI on processors, where PyTorch has that, and each rank would train alone. Outside of a world
# Accelerate makes no group, and fails where a backend is named.
group = InitProcessGroupKwargs(backend="nccl" if torch.cuda.is_available() else "gloo")
accelerator = Accelerator(cpu=not torch.cuda.is_available(), kwargs_handlers=[group] if "WORLD_SIZE" in os.environ else [])
net = torch.nn.Sequential(torch.nn.Linear(points.FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
net, opt = accelerator.prepare(net, torch.optim.Adam(net.parameters(), lr=0.01))

checkpoints = Checkpoints(options.checkpoints)
step, path = checkpoints.newest()
if path:
    accelerator.load_state(path)

data = TensorDataset(torch.arange(points.SAMPLES), torch.from_numpy(points.X), torch.from_numpy(points.Y))
batches = Batches(len(data), points.GLOBAL_BATCH, done=step)
loader = DataLoader(data, batch_sampler=batches)  # not prepared: it is dealt out already
while step < points.STEPS:
    for numbers, x, y in loader:
        begin = time.monotonic()
        loss = torch.nn.functional.cross_entropy(net(x.to(accelerator.device)), y.to(accelerator.device))
        opt.zero_grad()
        accelerator.backward(loss)
        opt.step()
        step += 1
        points.tell(step, loss, numbers)
        time.sleep(max(0, begin + options.step_seconds - time.monotonic()))
        stop = job.should_stop(step)
        if stop or step % options.every == 0:
            with checkpoints.saving(step, barrier=accelerator.wait_for_everyone) as path:
                accelerator.save_state(path)
        if stop:
            job.exit()
accelerator.end_training()
