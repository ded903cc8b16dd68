"""Workers of two processes that share a model, by NCCL on one GPU. All of them take turns on it."""

from tests_gpu.worlds import ByNccl
from tests_torch import test_local


class OneWorkerAndTwo(test_local.Replicas):
    def test_from_one_worker_to_two_and_back(self):
        c = self.workers()
        first, newcomer = c.hire(2)
        c.give([first], restoring=[first])
        first[0].wait_for(step=3)
        step = c.barrier(first)
        c.give([first, newcomer], step, c.save_all(first, step), [newcomer])
        newcomer[1].wait_for(step=step + 3)
        for member in newcomer:
            member.kill()
        _, live = c.go_on([first])
        self.assertTrue(live)
        c.end(first)
        self.assert_undisturbed(first, newcomer)
        self.assertEqual([line["size"] for line in first[0].told if "world" in line], [2, 4, 2])


class Shards(OneWorkerAndTwo, ByNccl):
    how, draws = "shards", 2


class Tensors(OneWorkerAndTwo, ByNccl):
    how, draws = "tensors", 1


del OneWorkerAndTwo, ByNccl

