"""One rank, one process: the loop with all of its state on the device, and the group that exchanges for it."""

import contextlib
import os
import struct
import threading
import unittest
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import concertina.torch as elastic
from concertina import gradients, groups
from concertina.groups import Groups
from concertina.world import from_environment
from tests.fakeagent import FakeAgent, world
from tests_gpu import BACKEND, DEVICE

SAMPLES, BATCH = 240, 12
SETTINGS = [f"TORCH_NCCL_{name}" for name in groups._WATCHDOG]


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 16, generator=generator)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def network():
    torch.manual_seed(2)
    hidden = torch.nn.Linear(16, 512), torch.nn.BatchNorm1d(512), torch.nn.Tanh()
    return torch.nn.Sequential(*hidden, torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 2)).to(DEVICE)


class Case(unittest.TestCase):
    def setUp(self):
        self.agent = self.enterContext(FakeAgent(world(writer=True)))
        self.agent.interval = 1e-9
        environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        environment |= {"CONCERTINA_SOCKET": self.agent.path, "LOCAL_RANK": "0"}
        self.enterContext(mock.patch.dict(os.environ, environment, clear=True))
        self.failed = []

    def exchanged(self):
        """Has one rank exchange its gradients like many do: with itself."""
        begin = gradients.Gradients.begin

        def begun(gradients, samples, among):
            return begin(gradients, samples, among._replace(size=2))

        self.enterContext(mock.patch.object(gradients.Gradients, "begin", begun))

    def train(self, each=lambda step: None, compiled=False, half=False, epochs=2, init_scale=2.0**16):
        """The losses of the steps that were committed, and the network."""
        net = network()
        opt = torch.optim.Adam(net.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=init_scale, growth_interval=10, enabled=half)
        model = torch.compile(net) if compiled else net
        job = elastic.join({"net": net, "opt": opt, "scaler": scaler}, seed=5, backend=BACKEND)
        losses = {}
        for step in job.steps(data(), global_batch=BATCH, micro_batch=6, epochs=epochs):
            with step:
                self.assertEqual(dist.get_backend(), BACKEND)
                each(step)
                for x, y in step.micro_batches():
                    with torch.autocast(DEVICE, torch.float16 if DEVICE == "cuda" else torch.bfloat16, enabled=half):
                        loss = F.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
                    step.backward(scaler.scale(loss))
                scaler.step(opt)
                scaler.update()
                step.report(loss=step.loss)
            if step.committed:
                losses[step.number] = step.loss.item()
        self.assertFalse(dist.is_initialized())
        self.scaler = scaler
        return losses, net

    def by_hand(self, half, init_scale):
        """The same without a job, of the same samples: its network and scaler."""
        net = network()
        opt = torch.optim.Adam(net.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=init_scale, growth_interval=10, enabled=half)
        from concertina import samples

        for epoch in range(2):
            order = samples.Order(5, epoch, SAMPLES)
            for first in range(0, SAMPLES, BATCH):
                opt.zero_grad()
                for at in range(first, first + BATCH, 6):
                    x, y = (tensor[order.of(range(at, at + 6))].to(DEVICE) for tensor in data().tensors)
                    with torch.autocast(DEVICE, torch.float16 if DEVICE == "cuda" else torch.bfloat16, enabled=half):
                        loss = F.cross_entropy(net(x), y)
                    scaler.scale(loss * 6 / BATCH).backward()
                scaler.step(opt)
                scaler.update()
        return net, scaler

    def script(self, act):
        """Plays the agent's side in a thread; what it raises fails the test."""

        def run():
            try:
                act()
            except BaseException as error:
                self.failed.append(error)
                self.agent.hang_up()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    @contextlib.contextmanager
    def beside(self, act):
        thread = self.script(act)
        try:
            yield
        finally:
            thread.join()
            if self.failed:
                raise self.failed[0]

    def hear(self, kind):
        while True:
            _, message = self.agent.messages.get(timeout=240)
            if message["type"] == kind:
                return message

    def assert_same(self, net, other, rtol=0.0, atol=0.0):
        for (name, a), b in zip(net.state_dict().items(), other.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, msg=lambda text: f"{name}: {text}")


class Training(Case):
    def test_a_step_is_that_of_pytorch_alone(self):
        self.exchanged()
        losses, net = self.train()
        self.assertEqual(len(losses), 40)
        other, _ = self.by_hand(False, 1.0)
        self.assert_same(net, other, rtol=1e-3, atol=1e-4)

    def test_half_precision_whose_scale_is_too_large_at_first(self):
        self.exchanged()
        _, net = self.train(half=True, init_scale=2.0**40)
        other, scaler = self.by_hand(True, 2.0**40)
        self.assertEqual(self.scaler.get_scale(), scaler.get_scale())
        if DEVICE == "cuda":  # What processors compute in is no less wide than float32.
            self.assertLess(self.scaler.get_scale(), 2.0**40)
        self.assert_same(net, other, rtol=1e-1, atol=2e-2)

    def test_the_gradients_are_exchanged_in_the_group(self):
        self.exchanged()
        with mock.patch.object(dist, "all_reduce", side_effect=dist.all_reduce) as reduce:
            self.train(epochs=1)
        tensors = [call.args[0] for call in reduce.call_args_list]
        self.assertGreaterEqual(len(tensors), 20)
        self.assertEqual({tensor.device.type for tensor in tensors}, {DEVICE})

    def test_a_snapshot_in_each_step_changes_nothing(self):
        self.exchanged()
        _, net = self.train()
        taken = [message for message in self.agent.received("snapshot") if "file" in message]
        self.assertGreater(len(taken), 1)
        self.agent.interval = 3600
        with FakeAgent(world(writer=False)) as other, mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": other.path}):
            _, undisturbed = self.train()
        self.assert_same(net, undisturbed)


