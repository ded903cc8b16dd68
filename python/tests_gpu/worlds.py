"""Worlds of real processes that change while they train, with all of their state on one device."""

import os
import unittest
from unittest import mock

from tests_gpu import DEVICE
from tests_torch import test_elastic


class Placed(unittest.TestCase):
    """Has the members of its worlds compute on the device, and exchange by a backend."""

    backend = "gloo"
    settings: dict[str, str] = {}

    @classmethod
    def setUpClass(cls):
        where = {"TEST_DEVICE": DEVICE, "TEST_BACKEND": cls.backend}
        cls.enterClassContext(mock.patch.dict(os.environ, where | cls.settings))
        super().setUpClass()


class OnDevice(Placed, test_elastic.Case):
    """Runs the tests of another class there."""


class ByNccl(Placed):
    """With NCCL, on the one GPU that all ranks share: each takes itself for a machine of its own, and it exchanges over sockets."""

    backend = "nccl" if DEVICE == "cuda" else "gloo"
    settings = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


class OneAndTwo:
    """From one rank to two, and back when one is killed."""

    def test_from_one_rank_to_two_and_back(self):
        c = self.coordinator(seconds=0.02)
        first, newcomer = c.start(2)
        c.first_world([first])
        first.wait_for(step=3)
        step = c.barrier([first])
        path = c.save(first, step)
        c.world([first, newcomer], step, [newcomer], path)
        first.wait_for(step=step + 3)
        newcomer.kill()
        c.recover([first])
        first.wait_for(world=3)
        c.end([first])
        self.assert_undisturbed(first, newcomer)
        self.assertEqual([line["size"] for line in first.told if "world" in line], [1, 2, 1])
