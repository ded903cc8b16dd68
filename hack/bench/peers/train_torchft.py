"""Learns handwritten digits, data-parallel, with torchft: the same training as examples/pytorch-digits, for a bench.

MEMBER is this member's number, TORCHFT_LIGHTHOUSE where the lighthouse is. A member is a replica of one process.
"""

import argparse
import datetime
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import digits


class Store(dist.TCPStore):
    """A store without libuv, which Debian's PyTorch lacks: torchft leaves that to the default."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options, use_libuv=False)


dist.TCPStore = Store

import torchft  # noqa: E402


class Group(torchft.ProcessGroupGloo):
    """torchft's group without the names that it gives to gloo's for recordings: PyTorch before 2.7 has no place for them."""

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        group, kind = dist.ProcessGroup(store, rank, world_size), dist.ProcessGroup.BackendType.GLOO
        group._set_default_backend(kind)
        backend = dist.ProcessGroupGloo(store, rank, world_size, self._timeout)
        backend._set_sequence_number_for_group()
        group._register_backend(torch.device("cpu"), kind, backend)
        return group


class Replicas(torchft.DistributedDataParallel):
    """torchft's module, which ends the program if a peer dies in the middle of an exchange: that step is tried again here."""

    @staticmethod
    def _comm_hook(state: torchft.Manager, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = state.allreduce(bucket.buffer())
        work.wait()
        done = getattr(work.get_future(), "_fut", None)
        if done is None:
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
        return done


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=60)
parser.add_argument("--global-batch", type=int, default=96)
parser.add_argument("--log-every", type=int, default=20, metavar="STEPS")
parser.add_argument("--step-seconds", type=float, default=0, help="least time of a step")
parser.add_argument("--ballast", type=int, default=0, metavar="MIB", help="make the state so much larger")
parser.add_argument("--step-times", action="store_true", help="print a stamp after each step; a round is a quorum")
args = parser.parse_args()
number = int(os.environ["MEMBER"])

train_data, _ = digits.load()
net = digits.network(0)
opt = torch.optim.Adam(net.parameters(), lr=0.002)
state = {"net": net, "opt": opt, "ballast": digits.ballast(args.ballast)}


def load(saved: dict) -> None:
    """Takes over the state of another member."""
    for name, thing in state.items():
        thing.load_state_dict(saved[name])


store = Store("127.0.0.1", 0, is_master=True, wait_for_workers=False)
manager = torchft.Manager(
    pg=Group(timeout=datetime.timedelta(seconds=30)),
    load_state_dict=load,
    state_dict=lambda: {name: thing.state_dict() for name, thing in state.items()},
    min_replica_size=2,
    replica_id=f"member-{number}",
    rank=0,
    world_size=1,
    store_addr="127.0.0.1",
    store_port=store.port,
    hostname="127.0.0.1",
)
ddp = Replicas(manager, net)
opt = torchft.Optimizer(manager, opt)
per_epoch = -(-len(train_data) // args.global_batch)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This member's samples of a step, as many as one of two has."""
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(len(train_data), generator=torch.Generator().manual_seed(epoch))
    numbers = order[place * args.global_batch : (place + 1) * args.global_batch][number % 2 :: 2]
    return tuple(tensor[numbers] for tensor in train_data.tensors)


while (step := manager.current_step()) < args.epochs * per_epoch:
    begin, begun = time.monotonic(), time.time_ns()
    x, y = batch(step)
    opt.zero_grad()
    loss = F.cross_entropy(ddp(x), y)
    loss.backward()
    opt.step()
    # The step counts if it was committed: otherwise it is tried again.
    if args.step_times and manager.current_step() > step:
        print(f"stamp {manager._quorum_id} {manager.current_step()} 0 {begun} {time.time_ns()}", flush=True)
    if manager.current_step() % args.log_every == 0:
        print(f"step {manager.current_step()} loss {loss.item():.4f}", flush=True)
    time.sleep(max(0, begin + args.step_seconds - time.monotonic()))
