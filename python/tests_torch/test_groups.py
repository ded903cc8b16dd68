"""Process groups between devices, with stand-ins for these: tests_gpu has the tests with a real one."""

import datetime
import threading
import unittest
import weakref
from unittest import mock

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

import concertina.torch as elastic
from concertina import groups
from concertina.groups import Groups, outlive_peers
from concertina.session import WorldChanged
from concertina.tensors import spread
from concertina.world import World

GPU = torch.device("cuda", 0)


def world(round):
    return World(1, round, 0, 0, 1, 3, 4, 0, 1, "127.0.0.1", 1)


class Meeting(unittest.TestCase):
    def test_that_nobody_has_come_is_no_fault_of_the_program(self):
        """The operator goes by the last line of an error."""
        ends = datetime.timedelta(milliseconds=10)
        store = dist.TCPStore("127.0.0.1", 0, 2, True, timeout=ends, wait_for_workers=False, use_libuv=False)
        with self.assertRaisesRegex(RuntimeError, "^peers of this world have not come: .*$"):
            groups._init_group("gloo", store=dist.PrefixStore("1", store), rank=0, world_size=2, timeout=ends)
        self.assertFalse(dist.is_initialized())


class Hearing(unittest.TestCase):
    """What ranks tell each other of what they know, where gloo has connected them by then, and where it has not."""

    def setUp(self):
        self.store = dist.HashStore()
        self.env = self.enterContext(mock.patch.dict("os.environ"))
        self.env.pop("TORCH_GLOO_LAZY_INIT", None)

    def say(self, rank, text=""):
        self.store.set(f"k-{rank}", text)
        self.store.add("k", 1)

    def hear(self, size=2, aborted=lambda: False):
        return groups.hear(self.store, "k", size, aborted)

    def test_who_has_said_nothing_by_now_never_will(self):
        self.say(0, "a")
        self.assertIsNone(self.hear())
        self.say(1)
        self.assertIsNone(self.hear(), "all have heard the same")

    def test_what_all_have_said(self):
        for rank in range(3):
            self.say(rank, f"{rank}" if rank else "")
        self.assertEqual(self.hear(3), ["", "1", "2"])

    def test_who_comes_later_is_waited_for_where_ranks_are_connected_late(self):
        self.env["TORCH_GLOO_LAZY_INIT"] = "1"
        self.say(0, "a")
        looked = mock.Mock(side_effect=lambda _: self.say(1, "b"))  # in place of the wait between two looks
        with mock.patch.object(groups.time, "sleep", looked):
            self.assertEqual(self.hear(), ["a", "b"])
        looked.assert_called_once()
        self.assertEqual(self.hear(), ["a", "b"])

    def test_the_first_who_gives_up_does_so_for_all(self):
        self.env["TORCH_GLOO_LAZY_INIT"] = "1"
        self.say(0, "a")
        with mock.patch.object(groups, "_MEETING", -1.0):
            self.assertIsNone(self.hear())
        self.assertIsNone(self.hear(3), "it waits for nobody then")
        self.say(1, "b")
        self.assertIsNone(self.hear())

    def test_a_world_that_ends_meanwhile(self):
        self.env["TORCH_GLOO_LAZY_INIT"] = "1"
        self.say(0, "a")
        with self.assertRaises(WorldChanged):
            self.hear(aborted=lambda: True)