class Changes(Case):
    def park(self, step):
        self.agent.stop(step)
        self.assertEqual(self.hear("parked")["step"], step)

    def test_the_group_is_made_anew_in_the_same_process(self):
        self.exchanged()
        _, undisturbed = self.train()
        self.setUp()

        def change():
            for round in range(2, 8):
                self.park(4 * round)
                self.agent.say("save", step=4 * round)
                self.assertNotIn("error", self.hear("snapshot"))
                self.agent.stop(0)
                self.agent.give(world(round=round, fromStep=4 * round, restore=False, writer=False))

        rounds, threads = [], []

        def each(step):
            if step.world.round not in rounds:
                rounds.append(step.world.round)
                threads.append(len(os.listdir("/proc/self/task")))

        self.agent.stop(8)
        with self.beside(change):
            losses, net = self.train(each)
        self.assertEqual(rounds, [1, *range(2, 8)])
        self.assertEqual(len(losses), 40)
        self.assert_same(net, undisturbed)
        self.assertLessEqual(threads[-1], threads[2], f"threads in each world: {threads}")

    def test_a_program_that_waits_for_a_busy_device_is_told_of_the_end_of_its_world(self):
        """Waiting for it, PyTorch lets the interpreter's lock go, and so does whoever aborts the group: the thread that
        reads what the agent says works on."""
        self.exchanged()
        _, undisturbed = self.train()
        self.setUp()
        hangs, told, order = threading.Event(), threading.Event(), []

        def abort():
            hangs.wait()
            order.append("abort")
            self.agent.say("abort", round=1, reason="a peer was lost")
            self.agent.stop(1)
            message = self.hear("aborted")
            # Alone, on processors, it has exchanged nothing that could be broken off.
            self.assertEqual((message["step"], message["clean"]), (6 if BACKEND == "nccl" else 7, True))
            self.agent.stop(0)
            self.agent.give(world(round=2, fromStep=message["step"], restore=False, writer=False))

        def each(step):
            if step.number == 7 and not hangs.is_set():
                if DEVICE == "cuda":
                    torch.cuda._sleep(2_000_000_000)  # a second
                hangs.set()
                self.assertTrue(told.wait(60))
                if DEVICE == "cuda":
                    torch.cuda.synchronize()
                    order.append("device")

        abort_groups = Groups.abort

        def aborted(groups):
            abort_groups(groups)
            if not told.is_set():
                order.append("aborted")
                told.set()

        with mock.patch.object(Groups, "abort", aborted), self.beside(abort):
            losses, net = self.train(each)
        self.assertEqual(order[:2], ["abort", "aborted"])
        self.assertEqual(len(losses), 40)
        self.assert_same(net, undisturbed)

    def test_compiled_code_goes_from_world_to_world(self):
        self.exchanged()
        _, undisturbed = self.train()
        self.setUp()

        def change():
            self.park(8)
            self.agent.stop(0)
            self.agent.give(world(round=2, fromStep=8, restore=False, writer=False))

        compilations = []

        def each(step):
            compilations.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])

        self.agent.stop(8)
        torch._dynamo.reset()
        with self.beside(change):
            losses, net = self.train(each, compiled=True)
        self.assertEqual(len(losses), 40)
        self.assertEqual(compilations[8], compilations[-1], "it was compiled again in the second world")
        self.assertGreater(compilations[-1], 0)
        self.assert_same(net, undisturbed, rtol=1e-2, atol=1e-2)


class Settings(Case):
    def test_what_nccl_reads_is_set_when_its_group_is_made(self):
        seen = []
        begin = dist.init_process_group

        def made(*args, **options):
            seen.append([os.environ.get(name) for name in SETTINGS])
            return begin(*args, **options)

        with mock.patch.object(dist, "init_process_group", made):
            self.train(epochs=1)
        self.assertEqual(seen, [["0" if BACKEND == "nccl" else None] * len(SETTINGS)])

    def test_each_process_uses_the_device_of_its_local_rank(self):
        if DEVICE == "cpu":
            self.skipTest("TEST_DEVICE=cpu has no ranks of devices")
        for rank in 0, 3:
            environment = {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 4, "RANK": rank, "WORLD_SIZE": 4}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
            where = from_environment({name: str(value) for name, value in environment.items()})
            groups = Groups("nccl")
            with mock.patch("torch.cuda.set_device") as device, mock.patch.object(dist, "init_process_group"):
                groups.form(where, None, lambda: False)
            device.assert_called_once_with(rank)

    def test_the_time_that_a_device_stood_still_is_known(self):
        self.exchanged()
        self.train()
        worked = struct.unpack_from("Q", self.agent.page, 64 * 2 + 56)[0]
        self.assertGreater(worked, 0)
