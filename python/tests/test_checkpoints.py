"""A folder of checkpoints in which nothing half-written is taken for whole."""

import os
import tempfile
import threading
import unittest
from pathlib import Path

from concertina.checkpoints import Checkpoints


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()), "made", "here")

    def save(self, checkpoints: Checkpoints, step: int, text: str = "state") -> None:
        with checkpoints.saving(step) as path:
            os.mkdir(path)
            Path(path, "state").write_text(text)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.folder))


class OneRank(Case):
    def test_the_newest_and_as_many_as_are_kept(self):
        checkpoints = Checkpoints(self.folder)
        self.assertEqual(checkpoints.newest(), (0, None))
        for step in (9, 10, 100):
            self.save(checkpoints, step)
        self.assertEqual(checkpoints.newest(), (100, str(self.folder / "step-100")))
        self.assertEqual(self.names(), ["step-10", "step-100"])

    def test_a_file_is_a_checkpoint_as_well(self):
        checkpoints = Checkpoints(self.folder, keep=1)
        for step in (1, 2):
            with checkpoints.saving(step) as path:
                Path(path).write_text("state")
        self.assertEqual(self.names(), ["step-2"])

    def test_what_failed_is_not_there_and_the_next_one_is(self):
        checkpoints = Checkpoints(self.folder)
        self.save(checkpoints, 1)
        with self.assertRaises(OSError), checkpoints.saving(2) as path:
            os.mkdir(path)
            Path(path, "half").write_text("half")
            raise OSError("no space left on device")
        self.assertEqual(checkpoints.newest()[0], 1)
        self.save(checkpoints, 2)
        self.assertEqual(os.listdir(checkpoints.newest()[1]), ["state"])

    def test_one_that_is_there_is_replaced(self):
        checkpoints = Checkpoints(self.folder)
        self.save(checkpoints, 3, "of a world that is over")
        self.save(checkpoints, 3, "of this one")
        self.assertEqual(Path(checkpoints.newest()[1], "state").read_text(), "of this one")

    def test_other_names_mean_nothing(self):
        checkpoints = Checkpoints(self.folder)
        self.save(checkpoints, 1)
        for name in ("step-9.part", "step-x", "step-", "step--4", "step-99999999999999999999", "other"):
            (self.folder / name).mkdir()
        self.assertEqual(checkpoints.newest()[0], 1)

    def test_bad_numbers(self):
        with self.assertRaisesRegex(ValueError, "keep is 0"):
            Checkpoints(self.folder, keep=0)
        checkpoints = Checkpoints(self.folder)
        for step, error in ("last", TypeError), (1.0, TypeError), (-1, ValueError), (10**18, ValueError):
            with self.subTest(step), self.assertRaisesRegex(error, "number"), checkpoints.saving(step):
                self.fail("it would never be found again")

    def test_a_body_that_writes_elsewhere(self):
        checkpoints = Checkpoints(self.folder)
        with self.assertRaisesRegex(FileNotFoundError, "nothing was saved at .*step-3.part"), checkpoints.saving(3):
            pass


class ManyRanks(Case):
    def test_it_gets_its_name_when_the_last_rank_has_written(self):
        barrier, seen = threading.Barrier(3), []

        def rank(number):
            checkpoints = Checkpoints(self.folder, rank=number)
            with checkpoints.saving(4, barrier.wait) as path:
                os.makedirs(path, exist_ok=True)
                Path(path, f"rank-{number}").touch()
                seen.append(checkpoints.newest()[0])
            seen.append(sorted(os.listdir(checkpoints.newest()[1])))

        ranks = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join(20)
        self.assertEqual(seen, [0, 0, 0] + [["rank-0", "rank-1", "rank-2"]] * 3)


if __name__ == "__main__":
    unittest.main()
