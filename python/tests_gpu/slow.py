"""A program for the tests, of which rank 1 works longer in each step than the others. Arguments: steps."""

import json
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import concertina.torch as elastic

device = torch.device(os.environ["TEST_DEVICE"])
backend = os.environ["TEST_BACKEND"]
if backend == "nccl":  # It refuses two ranks on one device of one machine.
    os.environ["NCCL_HOSTID"] = str(os.getpid())


def work(milliseconds: int) -> None:
    """Has the device compute for about so long; the program itself goes on."""
    if device.type == "cuda":
        torch.cuda._sleep(milliseconds * 1_500_000)
    else:
        time.sleep(milliseconds / 1000)


def main() -> None:
    steps = int(sys.argv[1])
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.001)
    data = TensorDataset(torch.ones(400, 64))
    job = elastic.join({"net": net, "opt": opt}, backend=backend)
    for step in job.steps(data, global_batch=4, max_steps=steps):
        with step:
            work(40 if step.world.rank == 1 else 5)
            for (x,) in step.micro_batches():
                step.backward(F.mse_loss(net(x.to(device)), torch.zeros(len(x), 1, device=device)))
            opt.step()
        print(json.dumps({"step": step.number, "at": time.time_ns()}), flush=True)


main()
