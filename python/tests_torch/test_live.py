"""Recoveries that go on from the state that is left, with real processes."""

import pathlib
import unittest
import unittest.mock

import torch

import concertina.torch as elastic
from concertina.session import WorldChanged
from concertina.tensors import Buffers, Random
from tests_torch.test_elastic import Case


class Recovery(Case):
    def recover(self, c, survivors, newcomers=()):
        """Goes on like an operator: from the newest state that one of them has."""
        left = c.abort(survivors)
        newest = max(message["step"] for message in left if message["clean"])
        behind = [m for m, message in zip(survivors, left, strict=True) if message["step"] != newest or not message["clean"]]
        path = ""
        if behind or newcomers:
            holder = next(m for m in survivors if m not in behind)
            path = c.save(holder, newest)
        c.world([*survivors, *newcomers], newest, [*behind, *newcomers], path)
        return newest, left

    def test_a_rank_is_killed(self):
        for victim in 2, 0:
            with self.subTest(rank=victim):
                c = self.coordinator(seconds=0.01)
                members = c.start(3)
                c.first_world(members)
                members[victim].wait_for(step=6)
                members[victim].kill()
                survivors = [m for m in members if m is not members[victim]]
                done = max([0] + [line["step"] for m in members for line in m.told if "step" in line])
                newest, _ = self.recover(c, survivors)
                self.assertGreaterEqual(newest, done - 1)
                survivors[0].wait_for(world=2)
                c.end(survivors)
                self.assert_undisturbed(*survivors)

    def test_somebody_takes_the_place_of_who_was_killed(self):
        c = self.coordinator(seconds=0.01)
        *members, newcomer = c.start(3)
        c.first_world(members)
        members[1].wait_for(step=6)
        members[1].kill()
        self.recover(c, members[:1], [newcomer])
        c.end([members[0], newcomer])
        self.assert_undisturbed(members[0], newcomer)

    def test_a_rank_that_hangs_has_lost_nothing(self):
        c = self.coordinator(seconds=0.01)
        pathlib.Path(c.folder, "hang-8-1").touch()
        members = c.start(3)
        c.first_world(members)
        members[1].wait_for(hanging=8)
        newest, left = self.recover(c, members)
        self.assertEqual(newest, 7)
        self.assertTrue(all(message["clean"] for message in left), left)
        c.end(members)
        self.assert_undisturbed(*members)


class Net(torch.nn.Module):
    """Has a buffer that is written in place, one that is replaced, and one that is not kept."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_buffer("none", None)

    def forward(self, x):
        self.count = self.count + 1
        self.scratch.fill_(7)
        return self.norm(x)


class TheState(unittest.TestCase):
    def test_buffers_are_put_back(self):
        net = Net()
        net(torch.randn(8, 3))
        before = {name: value.clone() for name, value in net.state_dict().items()}
        count = net.count
        put_back = Buffers([net, net.norm]).copy()
        net(torch.randn(8, 3))
        self.assertFalse(torch.equal(net.norm.running_mean, before["norm.running_mean"]))
        put_back()
        for name, value in net.state_dict().items():
            torch.testing.assert_close(value, before[name], rtol=0, atol=0)
        self.assertIs(net.count, count)
        self.assertEqual(net.scratch.tolist(), [7, 7])

    def test_the_memory_of_copies_is_used_again(self):
        net = Net()
        buffers = Buffers([net])
        buffers.copy()
        there = [copy.data_ptr() for copy in buffers._copies]
        buffers.watch([net])
        buffers.copy()
        self.assertEqual([copy.data_ptr() for copy in buffers._copies], there)
        buffers.watch([Net()])
        put_back = buffers.copy()
        net(torch.randn(8, 3))
        put_back()
        self.assertEqual(int(net.norm.num_batches_tracked), 1)  # of another module nothing is put back

    def run_with(self, net, **state):
        run = elastic.Run(state={"net": net} | state, epochs=1, global_batch=1, backend="gloo")
        run._session = Session()
        run._buffers = Buffers([net])
        run._live.settled()
        return run

    def test_a_step_is_taken_back_until_the_optimizer_steps(self):
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.BatchNorm1d(3))
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        run = self.run_with(net, opt=opt)
        run._live.begin()
        run._optimizer_steps()
        run._live.settled()
        before = {name: value.clone() for name, value in net.state_dict().items()}, Random().state_dict()["cpu"].clone()
        run._live.begin()
        net(torch.ones(4, 3)).sum().backward()
        self.assertFalse(run._live.clean)
        run._go_back()
        self.assertTrue(run._live.clean)
        for name, value in net.state_dict().items():
            torch.testing.assert_close(value, before[0][name], rtol=0, atol=0)
        self.assertTrue(torch.equal(torch.get_rng_state(), before[1]))
        self.assertTrue(all(p.grad is None for p in net.parameters()))

    def test_schedulers_are_put_back_to_the_end_of_the_epoch(self):
        net = torch.nn.Linear(2, 1)
        for rate in 0.1, torch.tensor(0.1):
            opt = torch.optim.Adam(net.parameters(), lr=rate)
            schedule = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
            run = self.run_with(net, opt=opt, schedule=schedule)
            group = opt.param_groups[0]
            held = group["lr"]
            run._after_epoch = run._copy_small()
            opt.step()
            schedule.step()
            opt.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
            with run._right_after_step():
                self.assertAlmostEqual(float(group["lr"]), 0.1)
                self.assertEqual((len(opt.param_groups), schedule.last_epoch), (1, 0))
            self.assertAlmostEqual(float(group["lr"]), 0.05)
            self.assertEqual((len(opt.param_groups), schedule.last_epoch), (2, 1))
            run._put_back()
            schedule.step()
            self.assertAlmostEqual(float(group["lr"]), 0.05)
            self.assertIs(opt.param_groups[0], group)
            if isinstance(held, torch.Tensor):
                self.assertIs(group["lr"], held)

    def test_any_optimizer_counts_during_the_run(self):
        opt = torch.optim.Adam(torch.nn.Linear(2, 1).parameters())
        run = elastic.Run(epochs=1, global_batch=1, backend="gloo")
        with unittest.mock.patch.object(run, "_optimizer_steps", return_value=None) as steps:
            opt.step()
            run(lambda _: opt.step())
            opt.step()
        steps.assert_called_once_with()

    def test_devices_are_asked_before_an_optimizer_writes(self):
        net = torch.nn.Linear(2, 1)
        run = self.run_with(net)
        run._backend = "nccl"
        run._session.aborted = True
        with unittest.mock.patch("torch.cuda.current_stream") as stream, self.assertRaises(WorldChanged):
            run._optimizer_steps()
        stream.return_value.synchronize.assert_called_once_with()
        self.assertFalse(run._live.writing)


class Session:
    """Stands for one with an agent."""

    agent = object()
    aborted = False
    alone = False


if __name__ == "__main__":
    unittest.main()
