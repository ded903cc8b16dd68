"""Learns handwritten digits, data-parallel, elastic the way torchrun is: with every change of the
world all processes start again, from a checkpoint file. It knows nothing of Concertina.

torchrun --nnodes=2:4 --nproc-per-node=1 --max-restarts=100 --rdzv-backend=c10d \\
    --rdzv-endpoint=HOST:PORT --rdzv-id=digits train_elastic_torchrun.py --checkpoint /shared/digits.pt
"""

import time

BEGIN = time.time_ns()

import argparse  # noqa: E402
import os  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import digits  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=60)
parser.add_argument("--global-batch", type=int, default=96, help="samples in a step, over all ranks")
parser.add_argument("--learning-rate", type=float, default=0.002)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--log-every", type=int, default=20, metavar="STEPS")
parser.add_argument("--step-seconds", type=float, default=0, help="least time of a step")
parser.add_argument("--ballast", type=int, default=0, metavar="MIB", help="make the checkpoint so much larger")
parser.add_argument("--step-times", action="store_true", help="print 'stamp ROUND STEP RANK BEGUN DONE' after each step, in nanoseconds of Unix time; a round is when its rank 0 began it")
parser.add_argument("--checkpoint", default="digits.pt", help="a file that every node sees")
parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
args = parser.parse_args()
if args.step_times:
    print(f"stamp import {BEGIN}", flush=True)

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
began = torch.tensor([time.time_ns()])
dist.broadcast(began, 0)

train_data, test_data = digits.load()
net = digits.network(args.seed)
ddp = DistributedDataParallel(net)
opt = torch.optim.Adam(net.parameters(), lr=args.learning_rate)
weights = digits.ballast(args.ballast)
state = {"net": net, "opt": opt, "ballast": weights}
per_epoch = -(-len(train_data) // args.global_batch)
total, done = args.epochs * per_epoch, 0


def load() -> int:
    """Restores the state; returns the number of steps that are in it."""
    if not os.path.exists(args.checkpoint):
        return 0
    saved = torch.load(args.checkpoint, weights_only=True)
    for name, thing in state.items():
        thing.load_state_dict(saved[name])
    return saved["step"]


def save(step: int) -> None:
    """Replaces the checkpoint, never leaving half of one."""
    part = f"{args.checkpoint}.part"
    torch.save({name: thing.state_dict() for name, thing in state.items()} | {"step": step}, part)
    os.replace(part, args.checkpoint)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's samples of a step, counted from 0."""
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(len(train_data), generator=torch.Generator().manual_seed(args.seed + epoch))
    numbers = order[place * args.global_batch : (place + 1) * args.global_batch][rank::size]
    return tuple(tensor[numbers] for tensor in train_data.tensors)


done = load()
while done < total:
    begin, begun = time.monotonic(), time.time_ns()
    x, y = batch(done)
    opt.zero_grad()
    loss = F.cross_entropy(ddp(x), y)
    loss.backward()
    opt.step()
    done += 1
    if args.step_times:
        print(f"stamp {began.item()} {done} {rank} {begun} {time.time_ns()}", flush=True)
    if rank == 0 and (done % args.log_every == 0 or done == total):
        print(f"step {done}/{total} loss {loss.item():.4f}", flush=True)
    if rank == 0 and done % args.checkpoint_every == 0:
        save(done)
    time.sleep(max(0, begin + args.step_seconds - time.monotonic()))

right = digits.correct(net, test_data, rank, size)
dist.all_reduce(right)
if rank == 0:
    print(f"test accuracy {right.item() / len(test_data):.4f}", flush=True)
dist.destroy_process_group()
