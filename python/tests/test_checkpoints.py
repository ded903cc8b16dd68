"""A folder of checkpoints in which nothing half-written is taken for whole."""

import math
import os
import random
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

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

    def test_what_was_just_saved_stays(self):
        checkpoints = Checkpoints(self.folder, keep=1)
        for step in (900, 600):
            self.save(checkpoints, step)
        self.assertEqual(self.names(), ["step-600", "step-900"])

    def test_what_is_removed_is_never_half_there(self):
        checkpoints = Checkpoints(self.folder, keep=1)
        self.save(checkpoints, 7)
        seen = []

        def cut_off(path):
            seen.append(str(path))
            raise InterruptedError("cut off")

        for step in (7, 8):
            with self.subTest(step), mock.patch("shutil.rmtree", cut_off), self.assertRaises(InterruptedError):
                self.save(checkpoints, step)
            self.assertNotIn(str(self.folder / "step-7"), seen)
        self.save(checkpoints, 9)
        self.assertEqual(self.names(), ["step-9"], "what was left is removed")

    def test_a_worker_that_has_joined_says_its_rank(self):
        with mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": "/there"}):
            os.environ.pop("RANK", None)
            with self.assertRaisesRegex(ValueError, "rank=step.world.rank"):
                Checkpoints(self.folder)
            Checkpoints(self.folder, rank=3)

    def test_a_body_that_writes_elsewhere(self):
        checkpoints = Checkpoints(self.folder)
        with self.assertRaisesRegex(FileNotFoundError, "nothing was saved at .*step-3.part"), checkpoints.saving(3):
            pass


class Best(Case):
    def saved(self, scores, **options):
        checkpoints = Checkpoints(self.folder, **options)
        for step, score in scores.items():
            with checkpoints.saving(step, score=score) as path:
                Path(path).write_text(str(score))
        return checkpoints

    def test_the_best_stay_beside_the_newest(self):
        scores = {1: 0.5, 2: 0.9, 3: 0.1, 4: 0.7, 5: None, 6: 0.2}
        checkpoints = self.saved(scores, keep=1, best=2)
        self.assertEqual(self.names(), ["step-2", "step-2.score", "step-4", "step-4.score", "step-6", "step-6.score"])
        self.assertEqual(checkpoints.best(), (2, str(self.folder / "step-2")))
        self.assertEqual(checkpoints.newest()[0], 6)

    def test_scores_know_which_of_them_are_the_best(self):
        self.saved({1: 2.0, 2: 1.0}, best=1, lowest=True)
        self.assertEqual(Checkpoints(self.folder, lowest=True).best()[0], 2)
        with self.assertRaisesRegex(ValueError, "the lowest scores .* give lowest=True"):
            Checkpoints(self.folder)

    def test_who_keeps_no_best_ones_leaves_those_of_others(self):
        self.saved({1: 2.0, 2: 1.0}, keep=1, best=1)
        self.saved({3: 9.0, 4: 9.0}, keep=1)
        self.assertEqual(self.names(), ["step-1", "step-1.score", "step-2", "step-2.score", "step-4"])

    def test_the_lowest_may_be_the_best_and_of_equals_the_newest_is(self):
        self.assertEqual(self.saved({1: 2.0, 2: 1.0, 3: 1.0, 4: 3.0}, keep=1, best=1, lowest=True).best()[0], 3)
        self.assertEqual([name for name in self.names() if "." not in name], ["step-3", "step-4"])

    def test_random_scores(self):
        seed = random.randrange(2**32)
        draws = random.Random(seed)
        for turn in range(30):
            keep, best, lowest = draws.randint(1, 3), draws.randint(0, 3), draws.random() < 0.5
            values = [0.0, 1.0, 2.0, -1.5, 1e300, None, math.nan, math.inf]
            scores = {step: draws.choice(values) for step in draws.sample(range(1, 30), 12)}
            with self.subTest(seed=seed, turn=turn), tempfile.TemporaryDirectory() as folder:
                self.folder = Path(folder)
                stay, sign = set(), -1 if lowest else 1
                for step, score in scores.items():
                    self.saved({step: score}, keep=keep, best=best, lowest=lowest)
                    there = sorted({*stay, step})
                    good = [s for s in there if best and scores[s] is not None and math.isfinite(scores[s])]
                    good.sort(key=lambda s: (sign * scores[s], s))
                    stay = {step, *there[-keep:], *(good[-best:] if best else [])}
                    self.assertEqual({int(name[5:]) for name in self.names() if "." not in name}, stay)

    def test_what_is_no_score_is_none(self):
        checkpoints = self.saved({1: math.nan, 2: math.inf, 3: None}, keep=3, best=1)
        self.assertEqual(checkpoints.best(), (0, None))
        (self.folder / "step-1.score").write_text("half of a numb")
        (self.folder / "step-7.score").write_text("5.0")  # of one that was cut off before it had its name
        self.assertEqual(checkpoints.best(), (0, None))
        self.saved({4: 1.0}, keep=3, best=1)
        self.assertNotIn("step-7.score", self.names())
        self.assertEqual(checkpoints.best()[0], 4)

    def test_one_that_is_made_again_has_its_own_score(self):
        checkpoints = self.saved({1: 5.0, 2: 3.0}, keep=2, best=1)
        self.saved({1: 1.0}, keep=2, best=1)
        self.assertEqual(checkpoints.best()[0], 2)
        self.saved({2: None}, keep=2, best=1)
        self.assertEqual(checkpoints.best()[0], 1)

    def test_bad_values(self):
        with self.assertRaisesRegex(ValueError, "best is -1"):
            Checkpoints(self.folder, best=-1)
        for options in {"best": 1.5}, {"best": None}, {"keep": math.inf}, {"keep": "2"}, {"rank": 0.5}:
            with self.subTest(options), self.assertRaisesRegex(TypeError, "whole number"):
                Checkpoints(self.folder, **options)
        for score, error in ("0.5", TypeError), ([], TypeError), (10**400, ValueError):
            with self.subTest(score), self.assertRaises(error), Checkpoints(self.folder).saving(1, score=score):
                self.fail("nobody could compare it")


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
