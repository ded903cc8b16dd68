import os
import random
import tempfile
import unittest

import numpy
import torch

from concertina import keeper
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


class State(unittest.TestCase):
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

    def test_sparse_ones_are_refused(self):
        with self.assertRaisesRegex(SnapshotError, r"\['holder'\]\['a'\] is a torch.Tensor"):
            self.through_a_file(holder=Holder(a=torch.eye(2).to_sparse()))


if __name__ == "__main__":
    unittest.main()
