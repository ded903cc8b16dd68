import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import weakref
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from concertina import devices, snapshot
from concertina.codec import Elsewhere, Piece
from concertina.devices import Cuda, Devices
from concertina.files import Files
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

    def put(self, kind, step, file="", bytes=0, error="", reuses=False, size=None):
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

    def devices(self):
        return None

    def setUp(self):
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)), torch.nn.BatchNorm1d(256))
        self.opt = torch.optim.Adam(self.net.parameters())
        self.agent = Agent(self.enterContext(tempfile.TemporaryDirectory()))
        self.step = 1
        self.codec = TensorCodec(lambda: [self.net], self.devices())
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


class StandIn(Cuda):
    """A device whose memory is the processor's. It computes at once, and copies when it is let."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.copies = 0

    def has(self, tensor):
        return True

    def pin(self, room, device):
        pass

    def at(self, device):
        return contextlib.nullcontext()

    def settle(self, device):
        pass

    def copy(self, device, into, sources):
        done = threading.Event()

        def run():
            self.go.wait(60)
            with torch.no_grad():
                torch._foreach_copy_(into, sources)
            done.set()

        self.copies += 1
        threading.Thread(target=run).start()
        return done

    def fence(self, device, mark):
        mark.wait()

    def wait(self, mark):
        mark.wait()


ENDS = """
import sys, threading
from tests_torch.test_staging import OfDevices
case = OfDevices()
case.setUp()
case.train()
case.train()
case.keeper._join()
wait, waits, go = case.device.wait, threading.Event(), threading.Event()
def told(mark):
    wait(mark)
    waits.set()
    go.wait()
    print("copied", flush=True)
