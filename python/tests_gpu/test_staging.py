"""Snapshots of a state on a GPU, which are copied while it computes, and put back."""

import contextlib
import os
import tempfile
import unittest
from unittest import mock

import torch

from concertina import snapshot
from concertina.devices import Cuda, Devices
from concertina.tensors import TensorCodec
from tests_gpu import DEVICE
from tests_torch import test_staging

NORMAL = torch.randn
LONG = 200_000_000
"""Cycles of a GPU, a tenth of a second."""


def busy(cycles=LONG):
    """Gives the GPU something to do for a while."""
    if DEVICE == "cuda":
        torch.cuda._sleep(cycles)


class Slow(Cuda):
    """Waits on the GPU before it copies, as long as it is told to."""

    wait_first = 0

    def has(self, tensor):
        return DEVICE == "cpu" or super().has(tensor)

    def copy(self, device, into, sources):
        if DEVICE == "cpu":
            torch._foreach_copy_(into, sources)
            return device
        if self.wait_first:
            self._streams.setdefault(device, torch.cuda.Stream(device))
            with torch.cuda.stream(self._streams[device]):
                torch.cuda._sleep(self.wait_first)
        return super().copy(device, into, sources)

    if DEVICE == "cpu":

        def pin(self, room, device):
            pass

        def at(self, device):
            return contextlib.nullcontext()

        def settle(self, device):
            pass

        def fence(self, device, mark):
            pass

        def wait(self, mark):
            pass


class OnAGpu(test_staging.Staging):
    """Those of tests_torch, with the network on the GPU."""

    def devices(self):
        self.device = Slow()
        return Devices(self.device)

    def setUp(self):
        super().setUp()
        self.net.to(DEVICE)
        self.opt = torch.optim.Adam(self.net.parameters(), fused=DEVICE == "cuda")
        self.keeper._state = {"net": self.net, "opt": self.opt}
        self.enterContext(mock.patch("torch.randn", lambda *size: NORMAL(*size, device=DEVICE)))

    def check(self):
        for step, path in self.agent.taken.items():
            _, state = snapshot.read(path, self.codec)
            for name, value in self.states[step].items():
                self.assertTrue(torch.equal(state["net"][name], value.cpu()), f"{name} of step {step}")

    def test_an_optimizer_waits_for_the_copy(self):
        """On the GPU: the program itself goes on."""
        self.train()
        self.train()
        self.keeper._join()
        self.device.wait_first = LONG
        self.train()
        if DEVICE == "cuda":
            self.assertFalse(torch.cuda.current_stream().query(), "the program has waited for the copy")
        self.device.wait_first = 0
        self.keeper._join()
        self.assertIn(3, self.agent.taken)
        self.check()

    def test_the_program_goes_on_while_the_gpu_computes_what_is_copied(self):
        self.train()
        self.train()
        self.keeper._join()
        torch.manual_seed(5)
        busy(5 * LONG)
        self.keeper.consider(self.step)
        if DEVICE == "cuda":
            self.assertFalse(torch.cuda.current_stream().query(), "the program has waited for the GPU")
        self.states[self.step] = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.keeper._join()
        self.assertIn(self.step, self.agent.taken)
        self.check()

    def test_who_writes_unseen_costs_that_snapshot_alone(self):
        def in_place():
            with torch.no_grad():
                for value in self.net.parameters():
                    value.add_(1)

        def behind_its_back():
            for value in self.net.parameters():
                value.data.mul_(2)

        if DEVICE == "cpu":
            self.skipTest("TEST_DEVICE=cpu has nothing that copies late")
        for write in in_place, behind_its_back:
            with self.subTest(write.__name__):
                self.setUp()
                self.train()
                self.train()
                self.keeper._join()
                taken = set(self.agent.taken)
                self.device.wait_first = LONG
                self.train(write)
                self.keeper.fence()
                self.keeper._join()
                self.device.wait_first = 0
                self.assertEqual(set(self.agent.taken), taken)
                self.assertRegex(" ".join(self.agent.failed), "has written to the state while it was copied")
                for _ in range(3):
                    self.train(write)
                    self.keeper._join()
                self.assertGreater(len(self.agent.taken), len(taken))
                self.check()


    def test_memory_that_cannot_be_pinned_is_used_as_it_is(self):
        refused = mock.Mock(**{"cudaHostRegister.return_value": 1})
        with mock.patch("torch.cuda.cudart", return_value=refused):
            for _ in range(10):
                self.train()
            self.keeper._join()
        self.assertEqual(self.agent.failed, [])
        self.check()


