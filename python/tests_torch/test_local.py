"""Models that the processes of a worker share, on workers that come and go: real processes, with the agents' side played."""

import pathlib
import unittest

import concertina.torch as elastic
from concertina import mistakes
from concertina.local import local_of, place_of
from tests_torch import local, sharded
from tests_torch.coordinator import losses
from tests_torch.workers import Workers

PROGRAM = str(pathlib.Path(local.__file__))


def undisturbed() -> dict[int, float]:
    """The loss of each step of one process that has the whole model."""
    state = local.build()
    state |= local.optimizers(state)
    found = {}
    for step in elastic.join(state, seed=5).steps(sharded.data(), **local.STEPS):
        with step:
            if not step.evaluates:
                found[step.number] = local.train(step, state)
    return found


class Replicas(unittest.TestCase):
    def workers(self) -> Workers:
        return self.enterContext(Workers(command=(PROGRAM,)))

    def assert_undisturbed(self, *workers):
        want = undisturbed()
        members = [member for worker in workers for member in worker]
        got = losses(*members)
        self.assertEqual(sorted(got), sorted(want))
        for step, loss in got.items():
            self.assertAlmostEqual(loss, want[step], delta=1e-5 * want[step], msg=f"step {step}")
        states = {}
        for member in members:
            for line in member.told:
                if "loss" in line:
                    states[line["step"], members.index(member) % 2, member.round] = line["state"]
        return states

    def test_grown_and_a_worker_lost(self):
        c = self.workers()
        workers = c.hire(3)
        two = workers[:2]
        c.give(two, restoring=two)
        two[1][0].wait_for(step=5)
        members = [member for worker in two for member in worker]
        step = c.barrier(members)
        parts = c.save_all(two[0], step)
        self.assertEqual([key.split(".")[:2] for key in sorted(parts)], [["r0", "2"], ["s0", "2"], ["s1", "2"]])
        c.give(workers, step, parts, workers[2:])
        # All workers have the same, each local rank its own.
        begun = [[member.wait_for(size=6) for member in worker] for worker in workers]
        self.assertEqual({line["done"] for of in begun for line in of}, {step})
        for local_rank in 0, 1:
            self.assertEqual(len({of[local_rank]["state"] for of in begun}), 1)
        self.assertNotEqual(begun[0][0]["state"], begun[0][1]["state"])
        workers[2][0].wait_for(step=step + 3)
        for member in workers[1]:
            member.kill()
        c.go_on([workers[2], workers[0]])
        c.end([member for worker in (workers[2], workers[0]) for member in worker])
        self.assert_undisturbed(*workers)


class Mistakes(unittest.TestCase):
    def test_a_mesh_over_which_nothing_is_sharded(self):
        with self.assertRaisesRegex(ValueError, r"call fully_shard\(module, mesh=mesh\) before join"):
            mistakes.refuse_meshes(local.build(), object())

    def test_a_mesh_of_the_programs_own(self):
        with self.assertRaisesRegex(ValueError, r"give that of local_mesh\(\)"):
            local_of(object(), None)

    def test_local_ranks_that_cannot_be(self):
        for rank, size in ("2", "2"), ("0", "33"), ("one", "2"):
            with self.assertRaisesRegex(ValueError, "LOCAL_RANK"):
                place_of({"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size})