class Settings(unittest.TestCase):
    def test_a_process_outlives_its_peers_unless_the_user_wants_it_otherwise(self):
        handling = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
        # With these its watchdog does not sleep a minute before a group that has failed can be taken apart.
        others = {f"TORCH_NCCL_{name}": "0" for name in ("RETHROW_CUDA_ERRORS", "DUMP_ON_TIMEOUT", "WAIT_TIMEOUT_DUMP_MILSEC")}
        for env, want in [
            ({}, handling | others),
            ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, others),
            ({"NCCL_ASYNC_ERROR_HANDLING": "1"}, others),
            ({"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "15000"}, handling | others),
        ]:
            found = dict(env)
            outlive_peers(found)
            self.assertEqual(found, want | env)

    def test_they_are_there_when_the_group_is_made_by_an_agent_s_world_alone(self):
        for backend, round, sets in ("nccl", 1, True), ("cpu:gloo,cuda:nccl", 1, True), ("gloo", 1, False), ("nccl", 0, False):
            with (
                self.subTest(backend=backend, round=round),
                mock.patch("concertina.groups.outlive_peers") as outlive,
                mock.patch("torch.cuda.is_available", return_value=True),
                mock.patch("torch.cuda.set_device") as device,
                mock.patch.object(dist, "init_process_group") as begin,
            ):
                begin.side_effect = lambda *_, **__: self.assertEqual(outlive.called, sets)
                Groups(backend).form(world(round), None, lambda: False)
                begin.assert_called_once()
                self.assertEqual(device.call_args_list, [mock.call(3)] if "nccl" in backend else [])


class Aborts(unittest.TestCase):
    def groups(self, *backends):
        made = [mock.Mock(**{"_get_backend.side_effect": backend}) for backend in backends]
        self.enterContext(mock.patch.object(dist, "is_initialized", return_value=True))
        self.enterContext(mock.patch.dict(dist.distributed_c10d._world.pg_names, {group: "" for group in made}, clear=True))

    def test_all_groups_are_broken_off_whatever_one_of_them_raises(self):
        broken = mock.Mock(**{"abort.side_effect": RuntimeError("NCCL error")})
        backends = [broken, mock.Mock(), mock.Mock()]
        self.groups(*([backend] for backend in backends), RuntimeError("No backend type associated with device type cuda"))
        Groups("nccl").abort()
        for backend in backends:
            backend.abort.assert_called_once_with()

    def test_none_waits_for_the_abort_of_another_one(self):
        """An exchange may stand behind that of another group on a device, and be broken off only with it."""
        meet = threading.Barrier(2, timeout=60)
        backends = [mock.Mock(**{"abort.side_effect": meet.wait}) for _ in range(2)]
        self.groups(*([backend] for backend in backends))
        Groups("nccl").abort()
        self.assertFalse(meet.broken)

    def test_one_that_does_not_end_is_not_waited_for_longer_than_that(self):
        ends = threading.Event()
        self.addCleanup(ends.set)
        backends = [mock.Mock(**{"abort.side_effect": ends.wait}) for _ in range(2)]
        self.groups(*([backend] for backend in backends))
        Groups("nccl").abort(0.01)

    def test_an_error_breaks_exchanges_off_before_anything_is_asked_of_a_device(self):
        """A peer's loss may be raised here before the agent knows of it: until it breaks them off devices answer nothing."""
        for aborted in True, False:
            job = elastic.join({"net": torch.nn.BatchNorm1d(2)}, backend="gloo")
            self.addCleanup(job._close)
            done = mock.Mock()
            session = mock.Mock(aborted=aborted, alone=False, **{"own_fault.return_value": False})
            job._session, job._there = session, True
            job._go_back, job._groups.leave, session.fault, job._groups.abort = done.put_back, done.leave, done.tell, done.break_off
            self.assertTrue(job._broken(RuntimeError("NCCL error: remote process exited or there was a network error")))
            calls = list(dict.fromkeys(call[0] for call in done.mock_calls))
            self.assertEqual(calls, ["break_off", "leave", "put_back"] if aborted else ["break_off", "put_back", "tell", "leave"])
            del job._go_back

    def test_what_processors_exchange_ends_with_its_connections(self):
        backend = mock.Mock()
        self.groups([backend])
        Groups("gloo").abort()
        backend.abort.assert_not_called()


class ToTheDevice(TorchFunctionMode):
    """Stands for copies to a GPU, and notes what was copied."""

    def __init__(self):
        super().__init__()
        self.moved = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to and args[1] == GPU:
            self.moved.append(args[0].clone())
            return self.moved[-1]
        return func(*args, **(kwargs or {}))


class Spread(unittest.TestCase):
    def test_what_processors_have_goes_through_the_device_that_exchanges(self):
        """NCCL refuses tensors of the CPU, and an AveragedModel has one, wherever its model is."""
        ema = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(2, 1))
        before = ema.n_averaged.clone()
        sent = []
        with ToTheDevice() as mode, mock.patch.object(dist, "broadcast") as broadcast:
            broadcast.side_effect = lambda flat, _, group: sent.append(flat) or flat.fill_(1)
            spread([ema.n_averaged], GPU)
        self.assertTrue(sent and all(any(flat is moved for moved in mode.moved) for flat in sent))
        self.assertNotEqual(int(ema.n_averaged), int(before))

    def test_without_one_nothing_is_moved(self):
        with ToTheDevice() as mode, mock.patch.object(dist, "broadcast"):
            spread([torch.ones(3)])
        self.assertEqual(mode.moved, [])

    def test_a_job_names_the_device_of_its_groups(self):
        job = elastic.join({"net": torch.nn.BatchNorm1d(2)}, backend="gloo")
        self.addCleanup(job._close)
        for backend, want in ("nccl", GPU), ("gloo", None):
            job._groups.backend = backend
            with mock.patch("torch.cuda.current_device", return_value=0), mock.patch("concertina.torch.spread") as told:
                job._begin_step(mock.Mock(evaluates=True, world=mock.Mock(size=2)))
            self.assertEqual(told.call_args.args[1], want)

    def test_the_backend_of_a_group_that_the_program_keeps_goes_after_it(self):
        """A group that goes last waits for gloo's threads with the interpreter's lock, and they may be waiting for that."""
        gone = []
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        kept = dist.new_group([0])
        Groups("gloo").leave()
        weakref.finalize(kept, gone.append, "group")
        weakref.finalize(kept._get_backend(torch.device("cpu")), gone.append, "backend")
        self.assertEqual(gone, [])
        del kept
        self.assertEqual(gone, ["group", "backend"])


if __name__ == "__main__":
    unittest.main()
