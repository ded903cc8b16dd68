"""Worlds of two ranks between which NCCL exchanges, on one GPU. They take turns on it, so that a step takes long."""

import pathlib

from tests_gpu.worlds import ByNccl, OnDevice, OneAndTwo


class TwoRanks(OneAndTwo, ByNccl, OnDevice):
    def test_a_rank_is_killed_while_the_other_one_waits_for_it(self):
        c = self.coordinator(seconds=0.01)
        members = c.start(2)
        c.first_world(members)
        members[0].wait_for(step=2)
        members[1].kill()
        c.recover(members[:1])
        members[0].wait_for(world=2)
        c.end(members[:1])
        self.assert_undisturbed(*members)

    def test_an_exchange_that_hangs_is_broken_off_and_both_go_on(self):
        c = self.coordinator(seconds=0.01)
        pathlib.Path(c.folder, "hang-3-1").touch()
        members = c.start(2)
        c.first_world(members)
        members[1].wait_for(hanging=3)
        newest, left = c.recover(members)
        self.assertEqual(newest, 2)
        self.assertTrue(all(message["clean"] for message in left), left)
        self.shrink(c, members)

    def test_a_peer_is_lost_while_the_world_forms(self):
        c = self.coordinator()
        members = c.start(2)
        members[1].kill()
        members[1].agent.give = lambda *_, **__: None  # Its agent has nobody to tell.
        c.world(members, 0, members)
        c.abort(members[:1])
        c.world(members[:1], 0, members[:1])
        c.end(members[:1])
        self.assert_undisturbed(*members[:1])

    def shrink(self, c, members):
        """Goes on with the first one alone, which is faster."""
        members[0].wait_for(step=4)
        step = c.barrier(members)
        c.world(members[:1], step)
        c.end(members[:1])
        self.assert_undisturbed(*members)


del OneAndTwo, ByNccl, OnDevice
