import os
import random
import tempfile
import unittest
from unittest import mock

import numpy
import torch

import concertina.torch as elastic
from concertina import keeper, samples
from concertina.snapshot import SnapshotError
from concertina.tensors import InPlace, TensorCodec


def write(image, path):
    image.write(image.whole(path))


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
            keeper.Keeper({"x": Holder(x=numpy.zeros(3, kinds))}, TensorCodec(), lambda: {"step": 1}).image()

    def through_a_file(self, change=lambda: None, **state):
        kept = keeper.Keeper(state, TensorCodec(), lambda: {"step": 1})
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.part")
            write(kept.image(), path)
            change()
            self.assertEqual(kept.load(path), {"step": 1})

    def test_seeds_of_random_numbers(self):
        job = elastic.join({}, backend="gloo")
        self.addCleanup(job._close)

        def drawn(seed):
            job._reseed(seed)
            return random.random(), numpy.random.rand(), torch.rand(1).item()

        first, again, other = drawn(2**64 - 1), drawn(2**64 - 1), drawn(3)
        self.assertEqual(first, again)
        for a, b in zip(first, other, strict=True):
            self.assertNotEqual(a, b)

    def test_an_optimizer_is_loaded_into_the_groups_that_are_there(self):
        net = torch.nn.Linear(3, 3)
        opt = torch.optim.Adam([{"params": [net.weight]}, {"params": [net.bias], "lr": torch.tensor(0.5)}])
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda epoch: 0.9**epoch)

        def train():
            net(torch.rand(4, 3)).square().sum().backward()
            opt.step()
            schedule.step()

        train()
        groups, rate, moment = list(opt.param_groups), opt.param_groups[1]["lr"], opt.state[net.weight]["exp_avg"]
        want = moment.clone(), rate.item(), groups[0]["lr"]

        def change():
            train()
            groups[0]["of later"] = 1

        self.through_a_file(change, opt=InPlace(opt), schedule=schedule)
        self.assertIs(opt.param_groups[0], groups[0])
        self.assertIs(opt.param_groups[1], groups[1])
        self.assertIs(groups[1]["lr"], rate)
        self.assertIs(opt.state[net.weight]["exp_avg"], moment)
        torch.testing.assert_close(moment, want[0], rtol=0, atol=0)
        self.assertEqual((rate.item(), groups[0]["lr"]), want[1:])
        self.assertNotIn("of later", groups[0])

    def test_one_of_more_groups_is_loaded_as_a_whole(self):
        net = torch.nn.Linear(3, 3)
        opt = torch.optim.SGD(net.parameters(), lr=1.0)
        other = torch.optim.SGD([{"params": [net.weight]}, {"params": [net.bias]}], lr=0.5)
        opt.load_state_dict = mock.Mock(side_effect=lambda state: setattr(opt, "param_groups", other.param_groups))
        InPlace(opt).load_state_dict({})
        self.assertEqual([group["lr"] for group in opt.param_groups], [0.5, 0.5])

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

    def test_values_that_come_to_share_memory(self):
        """They begin at different places of it, have it in another order, or share it with themselves: what comes last would be in the other
        one as well."""
        def numbered(first):
            return torch.arange(90_000.0).view(300, 300) + first

        base = torch.zeros(90_007)
        first = base[:90_000].view(300, 300)
        for second in base[7:].view(300, 300), first.t(), base[:1].expand(300, 300):
            for order in "ab", "ba":
                with self.subTest(order=order, strides=second.stride()):
                    there = {"a": numbered(1.0), "b": numbered(5.0)}
                    holder = Holder(**{name: there[name] for name in order})

                    def change(holder=holder, second=second):
                        holder.values |= {"a": first, "b": second}

                    self.through_a_file(change, holder=holder)
                    for name, want in there.items():
                        self.assertTrue(torch.equal(holder.values[name], want), name)

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
                kept.image()

    def test_sparse_ones_are_refused(self):
        with self.assertRaisesRegex(SnapshotError, r"\['holder'\]\['a'\] is a torch.Tensor"):
            self.through_a_file(holder=Holder(a=torch.eye(2).to_sparse()))


if __name__ == "__main__":
    unittest.main()
