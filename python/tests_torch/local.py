"""A process of a worker that shares a model with the others of it, in worlds that change, for the tests: trains it, and prints what the
tests compare, as JSON lines.
"""

import hashlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

import concertina.torch as elastic
from tests_torch.sharded import data, tell

STEPS = {"epochs": 2, "global_batch": 7, "micro_batch": 2, "evaluate": "epoch"}
"""With 4 ranks some compute less than others."""


def build() -> dict:
    torch.manual_seed(2)
    net = torch.nn.Sequential(torch.nn.Linear(5, 11), torch.nn.LayerNorm(11), torch.nn.Tanh(), torch.nn.Linear(11, 3)).double()
    return {"net": net, "beside": torch.nn.Linear(3, 2).double()}


def share(modules: dict, mesh) -> None:
    net = modules["net"]
    for layer in net[0], net[3]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(net, mesh=mesh, reshard_after_forward=False)


def optimizers(modules: dict) -> dict:
    opt = torch.optim.Adam(modules["net"].parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + step / 20))
    return {"opt": opt, "schedule": schedule, "opt2": torch.optim.Adam(modules["beside"].parameters(), lr=0.01)}


def train(step, state: dict) -> float:
    for x, y in step.micro_batches():
        tokens = 1 + x[:, 0].gt(0)  # of each sample, without its padding
        losses = F.cross_entropy(state["beside"](state["net"](x)), y, reduction="none")
        step.backward((losses * tokens).sum() / tokens.sum(), weight=tokens.sum())
    for name in "opt", "schedule", "opt2":
        state[name].step()
    return step.loss.item()


def mine(state: dict) -> str:
    """The same for processes with the same bits."""
    found = hashlib.sha256()
    for module, opt in (state["net"], state["opt"]), (state["beside"], state["opt2"]):
        for parameter in module.parameters():
            moments = opt.state.get(parameter, {})
            for tensor in parameter.detach(), *(moments[name] for name in sorted(moments)):
                found.update(getattr(tensor, "_local_tensor", tensor).contiguous().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    mesh = elastic.local_mesh()
    state = build()
    share(state, mesh)
    state |= optimizers(state)
    job = elastic.join(state, seed=5, mesh=mesh)
    world = None
    for step in job.steps(data(), **STEPS):
        with step:
            if step.world is not world:
                world = step.world
                tell(world=world.round, size=world.size, rank=world.rank, done=job._place.step, state=mine(state))
            if step.evaluates:
                with torch.no_grad():
                    seen = state["net"](data().tensors[0]).shape[:1].numel() * torch.ones(1)
                dist.all_reduce(seen, group=job.group)
                assert seen.item() == 110 * world.size
                continue
            loss = train(step, state)
        if step.committed and not step.evaluates:
            tell(step=step.number, loss=loss, pid=os.getpid(), state=mine(state))
        time.sleep(0.02)
    tell(end=True)


if __name__ == "__main__":
    main()
