"""A process of a worker that shares a model with the others of it, in worlds that change, for the tests: trains it, and prints what the
tests compare, as JSON lines.

Arguments: how they share it, "shards" with fully_shard(), or "tensors" that they compute together, with parallelize_module(); and how many
MiB of ballast each process has in its state, 0 by default. It computes at the place that place.py says.
"""

import hashlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import concertina.torch as elastic
from tests_torch import place, stops
from tests_torch.sharded import data, tell

STEPS = {"epochs": 2, "global_batch": 7, "micro_batch": 2, "evaluate": "epoch"}
"""With 4 ranks some compute less than others."""


def build() -> dict:
    torch.manual_seed(2)
    net = torch.nn.Sequential(torch.nn.Linear(5, 11), torch.nn.LayerNorm(11), torch.nn.Tanh(), torch.nn.Linear(11, 3))
    return {name: module.double().to(place.device()) for name, module in (("net", net), ("beside", torch.nn.Linear(3, 2)))}


def share(modules: dict, mesh) -> None:
    net = modules["net"]
    for layer in net[0], net[3]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(net, mesh=mesh, reshard_after_forward=False)


def compute_together(modules: dict, mesh, last: str = "3", how=None) -> None:
    """last: the name of the layer behind the norm, and how it is shared if not as usual."""
    # Each process normalises some of the samples, so the norm's gradients are sums of which each has a part. From layer to layer go
    # DTensors, which know their shape: of a plain tensor PyTorch takes the parts of the others for as large as that of each process.
    outer = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0), use_local_output=False)
    inner = ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate())
    parallelize_module(modules["net"], mesh, {"0": outer, "1": SequenceParallel(sequence_dim=0), last: how or inner})


class Ballast(torch.nn.Module):
    """What nobody computes with, and each step changes."""

    def __init__(self, mebibytes: int, processes: int):
        super().__init__()
        rows = torch.arange(mebibytes * processes * 256 + 1, dtype=torch.float64)
        self.weight = torch.nn.Parameter(rows.outer(torch.arange(512, dtype=torch.float64)), requires_grad=False)

    @torch.no_grad()
    def change(self) -> None:
        self.weight.add_(1)


def load(how: str, mebibytes: int, mesh) -> dict:
    """Ballast in shards, and some that each process has whole."""
    if not mebibytes:
        return {}
    apart, whole = Ballast(mebibytes, mesh.size()), Ballast(1, 2)
    if how == "shards":
        fully_shard(apart, mesh=mesh, reshard_after_forward=False)
    else:
        apart.weight = torch.nn.Parameter(distribute_tensor(apart.weight.detach(), mesh, [Shard(1)]), requires_grad=False)
    return {"apart": apart, "whole": whole}


def optimizers(modules: dict) -> dict:
    opt = torch.optim.Adam(modules["net"].parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + step / 20))
    return {"opt": opt, "schedule": schedule, "opt2": torch.optim.Adam(modules["beside"].parameters(), lr=0.01)}


def train(step, state: dict) -> float:
    for x, y in step.micro_batches():
        x, y = x.to(place.device()), y.to(place.device())
        tokens = 1 + x[:, 0].gt(0)  # of each sample, without its padding
        losses = F.cross_entropy(state["beside"](state["net"](x)), y, reduction="none")
        step.backward((losses * tokens).sum() / tokens.sum(), weight=tokens.sum())
    for name in "opt", "schedule", "opt2":
        state[name].step()
    for ballast in (thing for thing in state.values() if isinstance(thing, Ballast)):
        ballast.change()
    return step.loss.item()


def mine(state: dict) -> str:
    """The same for processes with the same bits."""
    found = hashlib.sha256()
    for module, opt in (state["net"], state["opt"]), (state["beside"], state["opt2"]):
        for parameter in module.parameters():
            moments = opt.state.get(parameter, {})
            for tensor in parameter.detach(), *(moments[name] for name in sorted(moments)):
                found.update(getattr(tensor, "_local_tensor", tensor).contiguous().cpu().numpy().tobytes())
    return found.hexdigest()


def all_of_mine(state: dict) -> str:
    """mine() with the ballast."""
    found = hashlib.sha256(mine(state).encode())
    for ballast in (thing for thing in state.values() if isinstance(thing, Ballast)):
        weight = ballast.weight.detach()
        found.update(getattr(weight, "_local_tensor", weight).contiguous().cpu().numpy().data)
    return found.hexdigest()


def hold(step) -> None:
    """Stays in an evaluation for good where the test wants it of this rank."""
    if os.path.exists(os.path.join(os.environ["TEST_DIR"], f"hold-{step.world.rank}")):
        tell(holds=step.number)
        signal.pause()


def main() -> None:
    place.share_one_device()
    stops.in_handovers(tell)
    mesh = elastic.local_mesh(backend=place.backend())
    state = build()
    how, ballast = sys.argv[1], int((*sys.argv[2:], 0)[0])
    (share if how == "shards" else compute_together)(state, mesh)
    state |= optimizers(state) | load(how, ballast, mesh)
    job = elastic.join(state, seed=5, mesh=mesh)
    world = None
    for step in job.steps(data(), **STEPS):
        with step:
            if step.world is not world:
                world = step.world
                together = how == "tensors"
                assert step.dealt == ((world.worker_rank, world.workers) if together else (world.rank, world.size)), step.dealt
                tell(world=world.round, size=world.size, rank=world.rank, done=job._place.step, state=all_of_mine(state))
            if step.evaluates:
                hold(step)
                with torch.no_grad():
                    rows = data().tensors[0].to(place.device())
                    seen = state["net"](rows).shape[:1].numel() * torch.ones(1, device=rows.device)
                dist.all_reduce(seen, group=job.group)
                assert seen.item() == 110 * world.size
                continue
            drawn = torch.rand(()).item()
            loss = train(step, state)
        if step.committed and not step.evaluates:
            tell(step=step.number, loss=loss, drawn=drawn, pid=os.getpid(), state=mine(state))
        time.sleep(0.02)
    tell(end=True)


if __name__ == "__main__":
    main()
