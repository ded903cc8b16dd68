"""Models that the processes of a worker share, on workers that come and go: real processes, with the agents' side played."""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import torch

import concertina.torch as elastic
from concertina import local as local_module
from concertina import gradients, mistakes, shardgradients, torchstep
from concertina.local import local_of, place_of
from tests_torch import local, place, sharded
from tests_torch.coordinator import losses
from tests_torch.workers import Workers

PROGRAM = str(pathlib.Path(local.__file__))


def undisturbed() -> dict[int, float]:
    """The loss of each step of one process that has the whole model."""
    state = local.build()
    state |= local.optimizers(state)
    found = {}
    for step in elastic.join(state, seed=5, backend=place.backend()).steps(sharded.data(), **local.STEPS):
        with step:
            if not step.evaluates:
                found[step.number] = local.train(step, state)
    return found


class Replicas:
    how, draws = "", 0

    def workers(self) -> Workers:
        return self.enterContext(Workers(command=(PROGRAM, self.how)))

    def assert_undisturbed(self, *workers):
        want = undisturbed()
        members = [member for worker in workers for member in worker]
        got = losses(*members)
        self.assertEqual(sorted(got), sorted(want))
        for step, loss in got.items():
            self.assertAlmostEqual(loss, want[step], delta=1e-5 * want[step], msg=f"step {step}")

    def assert_drawn(self, workers, step):
        """Random numbers are those of who has samples of its own."""
        drawn = [[member.wait_for(step=step)["drawn"] for member in worker] for worker in workers]
        self.assertEqual([len({*of}) for of in drawn], [self.draws] * len(workers))
        self.assertEqual(len({number for of in drawn for number in of}), self.draws * len(workers))


class Changes(Replicas):
    def test_grown_and_lost_and_of_other_local_ranks(self):
        c = self.workers()
        workers = c.hire(3)
        two = workers[:2]
        c.give(two, restoring=two)
        self.assert_drawn(two, 3)
        members = [member for worker in two for member in worker]
        step = c.barrier(members)
        parts = c.save_all(two[0], step)
        self.assertEqual([key.split(".")[:2] for key in sorted(parts)], [["r0", "2"], ["s0", "2"], ["s1", "2"]])
        c.give(workers, step, parts, workers[2:])
        # All workers have the same, each local rank its own.
        begun = [[member.wait_for(size=6) for member in worker] for worker in workers]
        self.assertEqual({line["done"] for of in begun for line in of}, {step})
        for local_rank in 0, 1:
            self.assertEqual(len({of[local_rank]["state"] for of in begun}), 1)
        self.assertNotEqual(begun[0][0]["state"], begun[0][1]["state"])
        workers[2][0].wait_for(step=step + 3)
        holds = [pathlib.Path(c.folder, f"hold-{rank}") for rank in (2, 3)]
        for hold in holds:
            hold.touch()
        for member in workers[1]:
            member.kill()
        c.go_on([workers[2], workers[0]])

        for member, hold in zip(workers[0], holds, strict=True):
            self.assertEqual(member.wait_for(holds=16)["holds"], 16)
            hold.unlink()
        for member in workers[0]:
            member.kill()
        self.assertEqual(c.go_on(workers[2:], until=20), (16, True))
        self.assertEqual([member.hear("parked")["step"] for member in workers[2]], [20, 20])
        parts = c.save_all(workers[2], 20)
        for member in workers[2]:
            member.kill()

        (wider,) = c.hire(1, size=3)
        c.give([wider], 20, parts, [wider])
        c.end(wider)
        self.assert_undisturbed(*workers, wider)


class Shards(Changes, unittest.TestCase):
    how, draws = "shards", 2


class Tensors(Changes, unittest.TestCase):
    how, draws = "tensors", 1


