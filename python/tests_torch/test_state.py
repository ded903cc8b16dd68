import os
import random
import tempfile
import unittest
from unittest import mock

import numpy
import torch

from concertina import keeper, samples
from concertina.run import _Random
from concertina.snapshot import SnapshotError
from concertina.tensors import Random, TensorCodec


class Holder:
    def __init__(self, **values):
        self.values = values

    def state_dict(self):
        return self.values

    def load_state_dict(self, values):
        self.values = values


class Order(unittest.TestCase):
    def test_many_samples_are_those_of_one_after_another(self):
        seed = random.SystemRandom().randrange(2**32)
        chance = random.Random(seed)
        for n in 1, 2, 9, 100, 2**16 + 1, 2**32 - 1, 2**61 + 3, samples.MAX_SAMPLES:
            order = samples.Permutation(chance.getrandbits(64), chance.getrandbits(32), n)
            for _ in range(20):
                first = chance.randrange(n)
                positions = range(first, min(n, first + chance.randint(1, 300)))
                self.assertEqual(order.of(positions), [order(position) for position in positions], f"seed {seed}: {n}")
            for outside in range(n - 1, n + 20), range(-20, 1):
                with self.assertRaises(IndexError):
                    order.of(outside)


class State(unittest.TestCase):
    def test_arrays_that_a_file_cannot_name_are_refused(self):
        kinds = [("a", "<f4"), ("b", "<i8")]
        with self.assertRaisesRegex(SnapshotError, "cannot be named in a file"):
            keeper.Keeper({"x": Holder(x=numpy.zeros(3, kinds))}, TensorCodec(), lambda: {"step": 1})._image()

    def through_a_file(self, change=lambda: None, **state):
        kept = keeper.Keeper(state, TensorCodec(), lambda: {"step": 1})
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.part")
            kept._image().write(path)
            change()
            self.assertEqual(kept.load(path), {"step": 1})

    def test_random_numbers(self):
        drawn = []

        def draw():
            drawn.append((random.random(), numpy.random.rand(), torch.rand(1).item()))

        self.through_a_file(draw, python=_Random(), torch=Random())
        draw()
        self.assertEqual(*drawn)

    def test_seeds_of_random_numbers(self):
        def drawn(seed):
            for source in _Random(), Random():
                source.seed(seed)
            return random.random(), numpy.random.rand(), torch.rand(1).item()

        first, again, other = drawn(2**64 - 1), drawn(2**64 - 1), drawn(3)
        self.assertEqual(first, again)
        for a, b in zip(first, other, strict=True):
            self.assertNotEqual(a, b)

    def test_what_trains_stays_where_it_is(self):
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        opt = torch.optim.AdamW(net.parameters())
        schedule = torch.optim.lr_scheduler.MultiStepLR(opt, [1, 2])

        def train():
            net(torch.rand(4, 3)).square().sum().backward()
            opt.step()
            schedule.step()

        train()
        before = [t.clone() for t in net.state_dict().values()]
        place, rate = net[0].weight.data_ptr(), opt.param_groups[0]["lr"]
        self.through_a_file(train, net=net, opt=opt, schedule=schedule)
        for got, want in zip(net.state_dict().values(), before, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)
        self.assertEqual((net[0].weight.data_ptr(), opt.param_groups[0]["lr"]), (place, rate))
        self.assertEqual({s["step"].item() for s in opt.state.values()}, {1})

    def test_other_tensors(self):
        columns = torch.arange(20, dtype=torch.bfloat16).reshape(4, 5).t()
        holder = Holder(a=columns, b=columns.shape, c=columns.dtype, d=torch.empty(0), e=torch.tensor(True))
        was = dict(holder.values, a=columns.clone())
        self.through_a_file(columns.zero_, holder=holder)
        self.assertTrue(torch.equal(holder.values["a"], was["a"]))
        self.assertEqual({n: holder.values[n] for n in "bce"}, {n: was[n] for n in "bce"})

    def test_running_out_of_memory_is_told_from_other_errors(self):
        kept = keeper.Keeper({"x": Holder(x=torch.zeros(3))}, TensorCodec(), lambda: {"step": 1})
        for error, want in [
            (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), MemoryError),
            (torch.cuda.OutOfMemoryError("CUDA out of memory"), MemoryError),
            (RuntimeError("CUDA error: an illegal memory access was encountered"), RuntimeError),
        ]:
            with mock.patch("torch.Tensor.cpu", side_effect=error), self.assertRaises(want):
                kept._image()

    def test_sparse_ones_are_refused(self):
        with self.assertRaisesRegex(SnapshotError, r"\['holder'\]\['a'\] is a torch.Tensor"):
            self.through_a_file(holder=Holder(a=torch.eye(2).to_sparse()))


if __name__ == "__main__":
    unittest.main()