case.device.wait = told
case.keeper.consider(case.step)
waits.wait()
later = threading.Timer(0.2, go.set)
later.daemon = True
later.start()
sys.exit(3)
"""


class OfDevices(Staging):
    """The same of a state that devices have."""

    def devices(self):
        self.device = StandIn()
        return Devices(self.device)

    def slowly(self):
        self.device.go.clear()
        self.addCleanup(self.device.go.set)
        return self.device.go

    def test_an_optimizer_does_not_wait_for_the_file(self):
        self.train()
        self.train()
        self.keeper._join()
        go = super().slowly()
        for _ in range(3):
            self.train()
        self.assertFalse(set(self.agent.taken) & {3, 4, 5})
        go.set()
        self.keeper._join()
        self.assertIn(3, self.agent.taken)
        self.check()

    def test_who_replaces_a_parameter_behind_its_back_changes_no_snapshot(self):
        """What is copied is held, whatever becomes of the program's own reference."""
        self.train()
        self.train()
        self.keeper._join()
        go = self.slowly()
        self.keeper.consider(self.step)
        self.states[self.step] = {name: value.clone() for name, value in self.net.state_dict().items()}
        for value in self.net.parameters():
            value.data = torch.zeros_like(value)
        go.set()
        self.keeper._join()
        self.assertIn(self.step, self.agent.taken)
        self.check()

    def test_nothing_is_kept_of_a_snapshot_that_was_written(self):
        self.train()
        self.train()
        self.keeper._join()
        parameter = weakref.ref(self.net[0].weight.untyped_storage())
        del self.net, self.opt
        self.keeper._state = {}
        self.codec._modules = list
        gc.collect()
        self.assertIsNone(parameter())

    def test_a_default_device_of_the_program_changes_nothing(self):
        self.train()  # the optimizer has what it wants
        for _ in range(10):
            inputs = torch.randn(8, 256)
            with torch.device("meta"), mock.patch("torch.randn", return_value=inputs):
                self.train()
        self.keeper._join()
        self.assertEqual(self.agent.failed, [])
        self.assertTrue(self.agent.taken)
        with torch.device("meta"):
            self.check()

    def test_a_device_that_fails_costs_that_snapshot_alone(self):
        self.train()
        self.train()
        self.keeper._join()
        taken = set(self.agent.taken)
        with mock.patch.object(self.device, "wait", side_effect=RuntimeError("CUDA error: unspecified launch failure")):
            self.train()
            self.keeper._join()
        self.assertEqual(set(self.agent.taken), taken)
        self.assertIn("unspecified launch failure", " ".join(self.agent.failed))
        self.train()
        self.keeper._join()
        self.assertGreater(len(self.agent.taken), len(taken))
        self.check()

    def test_a_device_that_takes_no_copies_costs_snapshots_alone(self):
        self.train()
        self.train()
        self.keeper._join()
        taken = set(self.agent.taken)
        error = RuntimeError("CUDA error: out of memory")
        for hidden in True, False:
            self.keeper._hides = hidden
            with mock.patch.object(self.device, "copy", side_effect=error):
                self.train()
                self.keeper.save(self.step)
            with mock.patch.object(self.device, "pin", side_effect=error):
                self.keeper._memory = None
                self.train()
                self.keeper.save(self.step)
            self.keeper._join()
        with mock.patch.object(self.device, "wait", side_effect=error):
            self.train()
            self.keeper.save(self.step)
        self.assertEqual(set(self.agent.taken), taken)
        self.assertEqual({*self.agent.failed}, {f"the GPU makes no copy of the state: {error}"})
        self.train()
        self.keeper._join()
        self.assertGreater(len(self.agent.taken), len(taken))
        self.check()

    def test_a_first_state_that_a_device_does_not_copy_costs_that_copy_alone(self):
        self.step = 0
        self.keeper.begin(self.agent, 0, Assignment(from_environment({}), restore=False, snapshot="", writer=True, listener=None))
        with mock.patch.object(self.device, "copy", side_effect=torch.cuda.OutOfMemoryError("CUDA out of memory: 2 GiB of GPU 3")):
            self.train()
        self.assertRegex(self.agent.failed[0], "the GPU has no memory .*2 GiB of GPU 3.* smaller micro_batch")
        for _ in range(3):
            self.train()
            self.keeper._join()
        self.assertTrue(self.agent.taken)
        self.check()

    def rooms(self):
        """What becomes of the memory that is pinned from now on."""
        rooms, pin = [], self.device.pin

        def pinned(room, device):
            rooms.append(weakref.ref(room))
            pin(room, device)

        self.enterContext(mock.patch.object(self.device, "pin", pinned))
        return rooms

    def test_who_writes_no_more_keeps_no_memory(self):
        rooms = self.rooms()
        for _ in range(4):
            self.train()
            self.keeper._join()
        self.assertTrue(rooms[-1]())
        self.keeper.forget()
        other = Assignment(from_environment({}), restore=False, snapshot="", writer=False, listener=None)
        self.keeper.begin(self.agent, self.step, other)
        taken = set(self.agent.taken)
        with mock.patch.object(self.keeper, "consider", lambda step, do=self.keeper.consider: step < self.keeper.due or do(step)):
            for _ in range(4):
                self.train()
        self.keeper._join()
        gc.collect()
        self.assertEqual({room() for room in rooms}, {None})
        self.assertEqual(set(self.agent.taken), taken)

    def test_nothing_is_kept_or_copied_after_the_end(self):
        rooms = self.rooms()
        self.train()
        self.train()
        self.keeper._join()
        go = self.slowly()
        self.keeper.consider(self.step)
        threading.Timer(0.05, go.set).start()
        copying = self.keeper._thread
        self.keeper.close()
        self.assertTrue(go.is_set())
        copying.join()
        gc.collect()
        self.assertEqual({room() for room in rooms}, {None})

    def test_a_program_that_ends_waits_for_a_copy(self):
        """A thread that waits for a device when Python ends has PyTorch abort the program."""
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", ENDS],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        self.assertEqual((ended.returncode, ended.stdout), (3, "copied\n"), ended.stderr)

    def test_a_fence_that_failed_is_tried_again(self):
        self.train()
        self.train()
        self.keeper._join()
        go = self.slowly()
        self.keeper.consider(self.step)
        self.states[self.step] = {name: value.clone() for name, value in self.net.state_dict().items()}
        error = RuntimeError("CUDA error: an illegal memory access was encountered")
        with mock.patch.object(self.device, "fence", side_effect=error) as fence:
            for _ in range(2):
                with self.assertRaisesRegex(RuntimeError, "illegal memory access"):
                    self.opt.step()
        self.assertEqual(fence.call_count, 2)
        threading.Timer(0.05, go.set).start()
        self.opt.step()
        self.keeper._join()
        self.assertIn(self.step, self.agent.taken)
        self.check()

    def test_two_optimizers_that_step_at_once_both_wait(self):
        self.train()
        self.train()
        self.keeper._join()
        go = self.slowly()
        self.keeper.consider(self.step)
        fencing = [threading.Thread(target=self.keeper.fence) for _ in range(2)]
        copied = []
        with mock.patch.object(self.device, "fence", side_effect=lambda *_: copied.append(go.wait(60))):
            for thread in fencing:
                thread.start()
            threading.Timer(0.05, go.set).start()
            fencing[1].join()
            self.assertTrue(go.is_set())
            fencing[0].join()
        self.assertEqual(copied, [True])

    def test_the_first_state_outlives_a_barrier_before_the_first_step(self):
        self.step = 0
        self.keeper.begin(self.agent, 0, Assignment(from_environment({}), restore=False, snapshot="", writer=True, listener=None))
        self.states[0] = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.keeper.consider(0)
        self.keeper.save(0)
        self.check()
        self.agent.taken.clear()
        with torch.no_grad():
            for value in self.net.parameters():
                value.add_(1)
        self.keeper.load("")
        for name, value in self.net.state_dict().items():
            self.assertTrue(torch.equal(value, self.states[0][name]), name)


