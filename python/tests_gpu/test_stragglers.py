"""How long each rank works in its steps, by the events of its device."""

import os
import pathlib
import unittest
from unittest import mock

from tests_gpu import DEVICE
from tests_gpu.worlds import ByNccl
from tests_torch.coordinator import Coordinator

SLOW = str(pathlib.Path(__file__).with_name("slow.py"))


class Stragglers(unittest.TestCase):
    def test_who_works_longer_is_seen_although_all_steps_take_as_long(self):
        for backend in "gloo", ByNccl.backend:
            settings = {"TEST_DEVICE": DEVICE, "TEST_BACKEND": backend} | ByNccl.settings
            with self.subTest(backend=backend), mock.patch.dict(os.environ, settings), Coordinator(command=(SLOW, 60)) as c:
                members = c.start(2)
                c.first_world(members)
                c.end(members)
                fast, slow = (member.agent.worked() for member in members)
                self.assertGreater(fast, 0)
                self.assertGreater(slow, 1.25 * fast, f"{slow / 1e6:.0f} and {fast / 1e6:.0f} ms in all steps")
