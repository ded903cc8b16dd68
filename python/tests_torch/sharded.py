"""A member of a world that changes, whose model is sharded with fully_shard(), for the tests: trains it, and prints what the tests
compare, as JSON lines.

Arguments: what is odd about the state ("", "narrow": alone it is of another shape, "columns": it is not sharded by rows,
"unnamed": over no mesh that is named, "reused": that of the last world is overwritten, "frugal": it is let go of) or the SDK ("older": it knows nothing of
handovers), and how many epochs it trains.
"""

import gc
import hashlib
import json
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.data import TensorDataset

import concertina.fsdp as elastic
from concertina.export import export
from tests_torch import stops

ODD = sys.argv[1] if __name__ == "__main__" else ""
STEPS = {"epochs": 2, "global_batch": 6, "micro_batch": 2, "evaluate": "epoch"}
"""With 8 ranks some have no samples."""

if not hasattr(torch.cpu.Stream, "record_event"):  # fully_shard() of PyTorch 2.6 wants more of processors than they have there.
    torch.cpu.Stream.record_event = lambda self, event=None: torch.cpu.Event()
    torch.cpu.Stream.wait_event = lambda self, event: None
    if not torch.cuda.is_available():
        torch.cuda.current_stream = torch.cpu.current_stream  # after a forward pass without a backward one


def tell(**what) -> None:
    print(json.dumps(what | {"at": time.time_ns()}), flush=True)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(110, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def build(width: int = 11) -> dict[str, torch.nn.Module]:
    """A model of which one layer is not sharded. No number of ranks divides the rows of the others, and some have fewer than there
    are ranks."""
    net = torch.nn.Sequential(torch.nn.Linear(5, width), torch.nn.LayerNorm(width), torch.nn.Tanh(), torch.nn.Linear(width, 3))
    return {"net": net.double(), "beside": torch.nn.Linear(3, 2).double()}


def shard(net: torch.nn.Module, mesh) -> None:
    # Only so does PyTorch 2.6 train on processors.
    options = {"mesh": mesh, "reshard_after_forward": False}
    if ODD == "columns":
        options["shard_placement_fn"] = lambda parameter: Shard(parameter.dim() - 1)
    for layer in net[0], net[1], net[3]:
        fully_shard(layer, **options)
    fully_shard(net, **options)


def optimizers(modules: dict[str, torch.nn.Module]) -> dict:
    opt = torch.optim.Adam(modules["net"].parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + step / 20))
    return {"opt": opt, "schedule": schedule, "opt2": torch.optim.Adam(modules["beside"].parameters(), lr=0.01)}


def train(step, state: dict) -> float:
    """Makes a step; its loss."""
    net, beside = state["net"], state["beside"]
    for x, y in step.micro_batches():
        step.backward(F.cross_entropy(beside(net(x)), y))
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    for name in "opt", "schedule", "opt2":
        state[name].step()
    return step.loss.item()


def digest(state: dict) -> str:
    """The same for states with the same bits. All ranks call it."""
    found = hashlib.sha256()
    for module, opt in (state["net"], state["opt"]), (state["beside"], state["opt2"]):
        for parameter in module.parameters():
            moments = opt.state.get(parameter, {})
            for tensor in parameter.detach(), *(moments[name] for name in sorted(moments)):
                whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
                found.update(whole.numpy().tobytes())
    return found.hexdigest()


def exported(checkpoint: str, folder: str) -> tuple[str, dict]:
    """Exports a checkpoint of this training, and reads that as a process that shards nothing: the digest of it, and all that was saved."""
    export(checkpoint, os.path.join(folder, "out"))
    dcp_to_torch_save(os.path.join(folder, "out"), os.path.join(folder, "all.pt"))
    saved = torch.load(os.path.join(folder, "all.pt"), weights_only=True)
    state = build()
    state |= optimizers(state)
    for name in "opt", "opt2":
        saved[name]["state"] = {int(number): value for number, value in saved[name]["state"].items()}
    for name, thing in state.items():
        thing.load_state_dict(saved[name])
    return digest(state), saved


def main() -> None:
    steps = STEPS | {"epochs": int(sys.argv[2])} if len(sys.argv) > 2 else STEPS
    stops.in_shard_handovers(tell)
    if ODD == "older":
        elastic.KNOWS = ""
    job = elastic.join(seed=5, handover=ODD != "frugal")
    last = None
    seen = job.values(epochs=0)
    for world in job.worlds():
        state = None
        gc.collect()
        if last:
            tell(left=not last.expired())
        state = build(9 if ODD == "narrow" and world.size == 1 else 11)
        shard(state["net"], None if ODD == "unnamed" else job.mesh)
        state |= optimizers(state)
        fresh = True
        for step in job.steps(data(), state=state, **steps):
            with step:
                if fresh:
                    fresh = False
                    tell(world=world.round, size=world.size, rank=world.rank, done=job._place.step, state=digest(state))
                if step.evaluates:
                    with torch.no_grad():
                        state["net"](data().tensors[0])
                    seen.epochs += 1
                    continue
                loss = train(step, state)
                tell(step=step.number, loss=loss, pid=os.getpid(), state=digest(state))
                time.sleep(0.02)
        last = StorageWeakRef(state["net"][0].weight._local_tensor.untyped_storage())
        if ODD == "reused":
            with torch.no_grad():
                state["net"][0].weight.data.mul_(0.5)  # No version of a tensor is counted up by that.
    tell(end=True, evaluations=seen.epochs)


if __name__ == "__main__":
    main()
