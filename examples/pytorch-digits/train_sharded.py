"""Learns handwritten digits with a model of which each rank has a shard: fully_shard() of PyTorch (FSDP2), with Concertina's SDK.

It runs as a TrainingJob, under torchrun, or alone: python3 train_sharded.py
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

import concertina.fsdp as elastic
import digits

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
parser.add_argument("--from-files", action="store_true", help="have no rank give others its rows over links: all come from snapshots")
parser.add_argument(
    "--ballast", type=int, default=0, metavar="MIB", help="make the state so much larger, with values that stay"
)
parser.add_argument(
    "--step-times", action="store_true", help="print 'stamp ROUND STEP RANK BEGUN DONE' after each step, in nanoseconds of Unix time"
)
args = parser.parse_args()

device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
options = {}
dtype = torch.float32
if device == "cpu":
    # Nobody shards a model for want of a processor's memory, and PyTorch has fully_shard() for devices. That of 2.6, which Debian has,
    # trains on processors only with whole parameters after the forward pass, in double precision, and with methods of streams
    # that it has of devices alone. With a GPU none of this is needed: leave it out of a program of yours.
    options["reshard_after_forward"] = False
    dtype = torch.float64
    if not hasattr(torch.cpu.Stream, "record_event"):
        torch.cpu.Stream.record_event = lambda self, event=None: torch.cpu.Event()
        torch.cpu.Stream.wait_event = lambda self, event: None
        torch.cuda.current_stream = torch.cpu.current_stream  # which it asks for after an evaluation


def build(mesh):
    """The model and its optimizer, sharded over the ranks of a world."""
    net = digits.network(args.seed).to(device, dtype)
    for layer in net[0], net[2], net[4]:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(net, mesh=mesh, **options)
    state = {"net": net, "opt": torch.optim.Adam(net.parameters(), lr=args.learning_rate)}
    if args.ballast:
        # No rank ever has all of it: memory is made for its rows alone.
        with torch.device("meta"):
            ballast = digits.ballast(args.ballast)
        state["ballast"] = fully_shard(ballast, mesh=mesh, **options).to_empty(device=device)
        torch.nn.init.ones_(ballast.values)
    return state


def in_place(data):
    """A data set's images as the model takes them."""
    x, y = data.tensors
    return torch.utils.data.TensorDataset(x.to(dtype), y)


train_data, test_data = (in_place(data) for data in digits.load())
job = elastic.join(seed=args.seed, handover=not args.from_files)
for world in job.worlds():
    state = build(job.mesh)
    net, opt = state["net"], state["opt"]
    loop = job.steps(
        train_data, state=state, global_batch=args.global_batch, micro_batch=args.micro_batch,
        epochs=args.epochs, evaluate="epoch",
    )  # fmt: skip
    for step in loop:
        with step:
            if step.evaluates:
                # All ranks go through the model equally often, since they gather its parameters together.
                right = digits.correct(net, test_data, world.rank, world.size)
                dist.all_reduce(right)
                accuracy = right.item() / len(test_data)
                step.report(accuracy=accuracy)
                if step.number == job.total_steps and world.rank == 0:
                    print(f"test accuracy {accuracy:.4f}", flush=True)
                continue
            begin, begun = time.monotonic(), time.time_ns()
            for x, y in step.micro_batches():
                step.backward(F.cross_entropy(net(x.to(device)), y.to(device)))
            opt.step()
            if step.number % args.log_every == 0 or step.number == job.total_steps:
                step.report(loss=step.loss)
                if world.rank == 0:
                    print(f"step {step.number}/{job.total_steps} loss {step.loss.item():.4f}", flush=True)
            if args.step_times:
                print(f"stamp {world.round} {step.number} {world.rank} {begun} {time.time_ns()}", flush=True)
            time.sleep(max(0, begin + args.step_seconds - time.monotonic()))
    del state, net, opt, loop  # the room is for the next world's
