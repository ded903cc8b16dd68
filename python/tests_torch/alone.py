"""A process that is a worker's only one, with a model in the shards of local_mesh(), for the tests: looks after what a step does with those.

Argument: "shards", "poison": a loss at weight 0 that is no number, or "tensors": a model that the processes of a worker compute together, whose
loss is a DTensor as well.
"""

import copy
import sys

import torch
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

import concertina.torch as elastic
from concertina.tensors import is_sharded
from tests_torch import local
from tests_torch.sharded import data


def compute_together() -> None:
    mesh = elastic.local_mesh()
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2)).double()
    plain = copy.deepcopy(net)
    local.compute_together({"net": net}, mesh, "2", ColwiseParallel(input_layouts=Shard(0), output_layouts=Shard(-1), use_local_output=False))
    net.register_buffer("seen", distribute_tensor(torch.arange(3.0), mesh, [Replicate()]))
    job = elastic.join({"net": net, "opt": torch.optim.SGD(net.parameters(), lr=0.1)}, mesh=mesh)
    for step in job.steps(data(), global_batch=7, max_steps=1, evaluate="epoch"):
        with step:
            if step.evaluates:
                continue
            put_back = job._buffers.copy()
            net.seen.add_(1)
            job._buffers.copy()
            net.seen.add_(1)
            put_back()
            assert net.seen.full_tensor().tolist() == [1, 2, 3], net.seen  # as they were at the last copy
            for x, y in step.micro_batches():
                with loss_parallel():
                    step.backward(F.cross_entropy(net(x), y))
            want = F.cross_entropy(plain(x), y)
            torch.testing.assert_close(step.loss.double(), want.detach())
            want.backward()
            for parameter, other in zip(net.parameters(), plain.parameters(), strict=True):
                # A worker without samples has 0 of it, and no sum of which each process has a part.
                assert parameter.grad.placements == parameter.placements, parameter.grad.placements
                torch.testing.assert_close(parameter.grad.full_tensor(), other.grad)


def main() -> None:
    mesh = elastic.local_mesh()
    state = local.build()
    net, beside = state["net"], state["beside"]
    net.unused = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    local.share(state, mesh)
    unused = net.unused
    state |= local.optimizers(state)
    state["opt"] = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
    del state["schedule"]
    try:
        elastic.join(state | {"odd": parallelize_module(torch.nn.Linear(3, 2), mesh, ColwiseParallel())}, mesh=mesh)
    except ValueError as error:
        assert "state['odd']: weight is sharded, and not by fully_shard()" in str(error), error
    else:
        raise AssertionError("modules that are shared in both ways")
    job = elastic.join(state, mesh=mesh)

    def look() -> None:
        with torch.no_grad():
            net(data().tensors[0])
        assert not all(map(is_sharded, net.parameters())), "a forward pass leaves whole parameters"

    look()
    for step in job.steps(data(), global_batch=7, micro_batch=4, max_steps=2):
        with step:
            for x, y in step.micro_batches():
                loss = F.cross_entropy(beside(net(x)), y)
                if sys.argv[1] == "poison":
                    step.backward(loss * float("nan"), weight=0)
                step.backward(loss)
            watched = {id(parameter) for parameter in job._gradients._parameters}
            assert watched == {id(parameter) for parameter in beside.parameters()}, "whole parameters are watched"
            assert all(map(is_sharded, job._gradients._sharded))
            assert unused.grad is not None and not unused.grad._local_tensor.any(), "none is something else than 0"
            state["opt"].step()
            state["opt2"].step()
        look()
        # Which has the parameters looked for anew.
        state["opt2"].add_param_group({"params": [torch.nn.Parameter(torch.ones(1), requires_grad=False)]})
    assert unused._local_tensor.lt(1).all(), "AdamW lets go of what has a gradient of 0"


if __name__ == "__main__":
    compute_together() if sys.argv[1] == "tensors" else main()
