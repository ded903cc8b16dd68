"""Gradients of several ranks, and the mistakes that keep them from being right."""

import contextlib
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import concertina.torch as elastic
from concertina.gradients import Among, Gradients, _grouped
from concertina.worktime import WorkTime
from tests_torch import forkserver

SECONDS = 300
TESTS = str(pathlib.Path(__file__).with_name("gradients_of_ranks.py"))


class OfRanks(unittest.TestCase):
    def run_together(self, size):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "WORLD_SIZE": str(size)}
        env |= {"MEET": os.path.join(folder.name, "store")}
        ranks = []
        for rank in range(size):
            errors = self.enterContext(tempfile.TemporaryFile("w+"))
            ranks.append((forkserver.start([TESTS], env | {"RANK": str(rank)}, stderr=errors), errors))
            self.addCleanup(ranks[-1][0].wait)
            self.addCleanup(ranks[-1][0].kill)
        for rank, errors in ranks:
            code = rank.wait(SECONDS)
            errors.seek(0)
            self.assertEqual(code, 0, errors.read())

    def test_alone(self):
        self.run_together(1)

    def test_three(self):
        self.run_together(3)


class Buckets(unittest.TestCase):
    def test_they_depend_on_the_parameters_alone(self):
        shapes = [(600_000,), (10,), (600_000,), (30_000_000 // 4,), (5,)]
        params = [torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes]
        params.insert(2, torch.nn.Parameter(torch.empty(7, device="meta", dtype=torch.float16)))
        found = [[next(i for i, p in enumerate(params) if p is q) for q in group] for group in _grouped(reversed(params))]
        self.assertEqual(found, [[5], [4], [3, 1, 0], [2]])

    def test_channels_last_stays(self):
        net = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        gradients = Gradients()
        gradients.watch(net.parameters())
        gradients.begin(1, Among(1))
        gradients.backward(net(torch.ones(1, 3, 5, 5)).sum(), 1.0, True)
        gradients.exchange()
        self.assertEqual(net.weight.grad.stride(), net.weight.stride())
        self.assertTrue(torch.equal(net.weight.grad, torch.full_like(net.weight, 9.0)))


    def test_a_parameter_that_is_frozen_keeps_no_gradient(self):
        net = torch.nn.Linear(2, 1)
        gradients = Gradients()
        gradients.watch(net.parameters())
        for frozen in False, True:
            net.bias.requires_grad_(not frozen)
            gradients.begin(1, Among(1))
            gradients.backward(net(torch.ones(1, 2)).sum(), 1.0, True)
            gradients.exchange()
            gradients.settled()
            self.assertEqual(net.bias.grad is None, frozen)
            self.assertEqual(net.weight.grad.tolist(), [[1.0, 1.0]])

    def test_who_comes_last_in_a_bucket_is_learned(self):
        first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        gradients, launched = Gradients(), []
        with mock.patch("concertina.gradients._FIRST_BUCKET", 4 * (16 + 4)):
            gradients.watch([*second.parameters(), *first.parameters()])  # The first bucket has what comes last.
            first.weight.register_post_accumulate_grad_hook(lambda _: launched.append(gradients._launched))
            for _ in range(2):
                gradients.begin(1, Among(1))
                gradients.backward(second(first(torch.ones(1, 4))).sum(), 1.0, True)
                gradients.exchange()
        self.assertIs(gradients._buckets[0].last, first.weight)


class Waiting(unittest.TestCase):
    def test_what_an_exchange_waits_is_known(self):
        net, clock = torch.nn.Linear(2, 1), iter(range(0, 10**6, 7))
        gradients = Gradients()
        gradients.watch(net.parameters())
        work = mock.Mock()
        work.wait.side_effect = lambda: [next(clock) for _ in range(10)]
        with mock.patch("torch.distributed.all_reduce", return_value=work), mock.patch("time.perf_counter_ns", clock.__next__):
            for _ in range(2):
                gradients.begin(1, Among(2))
                gradients.backward(net(torch.ones(1, 2)).sum(), 1.0, True)
                gradients.exchange()
                self.assertEqual(gradients.waited, 11 * 7)
                self.assertEqual(gradients.stall, 11 * 7)
        self.assertEqual(work.wait.call_count, 2)

    def test_of_a_device_its_own_marks_say_it_once_it_has_come_so_far(self):
        net, gradients = torch.nn.Linear(2, 1), Gradients()
        gradients.watch(net.parameters())
        marks = [mock.Mock(), mock.Mock()]
        marks[0].elapsed_time.return_value = 3.5  # ms
        marks[1].query.return_value = False
        with mock.patch.object(Gradients, "_mark", side_effect=marks):
            gradients.begin(1, Among(1))
            gradients.backward(net(torch.ones(1, 2)).sum(), 1.0, True)
            gradients.exchange()
        self.assertIsNone(gradients.waited)
        marks[1].query.return_value = True
        self.assertEqual(gradients.waited, 3_500_000)
        marks[0].elapsed_time.assert_called_once_with(marks[1])

    def test_marks_that_are_ready_some_steps_later_belong_to_their_step(self):
        net, gradients, marks, reached = torch.nn.Linear(2, 1), Gradients(), [], 0
        gradients.watch(net.parameters())
        for i in range(4):
            begins, ends = mock.Mock(), mock.Mock()
            begins.elapsed_time.side_effect = lambda mark, ends=ends, i=i: i + 1.0 if mark is ends else -100.0
            ends.query.side_effect = lambda i=i: i < reached
            marks += begins, ends
        now = 0
        work = WorkTime(lambda: now)
        work.go()
        with mock.patch.object(Gradients, "_mark", side_effect=marks):
            for i, total in enumerate((0, 0, 9 + 8, 9 + 8 + 7 + 6)):  # a step takes 10 ms, and waits for one more than the last
                gradients.begin(1, Among(1))
                gradients.backward(net(torch.ones(1, 2)).sum(), 1.0, True)
                gradients.exchange()
                now, reached = now + 10_000_000, (0, 0, 2, 4)[i]
                work.done(gradients.stall, 1.0)
                self.assertEqual(work.total, total * 1_000_000)


    def test_what_is_around_the_exchange_counts_it_once(self):
        net, now, exchange = torch.nn.Linear(2, 1), 0, Gradients.exchange
        opt = torch.optim.SGD(net.parameters(), lr=0.1)

        def exchanges(gradients):
            nonlocal now
            now += 1000
            exchange(gradients)

        with (
            mock.patch.dict(os.environ, clear=True),
            mock.patch.object(Gradients, "exchange", exchanges),
            mock.patch.object(Gradients, "stall", 1000),
            mock.patch("concertina.job.WorkTime", lambda: WorkTime(lambda: now)),
        ):
            job = elastic.join(state={"net": net, "opt": opt})
            for step in job.steps(torch.utils.data.TensorDataset(torch.ones(4, 2)), global_batch=2, epochs=1):
                with step:
                    for (x,) in step.micro_batches():
                        with step.waits():
                            now += 10
                            step.backward(net(x).mean())
                    opt.step()
        self.assertEqual(job._work.total, 2 * 10)


class Stream(torch.utils.data.IterableDataset):
    def __len__(self):
        return 3

    def __iter__(self):
        return iter(())


class Mistakes(unittest.TestCase):
    """Of each the message says what to do instead."""

    def setUp(self):
        self.enterContext(mock.patch.dict(os.environ))
        for name in "CONCERTINA_SOCKET", "RANK", "WORLD_SIZE":
            os.environ.pop(name, None)
        self.net = torch.nn.Linear(3, 2)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.data = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.zeros(8, dtype=torch.long))

    def train(self, body, error=RuntimeError, words="", **state):
        job = elastic.join({"net": self.net, "opt": self.opt} | state)
        with self.assertRaisesRegex(error, words):
            for step in job.steps(self.data, global_batch=4, micro_batch=2, epochs=1):
                with step:
                    body(step)

    def loss(self, batch):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def test_backward_of_its_own(self):
        self.train(lambda step: [self.loss(batch).backward() for batch in step.micro_batches()], words="use step.backward")

    def test_backward_twice(self):
        def body(step):
            for batch in step.micro_batches():
                step.backward(self.loss(batch))
                step.backward(self.loss(batch))

        self.train(body, words="once for each")

    def test_an_optimizer_that_does_not_wait(self):
        def body(step):
            for batch in step.micro_batches():
                step.backward(self.loss(batch))
                self.opt.step()

        self.train(body, words="before the gradients are exchanged")

    def test_a_step_that_is_left_early(self):
        self.train(lambda step: next(step.micro_batches()), words="to its end")

    def test_weights_that_are_none(self):
        for weight in -1, float("nan"), float("inf"):
            self.train(
                lambda step: [step.backward(self.loss(b), weight=weight) for b in step.micro_batches()], ValueError, "weight="
            )

    def test_the_loss_before_it_is_there(self):
        self.train(lambda step: step.loss, words="once the loop")

    def test_reentrant_checkpoints(self):
        def twice(x):
            return checkpoint(self.net, checkpoint(lambda v: self.net(v).repeat(1, 2)[:, :3], x, use_reentrant=True), use_reentrant=True)

        def body(step):
            for x, y in step.micro_batches():
                step.backward(F.cross_entropy(twice(x.requires_grad_()), y))

        with mock.patch("concertina.gradients._FIRST_BUCKET", 1):  # In the last bucket it does no harm.
            self.train(body, words="use_reentrant=False")

    def test_backward_of_its_own_after_the_exchange(self):
        def body(step):
            for x, y in step.micro_batches():
                step.backward(F.cross_entropy(self.net(x), y))
            self.net(x).sum().backward()
            self.opt.step()

        self.train(body, words="use step.backward")

    def test_a_backward_pass_that_failed_and_was_swallowed(self):
        def fail(gradient):
            raise ArithmeticError

        def body(step):
            for batch in step.micro_batches():
                loss = self.loss(batch)
                loss.register_hook(fail)
                with contextlib.suppress(ArithmeticError):
                    step.backward(loss)

        self.train(body, words="let its error end the step")

    def test_a_loss_of_each_sample(self):
        def body(step):
            for x, y in step.micro_batches():
                step.backward(F.cross_entropy(self.net(x), y, reduction="none"))

        self.train(body, ValueError, "of 2 numbers")

    def test_parameters_that_an_optimizer_is_given_in_a_step(self):
        def body(step):
            for batch in step.micro_batches():
                step.backward(self.loss(batch))
            self.opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
            self.opt.step()

        self.train(body, words="between two steps")

    def test_data_that_is_none(self):
        job = elastic.join({})
        for data, error, words in [
            (torch.utils.data.DataLoader(self.data), TypeError, "give its data set"),
            (iter([1]), TypeError, "must have a length"),
            (Stream(), TypeError, "a stream"),
            (self.data.tensors, TypeError, "TensorDataset"),
            ({"x": torch.ones(3, 2)}, TypeError, "TensorDataset"),
        ]:
            with self.assertRaisesRegex(error, words):
                job.steps(data, global_batch=1, epochs=1)
        with self.assertRaisesRegex(ValueError, "collate_fn"):
            job.steps(elastic.Loader(self.data), global_batch=1, epochs=1, collate=len)

    def test_options_of_a_loader(self):
        for option in "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last":
            with self.assertRaisesRegex(ValueError, f"{option}=…"):
                elastic.Loader(self.data, **{option: 1})
        with self.assertRaisesRegex(ValueError, "in_order=False"):
            elastic.Loader(self.data, in_order=False)


if __name__ == "__main__":
    unittest.main()
