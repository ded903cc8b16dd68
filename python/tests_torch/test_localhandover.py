"""The state that the processes of a worker share goes over the links of a world to the workers that lack it: real processes, with the agents'
side played."""

import pathlib
import unittest
from unittest import mock

import torch.distributed as dist

from concertina import local as local_module
from concertina.shards import Rank
from concertina.world import World
from tests_torch import test_local
from tests_torch.workers import Workers

MIB = 18
"""Of the state of each process: so much that all who have it give some of it."""


class Handovers(test_local.Replicas):
    def workers(self) -> Workers:
        return self.enterContext(Workers(command=(test_local.PROGRAM, self.how, MIB)))

    def assert_begun(self, workers, step):
        """All have the state after a step, those of one local rank the same, those of others another one."""
        begun = [[member.wait_for(size=2 * len(workers), done=step) for member in worker] for worker in workers]
        for local_rank in 0, 1:
            self.assertEqual(len({of[local_rank]["state"] for of in begun}), 1)
        self.assertNotEqual(begun[0][0]["state"], begun[0][1]["state"])

    def assert_kept(self, members, step):
        """All have written what they have of the state after a step."""
        for member in members:
            while not (taken := member.taken(step)):
                member._keep(member.message(f"snapshot of step {step}"))
            self.assertTrue(taken)

    def test_grown_lost_and_shrunk(self):
        c = self.workers()
        first, lost, newcomer = workers = c.hire(3)
        self.assertTrue(newcomer[1].agent.hello["local"] and newcomer[1].agent.hello["handover"])
        c.give([first, lost], restoring=[first, lost])
        first[0].wait_for(step=3)
        step = c.barrier([*first, *lost])
        holds = [pathlib.Path(c.folder, f"hold-{rank}") for rank in (2, 3)]
        for hold in holds:
            hold.touch()
        c.give([first, lost, newcomer], step, restoring=[newcomer], handover=True)
        self.assert_begun([first, lost, newcomer], step)
        self.assert_kept(newcomer, step + 1)  # A snapshot follows soon.

        # The agent of a worker ends its other process when one was killed.
        for member, hold in zip(lost, holds, strict=True):
            member.wait_for(holds=16)
            hold.unlink()
        (standby,) = c.hire(1)
        for member in lost:
            member.kill()
        self.assertEqual(c.leave([newcomer, first]), [16, 16])
        c.give([newcomer, standby, first], 16, restoring=[standby], handover=True)
        self.assert_begun([newcomer, standby, first], 16)
        newcomer[0].wait_for(step=19)
        step = c.barrier([*newcomer, *standby, *first])
        c.give([standby, newcomer], step)
        c.end([*standby, *newcomer])
        self.assert_undisturbed(*workers, standby)

    def test_interrupted_and_not_clean(self):
        c = self.workers()
        first, other, newcomer = workers = c.hire(3)
        two = [first, other]
        c.give(two, restoring=two)
        first[0].wait_for(step=3)
        step = c.barrier([*first, *other])
        # As where one process of a worker was in the middle of an update: its other one gets the state as well.
        c.give(two, step, restoring=[other], handover=True)
        self.assert_begun(two, step)
        other[0].wait_for(step=step + 2)
        step = c.barrier([*first, *other])

        # The process of local rank 0 gets all of its share, the other one some of it.
        pathlib.Path(c.folder, "stop-handover-3").touch()
        c.give([*two, newcomer], step, restoring=[newcomer], handover=True)
        other[1].wait_for(handing=True)
        newcomer[1].wait_for(coming=True)
        newcomer[0].wait_for(size=6, done=step)
        for member in other:
            member.kill()
        self.assertEqual(c.leave([first, newcomer]), [step, -1])

        # Now a snapshot serves, and then a handover once more, of a newcomer's share as well.
        c.give([first, newcomer], step, c.save_all(first, step), [newcomer])
        self.assert_begun([first, newcomer], step)
        newcomer[0].wait_for(step=step + 2)
        step = c.barrier([*first, *newcomer])
        (last,) = c.hire(1)
        c.give([newcomer, last], step, restoring=[last], handover=True)
        self.assert_begun([newcomer, last], step)
        c.end([*newcomer, *last])
        self.assert_undisturbed(*workers, last)


class Shards(Handovers, unittest.TestCase):
    how = "shards"


class Tensors(Handovers, unittest.TestCase):
    how = "tensors"


class Groups(unittest.TestCase):
    """Which groups a process is in, and under which names it meets the others."""

    def setUp(self):
        self.enterContext(mock.patch.object(local_module.Replicas, "device", None))
        self.store = dist.HashStore()
        self.enterContext(mock.patch.object(local_module, "find_store", lambda *_: self.store))
        self.enterContext(mock.patch.object(local_module.dist, "is_initialized", lambda: True))
        self.world = World(
            term=1, round=4, rank=5, size=6, local_rank=1, local_size=2, worker_rank=2, workers=3, master_address="", master_port=0, from_step=7
        )

    def formed(self, kind):
        made = []

        def make(name, store, rank):
            store.set("met", "")
            made.append((name, rank))
            return name

        replicas = local_module.Replicas(mock.Mock(backend="gloo", rank=1, size=2, make=make), False)
        replicas.kind = kind
        replicas.form(self.world, None, lambda: False)
        self.assertEqual(made, [("4-all", Rank(5, 6)), ("4-local-1", Rank(2, 3))])
        return replicas

    def test_a_state_is_that_of_those_of_the_same_local_rank(self):
        self.assertEqual(self.formed("").replicas(self.world), (Rank(2, 3), "4-local-1"))

    def test_who_was_not_told_of_a_handover_meets_nobody_who_was(self):
        self.formed("/handover")
        self.assertTrue(self.store.check(["4/handover/met"]))
        self.assertFalse(self.store.check(["4/met"]))
        self.formed("")
        self.assertTrue(self.store.check(["4/met"]))


if __name__ == "__main__":
    unittest.main()
