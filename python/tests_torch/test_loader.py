"""A loader whose workers have read ahead when the world changes."""

import itertools
import os
import random
import sys
import threading
import unittest
from unittest import mock

import torch
from torch.utils.data import Dataset

import concertina.torch as elastic
from concertina.loader import Part


class Counted(Dataset):
    """Counts what was read, in all workers together."""

    def __init__(self):
        self.read = torch.zeros(64, dtype=torch.long).share_memory_()

    def __len__(self):
        return 64

    def __getitem__(self, number):
        self.read[number] += 1
        return torch.tensor(number)


def read(loader, step, numbers, ahead):
    """What the loader gives for these samples, where the samples of each batch ahead stand at the places of their numbers."""
    return loader.read(
        step,
        range(numbers[0], numbers[-1] + 1),
        lambda: iter([Part(n, range(n[0], n[-1] + 1), seed=n[0]) for n in ahead]),
    )


class Drawing(Dataset):
    """Samples that are what is drawn when they are read."""

    def __len__(self):
        return 64

    def __getitem__(self, number):
        return torch.tensor([number, random.random(), torch.rand(1).item()], dtype=torch.float64)


class Stale(unittest.TestCase):
    def step(self, epoch=0):
        return mock.Mock(world=object(), epoch=epoch)

    def test_another_world_begins_where_it_is_told(self):
        for workers in 0, 2:
            loader = elastic.Loader(Counted(), num_workers=workers)
            step = self.step()
            ahead = [[i, i + 1] for i in range(0, 64, 2)]
            self.assertEqual(read(loader, step, [0, 1], ahead).tolist(), [0, 1])
            self.assertEqual(read(loader, step, [4, 5], ahead).tolist(), [4, 5])
            other = [[i] for i in range(8, 20)]
            self.assertEqual(read(loader, self.step(), [8], other).tolist(), [8])
            with self.assertRaisesRegex(RuntimeError, "another order"):
                read(loader, self.step(), [63], other)

    def test_a_worker_that_is_killed_while_it_looks_holds_nobody_up(self):
        loader = elastic.Loader(Counted())
        self.assertEqual(read(loader, self.step(), [0], [[0], [1]]).tolist(), [0])
        batch = next(iter(loader._plan))

        def look(killed_at):
            """In a process of its own, which is killed at so many lines; whether it was."""
            lines = itertools.count()

            def line(*_):
                if next(lines) == killed_at:
                    os._exit(1)
                return line

            if not (worker := os.fork()):
                sys.settrace(line)
                batch in loader._wanted
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])

        for killed_at in itertools.count():
            whole = look(killed_at) == 0
            world = threading.Thread(target=loader._wanted.next, daemon=True)
            world.start()
            world.join(20)
            self.assertFalse(world.is_alive(), f"killed after {killed_at} lines")
            if whole:
                break
        self.assertGreater(killed_at, 1)

    def test_what_nobody_wants_any_more_is_not_read(self):
        data = Counted()
        loader = elastic.Loader(data)
        self.assertEqual(read(loader, self.step(), [0], [[0], [1]]).tolist(), [0])
        old = next(iter(loader._plan))
        loader._wanted.next()
        before = data.read.sum()
        self.assertIsNone(loader._loader.collate_fn(loader._loader.dataset.__getitems__(old)))
        self.assertEqual(data.read.sum(), before)

    def test_their_order_is_none_of_the_steps_random_numbers(self):
        loader = elastic.Loader(Counted())
        torch.manual_seed(3)
        first = torch.rand(1)
        torch.manual_seed(3)
        read(loader, self.step(), [0], [[0]])
        self.assertTrue(torch.equal(torch.rand(1), first))

    def test_workers_draw_the_same_again_for_the_same_samples_and_other_numbers_for_others(self):
        ahead = [[i, i + 1] for i in range(0, 8, 2)]
        loader = elastic.Loader(Drawing(), num_workers=2)
        step = self.step()
        first = [read(loader, step, numbers, ahead) for numbers in ahead]
        again = [read(loader, self.step(), numbers, ahead[i:]) for i, numbers in enumerate(ahead)]
        self.assertEqual([batch.tolist() for batch in again], [batch.tolist() for batch in first])
        drawn = torch.cat(first)[:, 1:].flatten().tolist()
        self.assertEqual(len(set(drawn)), len(drawn))

    def test_a_collate_of_its_own(self):
        loader = elastic.Loader(Counted(), collate_fn=len)
        self.assertEqual(read(loader, self.step(), [0, 1, 2], [[0, 1, 2]]), 3)


if __name__ == "__main__":
    unittest.main()