class OfCuda(unittest.TestCase):
    """What CUDA is asked for, which is not there."""

    def setUp(self):
        self.now, self.asked = [None], []
        self.enterContext(mock.patch("torch.cuda.device", self.at))

    @contextlib.contextmanager
    def at(self, device):
        self.now.append(device)
        yield
        self.now.pop()

    def ask(self, name, answer=None):
        return lambda *_: (self.asked.append((name, self.now[-1])), answer)[1]

    def pinned(self, answer):
        cudart = mock.Mock(cudaHostRegister=self.ask("pin", answer), cudaHostUnregister=self.ask("let go"))
        devices, third = Devices(), mock.Mock(layout=torch.strided, device=torch.device("cuda", 3))
        self.assertTrue(devices.has(third))
        with mock.patch("torch.cuda.cudart", return_value=cudart):
            return devices.room(100)

    def test_memory_is_pinned_and_let_go_by_the_device_of_the_state(self):
        self.pinned(0).release()
        gc.collect()
        self.assertEqual(self.asked, [("pin", torch.device("cuda", 3)), ("let go", torch.device("cuda", 3))])

    def test_what_is_left_of_a_refusal_is_taken_off(self):
        """The next launch raises it."""

        def launch(*_, device):
            self.asked.append(("launch", device))
            raise RuntimeError("CUDA error: out of memory")

        with mock.patch("torch.zeros", launch):
            room = self.pinned(2)
        room[:3] = b"abc"
        self.assertEqual(self.asked, [("pin", torch.device("cuda", 3)), ("launch", torch.device("cuda", 3))])

    def test_a_copy_is_waited_for_at_its_device(self):
        mark = mock.Mock(device=torch.device("cuda", 3), synchronize=self.ask("wait"))
        Cuda().wait(mark)
        self.assertEqual(self.asked, [("wait", torch.device("cuda", 3))])


class Counting(StandIn):
    """A device that copies at once, and knows how many bytes it has for copies alone."""

    def __init__(self, of_program):
        super().__init__()
        self.of_program, self.alive, self.most, self.fences = of_program, {}, 0, 0

    def copy(self, device, into, sources):
        for source in sources:
            if source.untyped_storage().data_ptr() not in self.of_program:
                self.alive[id(source)] = source.nbytes
                weakref.finalize(source, self.alive.pop, id(source))
        self.most = max(self.most, sum(self.alive.values()))
        torch._foreach_copy_(into, sources)
        return object()

    def fence(self, device, mark):
        self.fences += 1

    def wait(self, mark):
        pass


class Gathered(unittest.TestCase):
    def test_a_device_never_has_all_of_it_twice(self):
        # What may change at once is copied on its device first, which has little room beside the program's.
        torch.manual_seed(3)
        sizes = [5000, 100, 1, 999, 12_345, 64, 2000]
        values = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in sizes]
        values.append(torch.randint(0, 255, (40, 30), dtype=torch.uint8).t())
        for held in False, True:
            device = Counting({value.untyped_storage().data_ptr() for value in values})
            want = [value.contiguous().view(-1).clone() for value in values]
            memory = [memoryview(bytearray(len(value))) for value in want]
            pieces = [Piece(Elsewhere(v, 0, v.nbytes), m, held and i % 2 == 0) for i, (v, m) in enumerate(zip(values, memory, strict=True))]
            with mock.patch.object(devices, "_GATHERED", 1024):
                copies = Devices(device).bring(pieces)
            copies.fence()
            copies.wait()
            self.assertTrue(copies.intact())
            for value, found in zip(want, memory, strict=True):
                self.assertEqual(bytes(found), bytes(memoryview(value.numpy())))
            with self.subTest(held=held):
                self.assertLessEqual(device.most, 1024 * devices._AT_A_TIME + (64 * 2 * len(values) if held else 0))
                self.assertEqual(device.fences, len(copies._marks) + max(0, len(copies._marks) - devices._AT_A_TIME), "it waits for the memory of earlier ones")
                self.assertFalse(device.alive)