class Random(unittest.TestCase):
    def test_what_devices_draw_for_tensors_begins_anew(self):
        tracker = mock.Mock()
        self.enterContext(mock.patch.dict("sys.modules", {local_module._RANDOM: tracker}))
        self.enterContext(mock.patch.object(local_module.Replicas, "device", "cpu"))
        for backend, together, seeds in ("nccl", True, 1), ("nccl", False, 0), ("gloo", True, 0):
            tracker.reset_mock()
            there = mock.Mock(backend=backend)
            local_module.Replicas(there, together).reseed(2**64 - 1)
            self.assertEqual(tracker.manual_seed.mock_calls, [mock.call(2**64 - 1, there.mesh)] * seeds)

    def test_plain_tensors_draw_others(self):
        job = elastic.Job.__new__(elastic.Job)
        job._groups = mock.Mock()
        plain = self.enterContext(mock.patch.object(torch.cuda, "manual_seed"))
        self.enterContext(mock.patch.object(torch.cuda, "is_initialized", lambda: True))
        for seed in 0, 2**64 - 1, 0:
            job._reseed(seed)
        self.assertEqual(plain.mock_calls, [mock.call(0), mock.call(2**64 - 1), mock.call(0)])
        first, other, again = (call.args[0] for call in job._groups.reseed.mock_calls)
        self.assertEqual(first, again)
        self.assertEqual(len({first, other, 0, 2**64 - 1}), 4)


class Same(unittest.TestCase):
    """What the processes of a worker tell each other of a step that they compute together."""

    def agree(self, mine, other, together=True, size=2):
        self.enterContext(mock.patch.object(local_module.Replicas, "device", None))
        replicas = local_module.Replicas(mock.Mock(backend="gloo", size=size), together)

        def exchange(told, op):
            self.assertEqual(op, torch.distributed.ReduceOp.MAX)
            weight, loss = other
            told.copy_(torch.maximum(told, torch.tensor([weight, -weight, loss, -loss], dtype=told.dtype)))

        with mock.patch.object(local_module.dist, "all_reduce", exchange):
            replicas.agree(mine[0], mine[0] * mine[1], {})

    def test_what_is_the_same_but_for_rounding(self):
        inf, nan = float("inf"), float("nan")
        for mine, other in ((3.0, 2.5), (3.0, 2.51)), ((0.0, 0.0), (0.0, 0.0)), ((3.0, 1e-9), (3.0, 1e-4)), ((3.0, inf), (3.0, 1.0)), ((3.0, nan), (3.0, 1.0)):
            self.agree(mine, other)
            self.agree(other, mine)
        self.agree((3.0, torch.tensor(2.5)), (3.0, 2.5))

    def test_samples_of_their_own(self):
        for mine, other in ((3.0, 2.5), (4.0, 2.5)), ((4.0, 2.5), (3.0, 2.5)), ((0.0, 0.0), (1.0, 2.0)):
            with self.assertRaisesRegex(RuntimeError, "their weight in this step is from .*the same samples"):
                self.agree(mine, other)
        for mine, other in ((3.0, 2.5), (3.0, 2.6)), ((3.0, -2.6), (3.0, -2.5)):
            with self.assertRaisesRegex(RuntimeError, "their loss in this step is from .*the step's random numbers"):
                self.agree(mine, other)
        self.agree((3.0, 2.5), (4.0, 9.0), together=False)
        self.agree((3.0, 2.5), (4.0, 9.0), size=1)


    def test_gradients_of_what_each_has_whole(self):
        fine = {"a": (1.0, -0.99), "rounding": (1e-5, -1e-6), "none": (0.0, 0.0), "overflow": (float("inf"), -1.0), "nan": (float("nan"), -1.0)}
        local_module.differ_in_norms(fine)
        local_module.differ_in_norms({})
        with self.assertRaisesRegex(RuntimeError, r"b is a plain parameter.* from 0.5 to 0.7: .*heads.*SequenceParallel"):
            local_module.differ_in_norms(fine | {"b": (0.7, -0.5)})

    def test_norms_are_those_of_a_rank_s_own_gradients(self):
        parameter = torch.nn.Parameter(torch.ones(4))
        found = gradients.Gradients()
        found.watch([parameter])

        def exchange(flat, **_):
            flat.mul_(2)  # with those of another one

        with mock.patch.object(gradients.dist, "all_reduce", exchange):
            for looks in True, False:
                found.begin(2, gradients.Among(2))
                found.looks = looks
                found.backward((parameter * parameter).sum(), 1.0, True)
                found.exchange()
                self.assertEqual([(one is parameter, norm.item()) for one, norm in found.norms], [(True, 2.0)] * looks)
        found.close()

    def test_they_are_told_in_the_same_exchange(self):
        replicas = local_module.Replicas(mock.Mock(backend="gloo", size=2), True)
        with mock.patch.object(local_module.dist, "all_reduce") as exchange:
            replicas.agree(2.0, 3.0, {"a": torch.tensor(0.5), "b": torch.tensor(0.25, dtype=torch.float16)})
        ((told, _),) = (call.args for call in exchange.mock_calls)
        self.assertEqual(told.tolist(), [2, -2, 1.5, -1.5, 0.5, -0.5, 0.25, -0.25])


