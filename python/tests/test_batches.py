"""The samples of each step, whoever asks from wherever."""

import itertools
import unittest
from unittest import mock

from concertina.batches import Batches
from concertina.samples import Permutation


def step_of(samples: int, batch: int, done: int, size: int, **options) -> list[list[int]]:
    """What each of so many ranks uses in the step after done."""
    return [next(iter(Batches(samples, batch, done=done, rank=rank, size=size, **options))) for rank in range(size)]


class Order(unittest.TestCase):
    def test_a_step_is_the_same_samples_for_any_number_of_ranks(self):
        for done in (0, 3, 4, 11):
            alone = step_of(58, 12, done, 1)[0]
            for size in (2, 3, 4, 5):
                with self.subTest(done=done, size=size):
                    parts = step_of(58, 12, done, size)
                    self.assertEqual(list(itertools.chain(*parts)), alone)

    def test_each_epoch_has_every_sample_once_in_the_order_of_the_seed(self):
        batches = Batches(58, 12, seed=7)
        for epoch in range(3):
            used = list(itertools.chain(*batches))
            order = Permutation(7, epoch, 58)
            self.assertEqual(used, [order(position) for position in range(58)])

    def test_who_goes_on_uses_what_is_left(self):
        whole = list(itertools.chain(*(list(Batches(58, 12, done=5 * epoch)) for epoch in range(2))))
        for done in range(10):
            self.assertEqual(next(iter(Batches(58, 12, done=done))), whole[done])
        left = Batches(58, 12, done=3)
        self.assertEqual(len(left), 5)
        self.assertEqual(list(left), whole[3:5])
        self.assertEqual(list(left), whole[5:10])

    def test_an_iterator_that_nobody_used_takes_nothing(self):
        batches = Batches(58, 12)
        iter(batches)
        self.assertEqual(len(list(batches)), 5)
        self.assertEqual(batches.done, 5)

    def test_drop_last(self):
        batches = Batches(58, 12, drop_last=True)
        self.assertEqual([len(batch) for batch in batches], [12] * 4)
        self.assertEqual(batches.done, 4)
        self.assertEqual(next(iter(batches)), step_of(58, 12, 4, 1, drop_last=True)[0])
        self.assertEqual(next(iter(batches))[0], Permutation(0, 1, 58)(12))

    def test_the_place_is_that_of_the_environment(self):
        with mock.patch.dict("os.environ", {"RANK": "1", "WORLD_SIZE": "3"}):
            self.assertEqual(next(iter(Batches(58, 12))), step_of(58, 12, 0, 3)[1])


class BadNumbers(unittest.TestCase):
    def test_what_is_none_is_named(self):
        for name in "samples", "global_batch", "done":
            with self.assertRaisesRegex(TypeError, rf"{name} is \[1, 2\]: it must be a whole number"):
                Batches(**({"samples": 58, "global_batch": 12} | {name: [1, 2]}))

    def test_they_are_named(self):
        for arguments, want in (
            ({"samples": 0}, "samples 0"),
            ({"global_batch": 0}, "global_batch 0"),
            ({"done": -1}, "done -1"),
            ({"rank": 2, "size": 2}, "rank 2 of 2"),
            ({"seed": -1}, "seed is -1"),
            ({"samples": 25, "size": 2, "rank": 0}, "has 1 samples for 2 ranks"),
        ):
            with self.subTest(want), self.assertRaisesRegex(ValueError, want):
                Batches(**({"samples": 58, "global_batch": 12} | arguments))

    def test_a_batch_larger_than_the_data_is_all_of_it(self):
        self.assertEqual([len(batch) for batch in Batches(5, 12)], [5])


if __name__ == "__main__":
    unittest.main()
