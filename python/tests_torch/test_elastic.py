"""Worlds of real processes that change while they train."""

import os
import pathlib
import time
import unittest
from unittest import mock

import torch.distributed as dist

from tests_torch.coordinator import Coordinator, losses


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Coordinator() as c:
            members = c.start(1)
            c.first_world(members)
            c.end(members)
            cls.undisturbed = losses(*members)
            cls.last = members[0].told[-1]

    def assert_undisturbed(self, *members):
        got = losses(*members)
        self.assertEqual(sorted(got), sorted(self.undisturbed))
        for step, loss in got.items():
            self.assertAlmostEqual(loss, self.undisturbed[step], delta=1e-3, msg=f"step {step}")
        for member in members:
            if "end" in member.told[-1]:
                for got, want in zip(member.told[-1]["parameters"], self.last["parameters"], strict=True):
                    self.assertAlmostEqual(got, want, delta=1e-2)
                for name in "rate", "scale", "evaluations":
                    self.assertEqual(member.told[-1][name], self.last[name], name)

    def coordinator(self, **options) -> Coordinator:
        return self.enterContext(Coordinator(**options))


class Planned(Case):
    def grow(self, workers=0):
        c = self.coordinator(seconds=0.02, workers=workers)
        *members, newcomer = c.start(3)
        newcomers = [newcomer]
        c.first_world(members)
        members[0].wait_for(step=3)
        step = c.barrier(members)
        path = c.save(members[0], step)
        c.world(members + newcomers, step, newcomers, path)
        c.end(members + newcomers)
        self.assert_undisturbed(*members, *newcomers)
        return members, newcomers, step

    def test_grow(self):
        members, newcomers, step = self.grow()
        self.assertEqual(newcomers[0].told[0]["done"], step)
        self.assertEqual([line["size"] for line in members[0].told if "world" in line], [2, 3])

    def test_with_workers_that_read_ahead(self):
        self.grow(workers=2)

    def test_shrink_and_a_new_rank_0(self):
        c = self.coordinator(seconds=0.01)
        members = c.start(3)
        c.first_world(members)
        members[0].wait_for(step=3)
        step = c.barrier(members)
        stayers = members[1:]
        c.world(stayers, step)
        c.end(stayers)
        self.assert_undisturbed(*members)
        self.assertEqual([line["rank"] for line in stayers[0].told if "world" in line], [1, 0])

    def test_ranks_of_one_world_meet_whoever_has_told_them(self):
        c = self.coordinator(seconds=0.01)
        members = c.start(2)
        c.world(members, restoring=members, told={members[1]: {"term": 2}})
        c.end(members)
        self.assert_undisturbed(*members)

    def test_many_changes_leave_nothing_behind(self):
        c = self.coordinator(epochs=20, seconds=0.005)
        members = c.start(2)
        c.first_world(members)
        members[0].wait_for(step=2)
        counts = []
        for _ in range(8):
            step = c.barrier(members)
            c.world(members, step)
            members[0].wait_for(world=c.number)
            members[0].wait_for(step=step + 2)
            counts.append([self.open_files(m) for m in members] + [self.threads(m) for m in members])
        self.assertEqual(counts[1], counts[-1], f"files and threads after each change: {counts}")

    def open_files(self, member):
        return len(os.listdir(f"/proc/{member.process.pid}/fd"))

    def threads(self, member):
        return len(os.listdir(f"/proc/{member.process.pid}/task"))


class Recovery(Case):
    def test_a_rank_is_killed(self):
        c = self.coordinator(seconds=0.01)
        members = c.start(3, interval=0)
        c.first_world(members)
        members[2].wait_for(step=6)
        members[2].kill()
        survivors = members[:2]
        c.abort(survivors)
        step = max(survivors[0].snapshots)
        c.world(survivors, step, survivors, survivors[0].snapshots[step])
        survivors[0].wait_for(world=2)
        c.end(survivors)
        self.assert_undisturbed(*survivors)

    def test_rank_0_is_killed(self):
        c = self.coordinator(seconds=0.01)
        members = c.start(3, interval=0)
        c.first_world(members)
        members[0].wait_for(step=6)
        members[0].kill()
        survivors = members[1:]
        c.abort(survivors)
        step = max(survivors[0].snapshots)
        c.world(survivors, step, survivors, survivors[0].snapshots[step])
        survivors[0].wait_for(world=2)
        c.end(survivors)
        self.assert_undisturbed(*survivors)

    def test_a_collective_that_hangs(self):
        c = self.coordinator(seconds=0.01)
        pathlib.Path(c.folder, "hang-8-1").touch()
        members = c.start(3, interval=0)
        c.first_world(members)
        members[1].wait_for(hanging=8)
        c.abort(members)
        step = max(members[0].snapshots)
        c.world(members, step, members, members[0].snapshots[step])
        c.end(members)
        self.assert_undisturbed(*members)

    def test_a_peer_is_lost_while_the_world_forms(self):
        c = self.coordinator()
        members = c.start(3)
        members[2].kill()
        members[2].agent.give = lambda *_, **__: None  # Its agent has nobody to tell.
        c.world(members, 0, members)
        c.abort(members[:2])
        c.world(members[:2], 0, members[:2])
        c.end(members[:2])
        self.assert_undisturbed(*members[:2])

    def test_a_rank_that_has_tried_to_form_a_world_and_one_that_has_not(self):
        c = self.coordinator()
        first, second = members = c.start(2)
        with mock.patch.object(second.agent, "give"):  # It does not hear of this world.
            c.first_world(members)
        store = dist.TCPStore("127.0.0.1", c.port, is_master=False, wait_for_workers=False, use_libuv=False)
        while not store.num_keys():
            pass  # It has not said yet where its peers find it.
        c.abort([first])
        c.world(members, 0, members)
        c.end(members)
        self.assert_undisturbed(*members)


class LargeStates(Case):
    def test_times(self):
        """Prints how long a change takes with a state of 100 MiB."""
        c = self.coordinator(epochs=8, ballast=100)
        *members, newcomer = c.start(3)
        c.first_world(members)
        members[0].wait_for(step=10)
        begin = time.time_ns()
        step = c.barrier(members)
        parked = time.time_ns()
        path = c.save(members[0], step)
        saved = time.time_ns()
        c.world([*members, newcomer], step, [newcomer], path)
        first = max(m.wait_for(step=step + 1)["at"] for m in (*members, newcomer))
        self.assertEqual([line["size"] for line in newcomer.told if "world" in line], [3])
        print(
            f"\n100 MiB, 2 -> 3: barrier {(parked - begin) / 1e6:.0f} ms, snapshot {(saved - parked) / 1e6:.0f} ms, "
            f"new world to its first step's end {(first - saved) / 1e6:.0f} ms"
        )


if __name__ == "__main__":
    unittest.main()
