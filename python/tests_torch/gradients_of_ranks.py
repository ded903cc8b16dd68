"""Tests that several ranks of one world run together: each compares the gradients that they exchange with those that it
computes by itself from the whole batch. test_gradients.py starts them."""

import contextlib
import datetime
import os
import sys
import unittest
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F

from concertina import samples
from concertina.gradients import Among, Gradients
from concertina.groups import Groups

RANK, SIZE = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def setUpModule():
    meet = f"file://{os.environ['MEET']}"  # a port that is free now may be somebody's a moment later
    dist.init_process_group("gloo", meet, datetime.timedelta(seconds=240), SIZE, RANK)


def tearDownModule():
    dist.barrier()  # Who still exchanges something with a rank whose group is gone would be aborted.
    Groups("gloo").leave()  # which waits for no thread that waits for the interpreter's lock


class Words(torch.nn.Module):
    """Says which word follows, in sentences that are padded with -1."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(4)
        self.embed = torch.nn.Embedding(11, 8, dtype=dtype)
        self.inner = torch.nn.Linear(8, 8, dtype=dtype)
        self.unused = torch.nn.Linear(2, 2, dtype=dtype)
        self.out = torch.nn.Linear(8, 11, dtype=dtype)

    def forward(self, words):
        return self.out(torch.tanh(self.inner(self.embed(words.clamp(min=0)))))


def sentences(count):
    generator = torch.Generator().manual_seed(7)
    words = torch.randint(0, 11, (count, 9), generator=generator)
    lengths = torch.randint(1, 10, (count, 1), generator=generator)
    return torch.where(torch.arange(9) < lengths, words, -1)


def mean_loss(model, words):
    """The mean over tokens that are no padding, and how many they are."""
    ahead = words[:, 1:]
    logits = model(words[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), ahead.flatten(), ignore_index=-1), int((ahead >= 0).sum())


class Exchange(unittest.TestCase):
    def step(self, gradients, model, words, micro=2, run=None, loss=mean_loss, weigh=True):
        """Makes this rank's part of a step."""
        run = model if run is None else run
        gradients.watch(model.parameters())
        gradients.begin(len(words), Among(SIZE))
        pieces = [p for p in samples.micro_batches(0, len(words), SIZE, RANK, micro) if p.samples]
        for i, piece in enumerate(pieces):
            part, tokens = loss(run, words[piece.first : piece.first + piece.samples])
            weight = tokens if weigh else piece.samples
            if weight:
                gradients.backward(part, weight, i == len(pieces) - 1)
        gradients.exchange()
        gradients.settled()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    def wanted(self, model, words, loss=mean_loss):
        """The gradients of the whole batch at once."""
        model.zero_grad(set_to_none=True)
        whole, _ = loss(model, words)
        whole.backward()
        found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
        model.zero_grad(set_to_none=True)
        return found, whole.detach()

    def same(self, got, want, **tolerance):
        for name in want:
            torch.testing.assert_close(got[name], want[name], msg=lambda text: f"{name}: {text}", **tolerance)

    def gradients(self):
        made = Gradients()
        self.addCleanup(made.close)
        return made

    def test_means_over_tokens(self):
        for count in 1, 2, 7, 12:  # With one sentence some ranks have none.
            with self.subTest(sentences=count):
                model, words, gradients = Words(), sentences(count), self.gradients()
                want, loss = self.wanted(model, words)
                for _ in range(2):
                    self.same(self.step(gradients, model, words), want, rtol=1e-6, atol=1e-8)
                self.assertAlmostEqual(float(gradients.loss), float(loss), places=5)

    def test_means_over_samples(self):
        def loss(model, words):
            return model(words).square().mean(dim=(1, 2)).mean(), len(words)

        for count in 1, 5, 12:
            with self.subTest(sentences=count):
                model, words, gradients = Words(), sentences(count).clamp(min=0), self.gradients()
                want, _ = self.wanted(model, words, loss)
                self.same(self.step(gradients, model, words, loss=loss, weigh=False), want, rtol=1e-6, atol=1e-8)

    def test_a_batch_of_padding_alone(self):
        model, words, gradients = Words(), torch.full((6, 9), -1), self.gradients()
        got = self.step(gradients, model, words)
        self.assertTrue(all(torch.equal(grad, torch.zeros_like(grad)) for grad in got.values()))

    def test_half_precision(self):
        for dtype, tolerance in (torch.float16, 2e-3), (torch.bfloat16, 2e-2):
            with self.subTest(dtype=dtype):
                model, words, gradients = Words(dtype), sentences(11), self.gradients()
                want, loss = self.wanted(model, words)
                for _ in range(2):
                    got = self.step(gradients, model, words)
                    self.same(got, want, rtol=tolerance, atol=tolerance)
                self.assertAlmostEqual(float(gradients.loss), float(loss), places=2)
                self.assertTrue(all(grad.dtype is dtype for grad in got.values()))

    def test_many_tokens_do_not_overflow_half_precision(self):
        # A gradient of 8 and 50,000 tokens for each sample: their product is no number of float16.
        weight = torch.nn.Parameter(torch.ones(4, dtype=torch.float16))
        gradients = self.gradients()
        gradients.watch([weight])
        for step in range(3):
            gradients.begin(SIZE, Among(SIZE))
            gradients.backward((weight * 8).sum(), 50_000, True)
            gradients.exchange()
            gradients.settled()
            if step:
                torch.testing.assert_close(weight.grad, torch.full_like(weight, 8.0), rtol=1e-2, atol=0)
        self.assertEqual(gradients.scale, 16)

    def test_a_gradient_that_only_one_rank_has(self):
        class Sometimes(Words):
            def forward(self, words):
                made = super().forward(words)
                return made + self.unused.weight.sum() if RANK == SIZE - 1 else made

        model, words = Sometimes(), sentences(9)
        got = self.step(self.gradients(), model, words)
        everywhere = [None] * SIZE
        dist.all_gather_object(everywhere, {name: grad.tolist() for name, grad in got.items()})
        self.assertTrue(all(other == everywhere[0] for other in everywhere))
        self.assertNotEqual(sum(map(abs, everywhere[0]["embed.weight"][0])), 0)

    def test_compiled_models_make_the_same_gradients(self):
        model, words, gradients = Words(), sentences(12), self.gradients()
        want, _ = self.wanted(model, words)
        compiled = torch.compile(model, backend="aot_eager")
        for _ in range(2):
            self.same(self.step(gradients, model, words, run=compiled), want, rtol=1e-6, atol=1e-8)

    def test_zero_grad_in_the_step_changes_nothing(self):
        model, words, gradients = Words(), sentences(12), self.gradients()
        want, _ = self.wanted(model, words)
        for to_none in True, False:
            begin = gradients.begin
            with mock.patch.object(
                gradients, "begin", lambda *a: (begin(*a), model.zero_grad(set_to_none=to_none))
            ):
                self.same(self.step(gradients, model, words), want, rtol=1e-6, atol=1e-8)

    def test_a_parameter_that_is_frozen_later(self):
        model, words, gradients = Words(), sentences(12), self.gradients()
        self.step(gradients, model, words)
        model.embed.weight.requires_grad_(False)
        want, _ = self.wanted(model, words)
        del want["embed.weight"]
        with contextlib.suppress(AttributeError):  # The frozen one has no gradient to copy.
            self.step(gradients, model, words)
        self.same({name: p.grad for name, p in model.named_parameters()}, want, rtol=1e-6, atol=1e-8)

    def test_it_is_exchanged_on_the_way_and_once(self):
        model = torch.nn.Sequential(*(torch.nn.Linear(600, 600, bias=False) for _ in range(4)))
        gradients, done = self.gradients(), []
        model[0].weight.register_post_accumulate_grad_hook(lambda _: done.append(reduce.call_count))
        gradients.watch(model.parameters())
        with mock.patch.object(dist, "all_reduce", side_effect=dist.all_reduce) as reduce:
            gradients.begin(SIZE, Among(SIZE))
            gradients.backward(model(torch.ones(1, 600)).sum(), 1.0, False)
            gradients.backward(model(torch.ones(1, 600)).sum(), 1.0, True)
            gradients.exchange()
        # The bucket of the last layer is away before the first layer has its gradient.
        alone = SIZE == 1
        self.assertEqual((done, reduce.call_count), ([0, 0 if alone else 1], 0 if alone else 2))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
