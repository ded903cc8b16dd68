import errno
import os
import tempfile
import unittest
from unittest import mock

from concertina.keeper import Keeper
from concertina.snapshot import Codec, Image, SnapshotError


class Holder:
    def __init__(self):
        self.values = {"a": 1}

    def state_dict(self):
        return self.values

    def load_state_dict(self, values):
        self.values = values


class AnotherTraining(unittest.TestCase):
    def keeper(self, **position):
        return Keeper({"net": Holder()}, Codec(), lambda: {"step": 1} | position)

    def test_its_snapshot_is_refused_in_words(self):
        path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "a.part")
        self.keeper(seed=1, batch=8)._image().write(path)
        for other, words in ((2, 8), "seed=1, this run has seed=2"), ((1, 16), "global_batch=8, this run has global_batch=16"):
            with self.assertRaisesRegex(SnapshotError, words):
                self.keeper(seed=other[0], batch=other[1]).load(path)
        self.assertEqual(self.keeper(seed=1, batch=8).load(path)["seed"], 1)

    def test_one_that_says_nothing_of_it_is_taken(self):
        path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "a.part")
        self.keeper()._image().write(path)
        self.assertEqual(self.keeper(seed=2, batch=8).load(path), {"step": 1})


class Agent:
    """Takes every snapshot for good, and remembers what it heard."""

    interval = 0.0
    gate = mock.Mock()

    def __init__(self, folder):
        self.snapshots = folder
        self.said = []

    def say(self, kind, step, file, bytes):
        self.said.append((step, "written"))

    def snapshot_failed(self, step, error):
        self.said.append((step, error))


class Failures(unittest.TestCase):
    def setUp(self):
        self.step = 0
        self.agent = Agent(self.enterContext(tempfile.TemporaryDirectory()))
        self.keeper = Keeper({"net": Holder()}, Codec(), lambda: {"step": self.step})
        self.keeper.begin(self.agent, 0, True)

    def steps(self, count):
        """Makes so many; what the agent heard meanwhile."""
        self.agent.said = []
        for _ in range(count):
            if self.step >= self.keeper.due:
                self.keeper.consider(self.step)
            self.keeper._join()
            self.step += 1
        return self.agent.said

    def test_a_write_that_fails_in_any_way_is_told_and_followed_by_others(self):
        for error in OSError(errno.ENOSPC, "no space left"), ValueError("of whatever kind"):
            with mock.patch.object(Image, "write", side_effect=error):
                heard = self.steps(3)
            self.assertTrue(heard)
            for _, text in heard:
                self.assertRegex(text, "no space left|of whatever kind")
            self.assertIn("written", [text for _, text in self.steps(3)])

    def test_running_out_of_memory_is_told_and_training_goes_on(self):
        self.steps(2)
        for error in MemoryError(), OSError(errno.ENOMEM, "cannot allocate"):
            with mock.patch.object(self.keeper, "_copy", side_effect=error):
                heard = self.steps(3)
            self.assertTrue(heard)
            for _, text in heard:
                self.assertIn("no memory for a copy of the state", text)
            self.assertIn("written", [text for _, text in self.steps(3)])

    def test_running_out_of_memory_at_the_barrier_is_told(self):
        with mock.patch.object(self.keeper, "_image", side_effect=MemoryError):
            self.keeper.save(0)
        ((step, text),) = self.agent.said
        self.assertEqual(step, 0)
        self.assertIn("no memory for a copy of the state (MemoryError)", text)

    def test_a_first_state_that_found_no_memory_is_not_taken_for_the_present_one(self):
        with mock.patch.object(self.keeper, "_copy", side_effect=MemoryError):
            self.keeper.consider(0)
        with self.assertRaisesRegex(SnapshotError, "nothing is left"):
            self.keeper.load("")


if __name__ == "__main__":
    unittest.main()
