"""Recoveries that go on from the state that is left, with real processes."""

import pathlib
import unittest
import unittest.mock

import torch

import concertina.torch as elastic
from concertina.plan import Batch
from concertina.session import WorldChanged
from concertina.step import Work
from concertina.tensors import Buffers
from tests_torch.test_elastic import Case


class Recovery(Case):
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
                newest, _ = c.recover(survivors)
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
        c.recover(members[:1], [newcomer])
        c.end([members[0], newcomer])
        self.assert_undisturbed(members[0], newcomer)

    def test_a_rank_that_hangs_has_lost_nothing(self):
        c = self.coordinator(seconds=0.01)
        pathlib.Path(c.folder, "hang-8-1").touch()
        members = c.start(3)
        c.first_world(members)
        members[1].wait_for(hanging=8)
        newest, left = c.recover(members)
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

    def job_with(self, net, **state):
        job = elastic.join({"net": net} | state, backend="gloo")
        self.addCleanup(job._close)
        job._session, job._there = Session(), True
        job._buffers = Buffers([net])
        job._live.settled()
        return job

    def test_the_end_of_a_job_is_that_of_its_snapshots(self):
        job = self.job_with(torch.nn.Linear(2, 1))
        with unittest.mock.patch.object(job._keeper, "close") as close:
            job._close()
        close.assert_called_once_with()

    def test_a_step_is_taken_back_until_the_optimizer_steps(self):
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.BatchNorm1d(3))
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        job = self.job_with(net, opt=opt)
        job._live.begin()
        job._optimizer_steps(opt)
        job._live.settled()
        before = {name: value.clone() for name, value in net.state_dict().items()}
        job._live.begin()
        net(torch.ones(4, 3)).sum().backward()
        self.assertFalse(job._live.clean)
        job._go_back()
        self.assertTrue(job._live.clean)
        for name, value in net.state_dict().items():
            torch.testing.assert_close(value, before[name], rtol=0, atol=0)
        self.assertTrue(all(p.grad is None for p in net.parameters()))

    def test_what_an_evaluation_changes_of_schedulers_and_groups_is_put_back(self):
        net = torch.nn.Linear(2, 1)
        for rate in 0.1, torch.tensor(0.1):
            opt = torch.optim.Adam(net.parameters(), lr=rate)
            schedule = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
            job = self.job_with(net, opt=opt, schedule=schedule)
            group = opt.param_groups[0]
            held = group["lr"]
            with unittest.mock.patch.object(job, "_evaluates_first", return_value=True):
                job._live.settled()
            opt.step()
            schedule.step()
            opt.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
            self.assertAlmostEqual(float(group["lr"]), 0.05)
            self.assertEqual((len(opt.param_groups), schedule.last_epoch), (2, 1))
            job._live._whole = True  # What the optimizer has written is none of this.
            job._go_back()
            self.assertAlmostEqual(float(group["lr"]), 0.1)
            self.assertEqual((len(opt.param_groups), schedule.last_epoch), (1, 0))
            schedule.step()
            self.assertAlmostEqual(float(group["lr"]), 0.05)
            self.assertIs(opt.param_groups[0], group)
            if isinstance(held, torch.Tensor):
                self.assertIs(group["lr"], held)

    def test_the_scale_of_a_step_that_the_optimizer_left_out_is_put_back(self):
        net = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        job = self.job_with(net, opt=opt, scaler=scaler)
        for start in 8.0, 8.0:  # Once before the scaler has a tensor for it, and once after.
            job._live.write()
            job._live.settled()
            job._live.begin()
            (scaler.scale(net(torch.ones(1, 2)).sum()) * float("inf")).backward()
            scaler.step(opt)
            scaler.update()
            self.assertEqual(scaler.get_scale(), 4.0)
            job._go_back()
            self.assertEqual(scaler.get_scale(), start)
            scaler.scale(torch.ones(1))

    def test_a_scaler_works_on_a_rank_that_has_had_no_samples(self):
        net = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
        job = self.job_with(net, opt=opt, scaler=scaler)
        job._world = unittest.mock.Mock(size=1, rank=0)
        step = elastic.Step(job, Work(1, Batch(0, 0, 2, False), (), False))
        job._begin_step(step)
        self.assertEqual(list(step.micro_batches()), [])
        scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        self.assertEqual(scaler.get_scale(), 16.0)

    def test_a_scaler_that_is_switched_off_is_left_alone(self):
        net = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        job = self.job_with(net, opt=opt, scaler=torch.amp.GradScaler("cpu", enabled=False))
        job._world = unittest.mock.Mock(size=1, rank=0)
        step = elastic.Step(job, Work(1, Batch(0, 0, 2, False), (), False))
        job._begin_step(step)
        self.assertEqual(list(step.micro_batches()), [])
        job._go_back()
        self.assertTrue(job._live.clean)

    def test_who_is_thrown_out_of_an_evaluation_trains_on_in_the_mode_of_training(self):
        net = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 1))
        net[1].eval()
        job = self.job_with(net)
        job._begin_step(unittest.mock.Mock(evaluates=True, world=unittest.mock.Mock(size=1)))
        net.eval()
        job._go_back()
        self.assertEqual([module.training for module in net.modules()], [True, True, False])

    def test_averages_of_the_weights_are_not_exchanged(self):
        net = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        job = self.job_with(net, opt=opt, ema=torch.optim.swa_utils.AveragedModel(net))
        self.assertEqual({id(p) for p in job._trained()}, {id(p) for p in net.parameters()})

    def test_parameters_that_an_optimizer_is_given_later_are_exchanged(self):
        net, late = torch.nn.Linear(2, 1), torch.nn.Parameter(torch.ones(1))
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        job = self.job_with(net, opt=opt)
        job._watch()
        self.assertNotIn(late, set(job._gradients._everything))
        opt.add_param_group({"params": [late]})
        job._watch()
        self.assertIn(late, set(job._gradients._everything))

    def test_any_optimizer_counts_as_long_as_there_is_a_job(self):
        opt = torch.optim.Adam(torch.nn.Linear(2, 1).parameters())
        job = elastic.join({}, backend="gloo")
        with unittest.mock.patch.object(job, "_optimizer_steps", return_value=None) as steps:
            for step in job.steps([0], epochs=1, global_batch=1):
                with step:
                    opt.step()
            opt.step()
        steps.assert_called_once_with(opt)

    def test_a_step_before_the_loop_is_no_part_of_it(self):
        net = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        job = self.job_with(net, opt=opt)
        job._there = False
        job._optimizer_steps(opt)
        self.assertTrue(job._live.clean)
        job._there = True
        job._optimizer_steps(opt)
        self.assertFalse(job._live.clean)

    def test_devices_are_asked_before_an_optimizer_writes(self):
        net = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        job = self.job_with(net, opt=opt)
        job._groups.backend = "nccl"
        job._session.aborted = True
        with unittest.mock.patch("torch.cuda.current_stream") as stream, self.assertRaises(WorldChanged):
            job._optimizer_steps(opt)
        stream.return_value.synchronize.assert_called_once_with()
        self.assertFalse(job._live.writing)

    def test_a_program_that_waits_for_its_device_does_not_wait_for_a_copy_too(self):
        net = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        job, order = self.job_with(net, opt=opt), []
        job._groups.backend = "nccl"
        job._keeper.fence = lambda: order.append("the device waits for the copy")
        with unittest.mock.patch("torch.cuda.current_stream") as stream:
            stream.return_value.synchronize = lambda: order.append("the program waits")
            job._optimizer_steps(opt)
            self.assertTrue(job._live.writing)
            job._optimizer_steps(opt)
            job._there = False
            job._optimizer_steps(opt)
        self.assertEqual(order, ["the program waits", *["the device waits for the copy"] * 3])


class Session:
    """Stands for one with an agent."""

    agent = object()
    aborted = False
    alone = False

    def close(self):
        pass

    def end(self):
        pass


if __name__ == "__main__":
    unittest.main()