class PutBack(unittest.TestCase):
    def test_each_kind_is_bit_by_bit_what_it_was(self):
        path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "a.part")
        codec = TensorCodec(devices=Devices(Slow()))
        torch.manual_seed(1)
        bits = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8, device=DEVICE)  # infinities and NaNs among them
        kinds = torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.complex64
        state = {str(kind): bits.view(kind) for kind in kinds}
        state |= {
            "float8": bits.view(torch.float8_e4m3fn),
            "truth": bits > 100,
            "many pieces": torch.randn(5_000_000, device=DEVICE),
            "number": torch.tensor(7.0, device=DEVICE),
            "none": torch.empty(0, 3, device=DEVICE),
            "part": torch.arange(100_000, device=DEVICE)[10:50_000],
            "columns": torch.randn(400, 500, device=DEVICE).t(),
            "channels": torch.randn(20, 30, 40, 5, device=DEVICE).to(memory_format=torch.channels_last),
            "of the processor": torch.randn(100_000),
        }
        image = snapshot.Image(state, {"step": 1}, codec)
        image.bring(codec.room(image.away))
        image.write(image.whole(path))
        there = {name: torch.zeros_like(value) for name, value in state.items()}
        places = {name: value.data_ptr() for name, value in there.items()}
        _, found = snapshot.read(path, codec, there)
        for name, value in state.items():
            self.assertEqual((found[name].device, found[name].dtype), (value.device, value.dtype), name)
            self.assertEqual(found[name].data_ptr(), places[name], name)
            same = (a.contiguous().view(-1).view(torch.uint8) for a in (found[name], value))
            self.assertTrue(torch.equal(*same), name)

    def test_a_network_and_its_optimizer(self):
        path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "a.part")
        for options in {"fused": True}, {"capturable": True}, {"foreach": True}:
            with self.subTest(**options):
                if DEVICE == "cpu" and "capturable" in options:
                    self.skipTest("a GPU's")
                self.there_and_back(path, options)
                os.unlink(path)

    def there_and_back(self, path, options):
        case = test_staging.Staging()
        codec = TensorCodec(devices=Devices(Slow()))
        nets = [torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300)).to(DEVICE) for _ in range(2)]
        opts = [torch.optim.AdamW(net.parameters(), **options) for net in nets]
        for net, opt in zip(nets, opts, strict=True):
            for _ in range(3):
                opt.zero_grad()
                net(torch.randn(8, 300, device=DEVICE)).square().mean().backward()
                opt.step()
        keepers = [
            test_staging.Keeper({"net": net, "opt": opt}, codec, lambda: {"step": 3}) for net, opt in zip(nets, opts, strict=True)
        ]
        image = keepers[0].image()
        image.bring(codec.room(image.away))
        image.write(image.whole(path))
        places = [p.data_ptr() for p in nets[1].parameters()]
        keepers[1].load(path)
        case.assertEqual([p.data_ptr() for p in nets[1].parameters()], places)
        pairs = [*zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True)]
        for a, b in zip(opts[0].state.values(), opts[1].state.values(), strict=True):
            pairs += [(a[name], b[name]) for name in a]
        for a, b in pairs:
            case.assertEqual(a.device, b.device)
            case.assertTrue(torch.equal(a, b))
