"""Whether a GPU or the program is to blame for an error of CUDA, with a stand-in for PyTorch: tests_gpu has the tests with a real one."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from concertina import health
from tests.fakeagent import FakeAgent, world

ECC = "CUDA error: uncorrectable ECC error encountered"
LAUNCH = "CUDA error: unspecified launch failure"
VECTORS = json.loads((pathlib.Path(__file__).parents[2] / "testdata" / "device_errors.json").read_text())
ASSERT = """CUDA error: device-side assert triggered
Search for `cudaErrorAssert' in https://docs.nvidia.com for more information.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
"""

# A PyTorch of which nothing computes: what it does is told by FAKE_GPU, or is right.
TORCH = """
import os, sys, time
from unittest import mock

class AcceleratorError(RuntimeError):
    pass

def device(*_):
    match os.environ.get("FAKE_GPU"):
        case "hangs":
            time.sleep(600)
        case "aborts":
            os.abort()
        case "killed":
            os.kill(os.getpid(), 9)
        case None:
            return "cuda:0"
        case error:
            raise AcceleratorError(error)

fake = mock.MagicMock(AcceleratorError=AcceleratorError, device=device)
fake.version.cuda = None if "FAKE_CPU" in os.environ else "13.0"
fake.cuda.is_initialized.return_value = False
fake.cuda.device_count.return_value = int(os.environ.get("FAKE_COUNT", "4"))
fake.cuda.mem_get_info.return_value = (int(os.environ.get("FAKE_FREE", 1 << 34)), 1 << 34)
fake.cuda.get_device_properties.return_value.uuid = "5a1b"
fake.equal.return_value = os.environ.get("FAKE_EQUAL", "1") == "1"
sys.modules["torch"] = fake
"""

# A JAX with its NumPy, of which nothing computes either.
JAX = """
import os, sys
from unittest import mock

def devices(platform):
    assert platform == "gpu"
    if "FAKE_GPU" in os.environ:
        raise RuntimeError(os.environ["FAKE_GPU"])
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    return [f"cuda:{number}" for number in range(int(os.environ.get("FAKE_COUNT", "4")))]

fake, numbers = mock.MagicMock(devices=devices), mock.MagicMock()
numbers.array_equal.return_value = os.environ.get("FAKE_EQUAL", "1") == "1"
sys.modules |= {"jax": fake, "numpy": numbers}
"""

JAX_PROGRAM = """
import sys, jax
import concertina

class Model:
    def state_dict(self): return {}
    def load_state_dict(self, state): pass

job = concertina.join(state={"model": Model()})
raise RuntimeError(sys.argv[1])
"""

# A program with that PyTorch. Its first argument says what it does.
PROGRAM = """
import os, sys, torch
import concertina

class Model:
    def state_dict(self): return {}
    def load_state_dict(self, state): pass

job = concertina.join(state={"model": Model()})
if sys.argv[1] == "before":
    raise torch.AcceleratorError(sys.argv[2])
for step in job.steps(range(4), global_batch=2, epochs=1):
    with step:
        if sys.argv[1] == "raise":
            raise torch.AcceleratorError(sys.argv[2])
        if sys.argv[1] == "once" and step.world.round == 1:
            raise torch.AcceleratorError(sys.argv[2])
        if sys.argv[1] == "end":
            sys.exit(3)
        if sys.argv[1] == "exit":
            try:
                raise torch.AcceleratorError(sys.argv[2])
            except RuntimeError:
                sys.exit(3)
"""


class Errors(unittest.TestCase):
    def test_which_are_those_of_a_device(self):
        for text, want in {
            ECC: f"RuntimeError: {ECC}",
            ASSERT: f"RuntimeError: {ASSERT.splitlines()[0]}",
            "CUDA error: out of memory": "",
            "CUDA out of memory. Tried to allocate 2 GiB": "",
            "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error\nLast error:\nCuda failure 214 'uncorrectable ECC error encountered'":
                "Cuda failure 214 'uncorrectable ECC error encountered'",
            "NCCL error: remote process exited or there was a network error": "",
            "INTERNAL: launch: CUDA_ERROR_ILLEGAL_ADDRESS": "RuntimeError: INTERNAL: launch: CUDA_ERROR_ILLEGAL_ADDRESS",
            "the learning rate is negative": "",
        }.items():  # fmt: skip
            self.assertEqual(health.device_error(RuntimeError(text)), want)

    def test_the_operator_knows_the_same_ones(self):
        for text in VECTORS["ofDevices"]:
            self.assertIn(text, health.device_error(RuntimeError(text)))
        for text in VECTORS["others"]:
            self.assertEqual(health.device_error(RuntimeError(text)), "", text)

    def test_what_an_error_comes_of_counts(self):
        error = ValueError("no loss")
        error.__cause__ = RuntimeError("a step failed")
        error.__cause__.__context__ = RuntimeError(ECC)
        self.assertEqual(health.device_error(error), f"RuntimeError: {ECC}")
        self.assertEqual(health.device_error(ExceptionGroup("some", [ValueError(), RuntimeError(ECC)])), f"RuntimeError: {ECC}")
        error.__cause__.__context__.__cause__ = error  # a circle
        self.assertEqual(health.device_error(error), f"RuntimeError: {ECC}")
        self.assertEqual(health.device_error(None), "")


class Devices(unittest.TestCase):
    def test_the_device_is_the_one_that_was_chosen_or_else_the_rank_s(self):
        for rank, current, count, want in [
            ("0", None, 4, 0),
            ("3", None, 4, 3),
            ("3", 0, 4, 3),  # The program named its device with each thing that it put there.
            ("0", 2, 4, 2),
            ("3", 0, 1, 0),  # It sees no other.
            ("3", None, 1, 0),
            ("", 0, 4, 0),
        ]:
            torch = mock.Mock()
            torch.cuda.is_initialized.return_value = current is not None
            torch.cuda.current_device.return_value, torch.cuda.device_count.return_value = current, count
            with mock.patch.dict(sys.modules, torch=torch), mock.patch.dict(os.environ, LOCAL_RANK=rank):
                self.assertEqual(health._device(), want, (rank, current, count))


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        pathlib.Path(cls.folder, "torch.py").write_text(TORCH)
        pathlib.Path(cls.folder, "program.py").write_text(PROGRAM)

    def environment(self, gpu=None, equal=True, **more):
        env = {name: value for name, value in os.environ.items() if not name.startswith("FAKE_")}
        env |= {"PYTHONPATH": os.pathsep.join([self.folder, *sys.path]), "FAKE_EQUAL": str(int(equal))} | more
        return env | ({"FAKE_GPU": gpu} if gpu else {})


class Checks(Case):
    def check(self, code, **seconds):
        check = health.Check(0, [sys.executable, "-c", code])
        self.addCleanup(check._process.wait)
        self.addCleanup(check._process.stdout.close)
        self.addCleanup(check._errors.close)
        self.addCleanup(check._reader.join)
        return check.outcome(**seconds)

    def test_a_process_that_begins_must_find_the_device_sound(self):
        for code, want, why in [
            ("print('begins'); print('sound')", True, "computes"),
            ("print('wrong'); raise SystemExit('what is copied to the GPU does not come back')", False, "does not come back"),
            ("print('begins'); print('no room')", None, "no room"),
            ("raise SystemExit('No module named torch')", None, "No module named torch"),
        ]:
            with self.subTest(code):
                sound, told = self.check(code)
                self.assertIs(sound, want)
                self.assertIn(why, told)

    def test_a_device_is_broken_only_by_what_no_program_causes(self):
        for text, want in {
            ECC: False,
            LAUNCH: False,
            "CUDA error: unknown error": False,
            "CUDA error: uncorrectable NVLink error detected during the execution": False,
            "RuntimeError: CUDA driver error: CUDA_ERROR_LAUNCH_FAILED": False,
            "NVML: GPU is lost": False,
            "GPU has fallen off the bus": False,
            ASSERT: None,
            "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU": None,
            "No CUDA GPUs are available": None,
            "CUDA error: no kernel image is available for execution on the device": None,
            "CUDA error: the provided PTX was compiled with an unsupported toolchain.": None,
            "CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server": None,
            "CUDA error: MPS server is not ready to accept new MPS client requests: unknown error": None,
            "CUDA unknown error - this may be due to an incorrectly set up environment": None,
            "CUDA error: invalid device ordinal": None,
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED": None,
            "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED": None,
            "nobody has thought of that": None,
        }.items():
            for begins in "", "print('begins', flush=True); ":
                with self.subTest(text, begins=begins):
                    self.assertIs(self.check(begins + f"raise SystemExit({text!r})")[0], want)

    def test_one_that_is_killed_tells_nothing(self):
        for number in 9, 15, 2, 1, 6, 11:
            kill = f"print('begins', flush=True); import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), {number})"
            with self.subTest(number):
                self.assertIs(self.check(kill)[0], None)

    def test_one_that_says_why_before_it_aborts_counts(self):
        dies = f"import os, sys; print({LAUNCH!r}, file=sys.stderr, flush=True); os.abort()"
        self.assertIs(self.check(dies)[0], False)

    def test_one_that_does_not_answer_is_broken_and_one_that_does_not_begin_tells_nothing(self):
        hangs = "import sys, time; {}; time.sleep(600)"
        self.assertIs(self.check(hangs.format("print('begins', flush=True)"), answers=0.1)[0], False)
        self.assertIs(self.check(hangs.format("pass"), imports=0.1)[0], None)


class Programs(Case):
    """Programs with an agent, in which a device fails."""

    def run_it(self, *arguments, agent=None, **settings):
        """How a program ends, what it wrote to its errors, and what it said to its agent."""
        with agent or FakeAgent(world()) as agent:
            program = subprocess.run(
                [sys.executable, f"{self.folder}/program.py", *arguments], capture_output=True, text=True, timeout=120,
                env=self.environment(**settings) | {"CONCERTINA_SOCKET": agent.path, "LOCAL_RANK": "0"},
            )  # fmt: skip
            return program.returncode, program.stderr, agent.received()

    def test_whose_fault_it_is(self):
        launch = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node-3", "MASTER_PORT": "29500"}
        for error, settings, want in [
            (ECC, {"gpu": ECC}, health.EXIT_DEVICE),
            (ECC, {}, health.EXIT_DEVICE),  # no program causes that
            (ASSERT, {}, 1),
            (ASSERT, {"gpu": LAUNCH}, health.EXIT_DEVICE),
            (ASSERT, {"gpu": "aborts"}, 1),
            (ASSERT, {"gpu": "killed"}, 1),
            (ASSERT, {"gpu": ASSERT}, 1),
            (ASSERT, {"equal": False}, health.EXIT_DEVICE),
            (ASSERT, {"equal": False, "FAKE_FREE": "1000000000"}, 1),
            (ASSERT, {"gpu": LAUNCH, "FAKE_COUNT": "0"}, 1),
            (ASSERT, {"gpu": LAUNCH, "TORCHELASTIC_RUN_ID": "none"}, 1),
            (ASSERT, {"gpu": LAUNCH, health.PASSED_ON: "none node-3 29500"} | launch, health.EXIT_DEVICE),
            # One of a launcher that a program beneath ours has started.
            (ASSERT, {"gpu": LAUNCH, health.PASSED_ON: "none node-3 29500"} | launch | {"MASTER_ADDR": "127.0.0.1"}, 1),
            (ASSERT, {"gpu": LAUNCH, health.PASSED_ON: "none node-3 29500"} | launch | {"MASTER_PORT": "29501"}, 1),
            (ASSERT, {"gpu": LAUNCH, health.PASSED_ON: "none node-3 29500"} | launch | {"TORCHELASTIC_RUN_ID": "sweep"}, 1),
            (ASSERT, {"gpu": "CUDA error: out of memory"}, 1),
            (ASSERT, {"gpu": ECC, "FAKE_CPU": ""}, 1),
            ("CUDA error: out of memory", {"gpu": ECC}, 1),
            ("CUDA error: an illegal memory access was encountered", {}, 1),
        ]:
            with self.subTest(error, **settings):
                code, errors, _ = self.run_it("raise", error, **settings)
                self.assertEqual(code, want, errors)
                self.assertIn("Traceback", errors)
                self.assertEqual("the GPU is broken" in errors, want == health.EXIT_DEVICE, errors)

    def test_a_program_with_jax_alone_has_jax_look(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "jax.py").write_text(JAX)
        (folder / "program.py").write_text(JAX_PROGRAM)
        (plugin := folder / "jax_plugins" / "xla_cuda13").mkdir(parents=True)
        (plugin / "__init__.py").touch()
        error, path = "INTERNAL: CUDA error: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", {"PYTHONPATH": f"{folder}:{':'.join(sys.path)}"}
        for settings, want, why in [
            ({"equal": False}, health.EXIT_DEVICE, "all of its devices: cuda:0 does not count right"),
            ({"equal": False, "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"}, health.EXIT_DEVICE, "device 1: cuda:1 does not count right"),
            ({"gpu": "INTERNAL: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"}, health.EXIT_DEVICE, "the GPU is broken"),
            ({}, 1, "the GPU is sound"),
            ({"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1", "FAKE_COUNT": "1"}, 1, "nobody knows"),
            ({"gpu": "Unknown backend: 'gpu' requested"}, 1, "nobody knows"),
            ({"gpu": "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 byte."}, 1, "no room"),
        ]:
            with self.subTest(**settings), FakeAgent(world(), world()) as agent:
                program = subprocess.run(
                    [sys.executable, folder / "program.py", error], capture_output=True, text=True, timeout=120,
                    env={"LOCAL_RANK": "0"} | self.environment(**settings) | path | {"CONCERTINA_SOCKET": agent.path},
                )  # fmt: skip
                self.assertEqual(program.returncode, want, program.stderr)
                self.assertIn(why, program.stderr)
        plugin.rename(folder / "jax_plugins" / "another_one")  # It computes on processors.
        with FakeAgent(world()) as agent:
            env = self.environment(equal=False) | path | {"CONCERTINA_SOCKET": agent.path, "LOCAL_RANK": "0"}
            program = subprocess.run([sys.executable, folder / "program.py", error], capture_output=True, text=True, timeout=120, env=env)
            self.assertEqual((program.returncode, "concertina: after" in program.stderr), (1, False), program.stderr)

    def test_it_says_what_is_to_be_done(self):
        _, errors, _ = self.run_it("before", ASSERT, equal=False)
        for text in "device 0, GPU-5a1b: what is copied", "status.avoidedNodes", "Xid":
            self.assertIn(text, errors)
        _, errors, _ = self.run_it("before", ASSERT, gpu=ASSERT)
        self.assertIn("if it comes again on this node alone, look for lines with Xid in its dmesg", errors)

    def test_a_program_that_ends_itself_by_the_error_does_so_by_the_device(self):
        for gpu, want in (LAUNCH, health.EXIT_DEVICE), (None, 3):
            code, errors, _ = self.run_it("exit", ASSERT, gpu=gpu)
            self.assertEqual(code, want, errors)

    def test_an_error_before_the_first_step_counts_as_well(self):
        for gpu, want in (ECC, health.EXIT_DEVICE), (None, 1):
            code, errors, said = self.run_it("before", ASSERT, gpu=gpu)
            self.assertEqual(code, want, errors)
            self.assertNotIn("fault", [message["type"] for message in said])

    def test_the_agent_is_told_the_error_and_not_the_hints_that_follow_it(self):
        _, _, said = self.run_it("raise", ASSERT)
        fault = next(message for message in said if message["type"] == "fault")
        self.assertEqual(fault["message"].splitlines()[-1], "torch.AcceleratorError: CUDA error: device-side assert triggered")

    def test_other_ends_stay_what_they_are(self):
        for arguments, want in [(("well",), 0), (("end",), 3), (("raise", "ValueError"), 1)]:
            code, errors, _ = self.run_it(*arguments, gpu=ECC)
            self.assertEqual(code, want, errors)

    def test_a_program_whose_error_came_of_a_peer_goes_on(self):
        agent = FakeAgent(world())
        agent.answers = {"fault": world(round=2), "finished": {"type": "end"}}
        code, errors, said = self.run_it("once", ECC, agent=agent, gpu=ECC)
        self.assertEqual(code, 0, errors)
        self.assertEqual([message["type"] for message in said if message["type"] in ("fault", "finished")], ["fault", "finished"])

    def test_a_program_that_was_started_anew_looks_before_it_joins(self):
        for settings, want in [
            ({"gpu": ECC}, health.EXIT_DEVICE),
            ({"gpu": ECC, "FAKE_COUNT": "0"}, 0),  # the usual wheel, without a GPU
            ({"gpu": "Found no NVIDIA driver on your system."}, 0),
            ({"gpu": "CUDA error: out of memory"}, 0),
            ({}, 0),
        ]:
            with self.subTest(**settings):
                code, errors, said = self.run_it("well", **settings, **{health.CHECK_FIRST: "1"})
                self.assertEqual(code, want, errors)
                self.assertEqual("join" in [message["type"] for message in said], want == 0)

    def test_one_of_the_smallest_form_looks_before_it_greets_its_agent(self):
        for gpu, want in (ECC, health.EXIT_DEVICE), (None, 0):
            with self.subTest(gpu), FakeAgent(None) as agent:
                agent.leaves = True
                program = subprocess.run(
                    [sys.executable, "-c", "import os, torch, concertina; concertina.join(); assert 'CONCERTINA_CHECK_DEVICE' not in os.environ"],
                    env=self.environment(gpu=gpu) | {"CONCERTINA_SOCKET": agent.path, "LOCAL_RANK": "0", health.CHECK_FIRST: "1"},
                    capture_output=True, text=True, timeout=120,
                )  # fmt: skip
                self.assertEqual(program.returncode, want, program.stderr)
                self.assertEqual("hello" in [message["type"] for message in agent.received()], want == 0)


if __name__ == "__main__":
    unittest.main()
