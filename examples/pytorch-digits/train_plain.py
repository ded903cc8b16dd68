"""Learns handwritten digits, data-parallel, with PyTorch alone: it knows nothing of Concertina.

It runs wherever RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, for example:
torchrun --nproc-per-node=2 train_plain.py
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import digits

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=60)
parser.add_argument("--batch", type=int, default=48, help="samples in a step, per rank")
parser.add_argument("--learning-rate", type=float, default=0.002)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--log-every", type=int, default=20, metavar="STEPS")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

train_data, test_data = digits.load()
net = digits.network(args.seed)
ddp = DistributedDataParallel(net)
opt = torch.optim.Adam(net.parameters(), lr=args.learning_rate)
sampler = DistributedSampler(train_data, seed=args.seed)
loader = DataLoader(train_data, batch_size=args.batch, sampler=sampler)
total, step = args.epochs * len(loader), 0

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        step += 1
        opt.zero_grad()
        loss = F.cross_entropy(ddp(x), y)
        loss.backward()
        opt.step()
        if rank == 0 and (step % args.log_every == 0 or step == total):
            print(f"step {step}/{total} loss {loss.item():.4f}", flush=True)

right = digits.correct(net, test_data, rank, size)
dist.all_reduce(right)
if rank == 0:
    print(f"test accuracy {right.item() / len(test_data):.4f}", flush=True)
dist.destroy_process_group()
