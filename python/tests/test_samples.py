import json
import pathlib
import random
import unittest

from concertina import samples

VECTORS = json.loads((pathlib.Path(__file__).parents[2] / "testdata" / "samples.json").read_text())


class Vectors(unittest.TestCase):
    def test_permutations(self):
        for vector in VECTORS["permutations"]:
            order = samples.Permutation(vector["seed"], vector["epoch"], vector["n"])
            self.assertEqual([order(position) for position in vector["positions"]], vector["samples"], vector)

    def test_plans(self):
        for plan in VECTORS["plans"]:
            firsts = range(0, plan["n"], plan["globalBatch"])
            self.assertEqual(samples.steps_per_epoch(plan["n"], plan["globalBatch"]), len(plan["steps"]))
            for first, step in zip(firsts, plan["steps"], strict=True):
                for rank, part in enumerate(step["ranks"]):
                    got = samples.micro_batches(first, step["samples"], plan["world"], rank, plan["microBatch"])
                    self.assertEqual([piece._asdict() for piece in got], part["microBatches"])


class Properties(unittest.TestCase):
    def setUp(self):
        self.seed = random.SystemRandom().randrange(2**32)
        self.random = random.Random(self.seed)

    def test_every_sample_once_whatever_the_world(self):
        for _ in range(200):
            n, batch = self.random.randint(1, 300), self.random.randint(1, 80)
            world, micro = self.random.randint(1, 12), self.random.randint(1, 40)
            case = f"seed {self.seed}: n={n} batch={batch} world={world} micro={micro}"
            order = samples.Permutation(self.random.getrandbits(64), self.random.getrandbits(32), n)
            seen = []
            for first in range(0, n, batch):
                size = min(batch, n - first)
                parts = [samples.micro_batches(first, size, world, rank, micro) for rank in range(world)]
                self.assertEqual(len({len(part) for part in parts}), 1, f"{case}: unequal numbers of pieces")
                for piece in sum(parts, []):
                    self.assertLessEqual(piece.samples, micro, case)
                    seen += [order(piece.first + i) for i in range(piece.samples)]
            self.assertEqual(sorted(seen), list(range(n)), case)

    def test_an_order_is_the_permutation_wherever_it_is_read(self):
        for _ in range(50):
            n, seed = self.random.randint(1, 5000), self.random.getrandbits(64)
            order, want = samples.Order(seed, 0, n), samples.Permutation(seed, 0, n)
            for _ in range(20):
                first = self.random.randint(0, n)
                positions = range(first, self.random.randint(first, min(n, first + 1500)))
                self.assertEqual(order.of(positions), [want(i) for i in positions], f"seed {self.seed}: {n} {positions}")

    def test_weighted_means_average_to_the_mean_of_the_batch(self):
        for _ in range(200):
            size, world, micro = self.random.randint(1, 60), self.random.randint(1, 12), self.random.randint(1, 40)
            values = [self.random.uniform(-1, 1) for _ in range(size)]
            total = 0.0
            for rank in range(world):
                for piece in samples.micro_batches(0, size, world, rank, micro):
                    part = values[piece.first : piece.first + piece.samples] or values[:1]
                    total += piece.weight * sum(part) / len(part)
            case = f"seed {self.seed}: size={size} world={world} micro={micro}"
            self.assertAlmostEqual(total / world, sum(values) / size, 12, case)


class BadInput(unittest.TestCase):
    def test_out_of_range(self):
        for seed, epoch, n in (-1, 0, 1), (2**64, 0, 1), (0, -1, 1), (0, 2**64, 1), (0, 0, 0), (0, 0, 2**62 + 1):
            with self.assertRaises(ValueError, msg=f"{seed} {epoch} {n}"):
                samples.Permutation(seed, epoch, n)
        order = samples.Permutation(0, 0, 10)
        for position in -1, 10:
            with self.assertRaises(IndexError):
                order(position)


if __name__ == "__main__":
    unittest.main()
