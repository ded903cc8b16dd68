import os
import tempfile
import unittest

from concertina.keeper import Keeper
from concertina.snapshot import Codec, SnapshotError


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


if __name__ == "__main__":
    unittest.main()
