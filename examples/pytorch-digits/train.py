"""Learns handwritten digits, data-parallel, with Concertina's SDK.

It runs as a TrainingJob, under torchrun, or alone: python3 train.py
"""

import time

BEGIN = time.time_ns()

import argparse  # noqa: E402
import os  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import concertina.torch as elastic  # noqa: E402
import digits  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=60)
parser.add_argument("--global-batch", type=int, default=96, help="samples in a step, over all ranks")
parser.add_argument("--micro-batch", type=int, default=48, help="samples that a rank computes at once")
parser.add_argument("--learning-rate", type=float, default=0.002)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--log-every", type=int, default=20, metavar="STEPS")
parser.add_argument(
    "--step-seconds", type=float, default=0, help="least time of a step, to watch a tiny model train like a large one"
)
parser.add_argument(
    "--ballast", type=int, default=0, metavar="MIB", help="make the state so much larger, with values that stay"
)
parser.add_argument(
    "--step-times", action="store_true", help="print 'stamp ROUND STEP RANK BEGUN DONE' after each step, in nanoseconds of Unix time"
)
args = parser.parse_args()
if args.step_times:
    print(f"stamp import {BEGIN}", flush=True)

device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
train_data, test_data = digits.load()
net = digits.network(args.seed).to(device)
opt = torch.optim.Adam(net.parameters(), lr=args.learning_rate)
run = elastic.Run(
    state={"net": net, "opt": opt, "ballast": digits.ballast(args.ballast)},
    epochs=args.epochs,
    global_batch=args.global_batch,
    micro_batch=args.micro_batch,
    seed=args.seed,
)


def train(world):
    ddp = DistributedDataParallel(net)  # for this world's ranks
    for _ in run.epochs():
        for step in run.steps(train_data):
            begin, begun = time.monotonic(), time.time_ns()
            opt.zero_grad()
            loss = torch.zeros((), device=device)
            for (x, y), weight in step.micro_batches(ddp):
                part = weight * F.cross_entropy(ddp(x.to(device)), y.to(device))
                part.backward()
                loss += part.detach()
            show(world, step, loss)  # Before the update: a rank that is lost meanwhile costs no step.
            opt.step()
            if args.step_times:
                print(f"stamp {world.round} {step.number} {world.rank} {begun} {time.time_ns()}", flush=True)
            time.sleep(max(0, begin + args.step_seconds - time.monotonic()))
    with run.evaluating():
        right = digits.correct(net, test_data, world.rank, world.size)
        run.poll()  # The world may change here as well; then evaluation starts over.
        dist.all_reduce(right)
    accuracy = right.item() / len(test_data)
    run.report(accuracy=accuracy)
    if world.rank == 0:
        print(f"test accuracy {accuracy:.4f}", flush=True)


def show(world, step, loss):
    """Prints and reports the loss of the whole batch, now and then."""
    if step.number % args.log_every and step.number != run.total_steps:
        return
    dist.all_reduce(loss)
    loss = loss.item() / world.size
    step.report(loss=loss)
    if world.rank == 0:
        print(f"step {step.number}/{run.total_steps} loss {loss:.4f}", flush=True)


run(train)