class Losses(unittest.TestCase):
    """Tensors that the processes of a worker have together."""

    def backward(self, loss, weight=None):
        self.enterContext(mock.patch.object(torchstep, "is_sharded", lambda value: hasattr(value, "full_tensor")))
        step = torchstep.Step.__new__(torchstep.Step)
        step._job, step._piece, step._last = mock.Mock(_lockstep=False), mock.Mock(samples=2), False
        step.backward(loss, weight)
        return step._job._gradients.backward.mock_calls

    def dtensor(self, whole, op="sum"):
        placement = mock.Mock(reduce_op=op)
        made = mock.MagicMock(spec=torch.Tensor)
        made.placements, made.full_tensor = (placement,), lambda: whole
        made.numel.return_value, made.__float__.return_value = 1, 1.0  # what this process has of it
        return made

    def test_a_weight_is_made_whole(self):
        loss = torch.tensor(1.5)
        self.assertEqual(self.backward(self.dtensor(loss), self.dtensor(torch.tensor(7))), [mock.call(loss, 7.0, False)])

    def test_a_mean_of_means(self):
        with self.assertRaisesRegex(ValueError, r"losses\.sum\(\) / n"):
            self.backward(self.dtensor(torch.tensor(1.5), "avg"))


class Sums(unittest.TestCase):
    def test_what_each_process_has_whole_lies_at_the_same_place_beside_uneven_shards(self):
        def parameter(elements, whole, dtype=torch.float32):
            placement = mock.Mock()
            placement.is_replicate.return_value = whole
            return mock.Mock(grad=mock.Mock(_local_tensor=torch.arange(elements, dtype=dtype), placements=(placement,)))

        def flats(shard):
            double = parameter(3, True, torch.float64)
            return shardgradients._grouped([parameter(shard, False), parameter(5, True), double, parameter(shard, False), parameter(2, True)])

        def laid_out(shard, count):
            return [[(part.numel(), part.dtype) for part in flat] for flat in flats(shard)[:count]]

        for shard in 0, 3, 4:
            self.assertEqual(laid_out(shard, 3), [[(5, torch.float32)], [(3, torch.float64)], [(2, torch.float32)]])
        self.assertEqual(laid_out(4, 4)[3:], [[(4, torch.float32)] * 2])


