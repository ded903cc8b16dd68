"""Learns handwritten digits, data-parallel, with PyTorch alone but for five lines: it is started anew when the world
changes, and is told before that when to save.

torchrun --nproc-per-node=2 train_stopping.py --checkpoint /tmp/digits.pt

Each worker keeps a checkpoint in a folder of its own. Whoever has the newest hands it to the others.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import concertina
import digits

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=60)
parser.add_argument("--global-batch", type=int, default=96, help="samples in a step, over all ranks")
parser.add_argument("--learning-rate", type=float, default=0.002)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--log-every", type=int, default=20, metavar="STEPS")
parser.add_argument("--step-seconds", type=float, default=0, help="least time of a step")
parser.add_argument("--checkpoint", default="digits.pt", help="a file that outlives the processes of a worker")
parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
args = parser.parse_args()

job = concertina.join()
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

train_data, test_data = digits.load()
net = digits.network(args.seed)
opt = torch.optim.Adam(net.parameters(), lr=args.learning_rate)
per_epoch = -(-len(train_data) // args.global_batch)
total = args.epochs * per_epoch


def save(step: int) -> None:
    """Replaces the worker's checkpoint, never leaving half of one."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        part = f"{args.checkpoint}.part"
        torch.save({"step": step, "net": net.state_dict(), "opt": opt.state_dict()}, part)
        os.replace(part, args.checkpoint)


def resume() -> int:
    """Restores the newest checkpoint of all workers on every rank; returns the number of steps that are in it."""
    mine = {"step": 0}
    if os.path.exists(args.checkpoint):
        mine = torch.load(args.checkpoint, weights_only=True)
    steps = [torch.zeros((), dtype=torch.int64) for _ in range(size)]
    dist.all_gather(steps, torch.tensor(mine["step"]))
    newest = max(range(size), key=lambda peer: steps[peer])
    found = [mine]
    dist.broadcast_object_list(found, src=newest)
    if found[0]["step"]:
        net.load_state_dict(found[0]["net"])
        opt.load_state_dict(found[0]["opt"])
    return found[0]["step"]


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's samples of a step, counted from 0: the order depends on the epoch alone."""
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(len(train_data), generator=torch.Generator().manual_seed(args.seed + epoch))
    numbers = order[place * args.global_batch : (place + 1) * args.global_batch][rank::size]
    return tuple(tensor[numbers] for tensor in train_data.tensors)


done = resume()
ddp = DistributedDataParallel(net)
while done < total:
    begin = time.monotonic()
    x, y = batch(done)
    opt.zero_grad()
    loss = F.cross_entropy(ddp(x), y)
    loss.backward()
    opt.step()
    done += 1
    if rank == 0 and (done % args.log_every == 0 or done == total):
        print(f"step {done}/{total} loss {loss.item():.4f}", flush=True)
    if done % args.checkpoint_every == 0:
        save(done)
    if job.should_stop(done):
        save(done)
        job.exit()
    time.sleep(max(0, begin + args.step_seconds - time.monotonic()))

job.finished()
right = digits.correct(net, test_data, rank, size)
dist.all_reduce(right)
if rank == 0:
    print(f"test accuracy {right.item() / len(test_data):.4f}", flush=True)
dist.destroy_process_group()