class LoadedByDevices(unittest.TestCase):
    """A state that is read from a file into the memory of devices."""

    def setUp(self):
        self.path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "a.part")
        self.codec = TensorCodec(devices=Devices(StandIn()))

    def write(self, state):
        image = snapshot.Image(state, {"step": 1}, self.codec)
        image.bring(self.codec.room(image.away))
        image.write(image.whole(self.path))

    def test_each_is_filled_where_it_is(self):
        torch.manual_seed(1)
        state = {
            "large": torch.randn(5_000_000),  # of several pieces
            "half": torch.randn(3, 5).bfloat16(),
            "columns": torch.arange(20.0).reshape(4, 5).t(),
            "channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
            "complex": torch.randn(7, dtype=torch.complex64).conj(),
            "truth": torch.tensor([True, False, True]),
            "number": torch.tensor(7),
            "none": torch.empty(0, 3),
            "part": torch.arange(100)[10:20],
            "step": 3,
        }
        tied = torch.randn(40_000)
        state |= {"tied": tied, "too": tied}
        self.write(state)
        there = {name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0 for name, value in state.items()}
        there["columns"] = torch.zeros(4, 5).t()
        places = {name: value.data_ptr() for name, value in there.items() if isinstance(value, torch.Tensor)}
        _, found = snapshot.read(self.path, self.codec, there)
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                self.assertTrue(torch.equal(found[name], value), name)
                self.assertEqual(found[name].data_ptr(), places[name], name)
        self.assertEqual(found["step"], 3)

    def test_threads_work_with_the_device_of_what_they_fill(self):
        device, here = StandIn(), threading.local()
        copied = []

        @contextlib.contextmanager
        def at(of):
            here.device = of
            yield
            here.device = None

        def copy(of, *rest):
            copied.append((of, getattr(here, "device", None)))
            return StandIn.copy(device, of, *rest)

        state = {"large": torch.randn(5_000_000)}
        self.write(state)
        with mock.patch.multiple(device, at=at, copy=copy):
            snapshot.read(self.path, TensorCodec(devices=Devices(device)), {"large": torch.zeros(5_000_000)})
        self.assertEqual({*copied}, {(torch.device("cpu"), torch.device("cpu"))})

    def test_what_lies_in_another_order_needs_no_second_room_on_its_device(self):
        torch.manual_seed(2)
        state = {
            "columns": torch.randn(400, 500).t(),
            "channels": torch.randn(20, 30, 4, 5).to(memory_format=torch.channels_last),
            "plain": torch.randn(300, 300),
        }
        there = {name: torch.zeros_like(value) for name, value in state.items()}
        of_device = {value.data_ptr() for value in state.values()}
        contiguous, empty, refused = torch.Tensor.contiguous, torch.empty, []

        def full(tensor):
            if not tensor.is_contiguous() and tensor.data_ptr() in of_device:
                refused.append(tensor)
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return contiguous(tensor)

        def no_place(*size, device=None, **options):
            if isinstance(device, torch.device):  # that of a tensor
                refused.append(size)
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return empty(*size, device=device, **options)

        with mock.patch("torch.Tensor.contiguous", full), mock.patch("torch.Tensor.cpu", torch.Tensor.clone):
            self.write(state)
        with mock.patch("torch.empty", no_place):
            _, found = snapshot.read(self.path, self.codec, there)
        self.assertEqual(len(refused), 4)
        for name, value in state.items():
            self.assertIs(found[name], there[name])
            self.assertTrue(torch.equal(found[name], value), name)

    def test_nothing_is_copied_any_more_when_reading_has_failed(self):
        device, marks = StandIn(), []
        copy, go = device.copy, device.go

        def slow(*rest):
            marks.append(copy(*rest))
            return marks[-1]

        state = {"large": torch.randn(5_000_000)}
        self.write(state)
        go.clear()
        self.addCleanup(go.set)
        files = Files.read

        def failing(self, memory, at):
            if at >= 1 << 24:
                while not marks:
                    threading.Event().wait(0.001)
                threading.Timer(0.05, go.set).start()
                raise OSError("the disk is gone")
            files(self, memory, at)

        with mock.patch.object(device, "copy", slow), mock.patch.object(Files, "read", failing):
            with self.assertRaisesRegex(OSError, "the disk is gone"):
                snapshot.read(self.path, TensorCodec(devices=Devices(device)), {"large": torch.zeros(5_000_000)})
        self.assertTrue(all(mark.is_set() for mark in marks))

    def test_a_file_that_ends_early_is_refused(self):
        state = {"large": torch.randn(5_000_000)}
        self.write(state)
        files = Files.read
        with mock.patch.object(Files, "read", autospec=True) as read:
            # The values are behind what describes them.
            read.side_effect = lambda self, memory, at: files(self, memory, at + (1 << 24) * (at > 16))
            with self.assertRaisesRegex(snapshot.SnapshotError, "ends early"):
                snapshot.read(self.path, self.codec, {"large": torch.zeros(5_000_000)})

    def test_a_tensor_of_another_size_is_refused(self):
        state = {"x": torch.ones(8)}
        self.write(state)
        with mock.patch.object(snapshot.Decoder, "decode", lambda self, *_: self._load({"tensor": "float32", "shape": [8]}, 0, 4, state["x"])):
            with self.assertRaisesRegex(snapshot.SnapshotError, "4 bytes for a tensor"):
                snapshot.read(self.path, self.codec, state)


if __name__ == "__main__":
    unittest.main()
