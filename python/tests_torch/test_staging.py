import os
import tempfile
import threading
import unittest
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from concertina import snapshot
from concertina.keeper import Keeper
from concertina.tensors import TensorCodec
from concertina.world import Assignment, from_environment


class Agent:
    """Keeps every snapshot, and remembers what it heard."""

    interval = 1e-9  # one is due whenever it is asked for
    gate = mock.Mock()
    asked = None

    def __init__(self, folder):
        self.snapshots = folder
        self.taken = {}
        self.failed = []

    def put(self, kind, step, file="", bytes=0, error="", reuses=False):
        if error:
            self.failed.append(error)
        else:
            self.taken[step] = os.path.join(self.snapshots, file)

    def push(self):
        pass

    say = put

    def snapshot_failed(self, step, error):
        self.failed.append(error)


class Staging(unittest.TestCase):
    """A state that is copied while training goes on."""

    def setUp(self):
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)), torch.nn.BatchNorm1d(256))
        self.opt = torch.optim.Adam(self.net.parameters())
        self.agent = Agent(self.enterContext(tempfile.TemporaryDirectory()))
        self.step = 1
        self.codec = TensorCodec(lambda: [self.net])
        self.keeper = Keeper({"net": self.net, "opt": self.opt}, self.codec, lambda: {"step": self.step})
        self.keeper.begin(self.agent, 1, Assignment(from_environment({}), restore=False, snapshot="", writer=True, listener=None))
        self.addCleanup(self.keeper._join)
        self.states = {}
        self.hook = register_optimizer_step_pre_hook(lambda *_: self.keeper.fence())
        self.addCleanup(self.hook.remove)

    def train(self, write=None):
        """Makes a step, as a run does; write: what writes to the state, by default the optimizer."""
        self.states[self.step] = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.keeper.consider(self.step)
        self.opt.zero_grad()
        self.net(torch.randn(8, 256)).square().mean().backward()
        (write or self.opt.step)()
        self.step += 1

    def check(self):
        """Every snapshot is the state after its step."""
        for step, path in self.agent.taken.items():
            _, state = snapshot.read(path, self.codec)
            for name, value in self.states[step].items():
                self.assertTrue(torch.equal(state["net"][name], value), f"{name} of step {step}")

    def slowly(self):
        """Holds the writing of files up until the event is set."""
        go = threading.Event()
        write = snapshot._write

        def slow(fd, data, offset):
            go.wait(60)
            write(fd, data, offset)

        patch = mock.patch.object(snapshot, "_write", slow)
        patch.start()
        self.addCleanup(patch.stop)
        self.addCleanup(go.set)
        return go

    def test_each_is_the_state_after_its_step(self):
        for _ in range(60):
            self.train()
        self.keeper._join()
        self.assertGreater(len(self.agent.taken), 5)
        self.assertEqual(self.agent.failed, [])
        self.check()

    def test_each_is_written_over_one_before_it(self):
        reused = set()
        for _ in range(60):
            self.train()
            for step in sorted(self.agent.taken)[:-2]:
                path = self.agent.taken.pop(step)
                reused.add(os.stat(path).st_ino)
                os.rename(path, os.path.join(self.agent.snapshots, "spare-0.part"))
        self.keeper._join()
        self.assertLessEqual(len(os.listdir(self.agent.snapshots)), 4)
        self.assertEqual(self.agent.failed, [])
        self.assertTrue(reused & {os.stat(path).st_ino for path in self.agent.taken.values()})
        self.check()

    def test_an_optimizer_waits_for_the_copy(self):
        self.train()
        self.train()  # the first optimizer step was seen, so the next copy is behind the gradients
        self.keeper._join()
        go = self.slowly()
        trained = threading.Thread(target=self.train)
        trained.start()
        while not self.keeper._staging:
            threading.Event().wait(0.001)
        before = [value.clone() for value in self.net.parameters()]
        trained.join(0.5)  # without the fence it needs a few milliseconds
        self.assertTrue(trained.is_alive())
        self.assertTrue(all(map(torch.equal, before, self.net.parameters())))
        go.set()
        trained.join()
        self.keeper._join()
        self.assertFalse(any(map(torch.equal, before[:1], self.net.parameters())))
        self.check()

    def test_who_writes_unseen_costs_that_snapshot_alone(self):
        def in_place():
            with torch.no_grad():
                for value in self.net.parameters():
                    value.add_(1)

        def behind_its_back():
            for value in self.net.parameters():
                value.data.mul_(2)

        for write in in_place, behind_its_back:
            with self.subTest(write.__name__):
                self.setUp()
                self.train()
                self.train()
                self.keeper._join()
                taken, go = set(self.agent.taken), self.slowly()
                self.train(write)
                go.set()
                self.keeper._join()
                self.assertEqual(set(self.agent.taken), taken)
                self.assertRegex(" ".join(self.agent.failed), "has written to the state while it was copied")
                for _ in range(3):
                    self.train(write)
                    self.keeper._join()
                self.assertGreater(len(self.agent.taken), len(taken))
                self.check()

    def test_nothing_is_left_of_a_world_that_is_over(self):
        self.train()
        self.train()
        self.keeper._join()
        taken, go = set(self.agent.taken), self.slowly()
        self.keeper.consider(self.step)
        self.keeper.forget()
        go.set()
        self.keeper._join()
        self.assertEqual(set(self.agent.taken), taken)
        self.assertEqual(len(os.listdir(self.agent.snapshots)), len(taken))

    def test_a_barrier_breaks_it_off(self):
        self.train()
        self.train()
        self.keeper._join()
        go = self.slowly()
        self.keeper.consider(self.step)
        copying = self.keeper._thread
        threading.Timer(0.05, go.set).start()
        self.states[self.step] = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.keeper.save(self.step)
        self.assertFalse(copying.is_alive())
        self.assertIn(self.step, self.agent.taken)
        self.check()


if __name__ == "__main__":
    unittest.main()
