"""A loop with DeepSpeed, elastic by a few lines."""

import os
import time

import deepspeed
import torch
from torch.utils.data import DataLoader, TensorDataset

import points
from concertina.batches import Batches
from concertina.checkpoints import Checkpoints
from concertina.stopping import join

options = points.arguments()
torch.manual_seed(0)
job = join(total_steps=points.STEPS)
deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
net = torch.nn.Sequential(torch.nn.Linear(points.FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
engine, *_ = deepspeed.initialize(
    model=net,
    model_parameters=net.parameters(),
    config={
        "train_batch_size": points.GLOBAL_BATCH,
        "train_micro_batch_size_per_gpu": points.GLOBAL_BATCH // int(os.environ.get("WORLD_SIZE", 1)),
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        # Stages above 0 divide the optimizer by ranks: their checkpoints go to another number of ranks as universal ones.
        "zero_optimization": {"stage": 0},
    },
)

checkpoints = Checkpoints(options.checkpoints)
step, path = checkpoints.newest()
if path:
    engine.load_checkpoint(path, tag="state")

data = TensorDataset(torch.arange(points.SAMPLES), torch.from_numpy(points.X), torch.from_numpy(points.Y))
batches = Batches(len(data), points.GLOBAL_BATCH, done=step)
loader = DataLoader(data, batch_sampler=batches)
while step < points.STEPS:
    for numbers, x, y in loader:
        begin = time.monotonic()
        loss = torch.nn.functional.cross_entropy(engine(x.to(engine.device)), y.to(engine.device))
        engine.backward(loss)
        engine.step()
        step += 1
        points.tell(step, loss, numbers)
        time.sleep(max(0, begin + options.step_seconds - time.monotonic()))
        stop = job.should_stop(step)
        if stop or step % options.every == 0:
            with checkpoints.saving(step, barrier=deepspeed.comm.barrier) as path:
                engine.save_checkpoint(path, tag="state")
        if stop:
            job.exit()
deepspeed.comm.destroy_process_group()
