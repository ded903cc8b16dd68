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
job = elastic.join(state={"net": net, "opt": opt, "ballast": digits.ballast(args.ballast)}, seed=args.seed)
loop = job.steps(
    train_data, global_batch=args.global_batch, micro_batch=args.micro_batch, epochs=args.epochs, evaluate="epoch"
)  # fmt: skip

for step in loop:
    with step:
        rank, size = step.world.rank, step.world.size
        if step.evaluates:
            right = digits.correct(net, test_data, rank, size)
            dist.all_reduce(right)
            accuracy = right.item() / len(test_data)
            step.report(accuracy=accuracy)
            if step.number == job.total_steps and rank == 0:
                print(f"test accuracy {accuracy:.4f}", flush=True)
            continue
        begin, begun = time.monotonic(), time.time_ns()
        for x, y in step.micro_batches():
            step.backward(F.cross_entropy(net(x.to(device)), y.to(device)))
        opt.step()
        if step.number % args.log_every == 0 or step.number == job.total_steps:
            step.report(loss=step.loss)
            if rank == 0:
                print(f"step {step.number}/{job.total_steps} loss {step.loss.item():.4f}", flush=True)
        if args.step_times:
            print(f"stamp {step.world.round} {step.number} {rank} {begun} {time.time_ns()}", flush=True)
        time.sleep(max(0, begin + args.step_seconds - time.monotonic()))