class Mistakes(unittest.TestCase):
    def test_a_mesh_over_which_nothing_is_sharded(self):
        with self.assertRaisesRegex(ValueError, r"call fully_shard\(module, mesh=mesh\), or parallelize_module\(module, mesh, …\), before join"):
            mistakes.shared(local.build(), object())

    def test_optimizers_of_both_kinds(self):
        self.enterContext(mock.patch.object(mistakes, "is_sharded", lambda value: hasattr(value, "shard")))

        def optimizer(*kinds, groups=1, device="cpu", **options):
            parameters = [torch.nn.Parameter(torch.ones(1, dtype=dtype, device=device)) for _, dtype in kinds]
            for parameter, (shard, _) in zip(parameters, kinds, strict=True):
                if shard:
                    parameter.shard = True
            return torch.optim.AdamW(parameters if groups == 1 else [{"params": [p]} for p in parameters], **options)

        float32, double = torch.float32, torch.float64
        both, scaler = ((True, float32), (False, float32)), torch.amp.GradScaler("cpu")
        for fine in (
            optimizer(*both),  # on processors PyTorch takes one after another
            optimizer(*both, device="meta", foreach=False),
            optimizer(*both, groups=2, foreach=True),
            optimizer((True, float32), (False, double), foreach=True),
            optimizer((True, float32), (True, float32), foreach=True),
        ):
            mistakes.refuse_mixed({"opt": fine, "scaler": torch.amp.GradScaler("cpu", enabled=False)})
        for wrong in optimizer(*both, foreach=True), optimizer(*both, fused=True):
            with self.assertRaisesRegex(ValueError, r"state\['opt'\] has DTensors and plain .*AdamW\(…, foreach=False\)"):
                mistakes.refuse_mixed({"opt": wrong})
        for wrong in optimizer(*both, foreach=False), optimizer(*both, groups=2):
            with self.assertRaisesRegex(ValueError, r"state\['opt'\] .*GradScaler \(state\['scaler'\]\)"):
                mistakes.refuse_mixed({"opt": wrong, "scaler": scaler})
        mistakes.refuse_mixed({"opt": optimizer((True, float32)), "opt2": optimizer((False, float32)), "scaler": scaler})
        by_default = optimizer(*both)
        with mock.patch.object(mistakes, "_mixed", lambda parameters: {torch.device("cuda")}):
            with self.assertRaisesRegex(ValueError, "by default on GPUs"):
                mistakes.refuse_mixed({"opt": by_default})
            by_default.param_groups[0]["foreach"] = False
            mistakes.refuse_mixed({"opt": by_default})

    def test_a_mesh_of_the_programs_own(self):
        with self.assertRaisesRegex(ValueError, r"give that of local_mesh\(\)"):
            local_of(object(), None)

    def test_local_ranks_that_cannot_be(self):
        for rank, size in ("2", "2"), ("0", "33"), ("one", "2"):
            with self.assertRaisesRegex(ValueError, "LOCAL_RANK"):
                place_of({"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size})


class Alone(unittest.TestCase):
    def run_alone(self, *arguments):
        root = pathlib.Path(__file__).parents[1]
        return subprocess.run([sys.executable, "-m", "tests_torch.alone", *arguments], cwd=root, capture_output=True, text=True)

    def test_what_a_forward_pass_leaves_is_not_watched_and_a_gradient_that_is_not_there_is_0(self):
        done = self.run_alone("shards")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_loss_that_processes_have_together(self):
        done = self.run_alone("tensors")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_loss_that_is_no_number_at_weight_0(self):
        done = self.run_alone("poison")
        self.assertIn("ValueError: step.backward(loss) at weight 0 with a loss of nan", done.stderr)


class Door(unittest.TestCase):
    def setUp(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": os.path.join(folder, "agent.sock")}))

    def test_workers_with_the_same_path_have_others(self):
        with tempfile.TemporaryDirectory() as other:
            link = os.path.join(other, "link")
            env = {"CONCERTINA_SOCKET": os.path.join(link, "agent.sock")}
            doors = set()
            for name in "a", "b":
                os.mkdir(os.path.join(other, name))
                os.symlink(name, link)
                doors.add(local_module._door(env))
                self.assertIn(local_module._door(env), doors)
                os.unlink(link)
            self.assertEqual(len(doors), 2)

    def test_nobody_is_there(self):
        with self.assertRaisesRegex(RuntimeError, "for local rank 0"):
            local_module._ask(1, time.monotonic() + 0.02)
        with self.assertRaisesRegex(RuntimeError, r"for the local ranks \[1, 2\]"):
            local_module._tell(1, 3, time.monotonic() + 0.02)

    def test_somebody_has_the_name_and_says_nothing(self):
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(local_module._door())
            door.listen()
            with self.assertRaisesRegex(RuntimeError, "for local rank 0"):
                local_module._ask(1, time.monotonic() + 0.02)
            with self.assertRaisesRegex(RuntimeError, "cannot be found by the other processes"):
                local_module._tell(1, 2, time.monotonic() + 0.02)

    def test_a_caller_that_hangs_keeps_nobody_waiting(self):
        self.enterContext(mock.patch.object(local_module, "_ANSWER", 0.02))
        by = time.monotonic() + 60
        telling = threading.Thread(target=local_module._tell, args=(4711, 2, by))
        telling.start()
        with socket.socket(socket.AF_UNIX) as hangs:
            while hangs.connect_ex(local_module._door()):
                pass
            self.assertEqual(local_module._ask(1, by), 4711)
            telling.join()
