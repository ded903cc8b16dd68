"""Whether a GPU or the program is to blame for an error of CUDA, with a stand-in for PyTorch: tests_gpu has the tests with a real one."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from concertina import health
from tests.fakeagent import FakeAgent, world

ECC = "CUDA error: uncorrectable ECC error encountered"
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
        case "kills":
            os.abort()
        case None:
            return "cuda:0"
        case error:
            raise AcceleratorError(error)

fake = mock.MagicMock(AcceleratorError=AcceleratorError, device=device)
fake.version.cuda = None if "FAKE_CPU" in os.environ else "13.0"
fake.cuda.is_initialized.return_value = False
fake.equal.return_value = os.environ.get("FAKE_EQUAL", "1") == "1"
sys.modules["torch"] = fake
"""

# A program with that. Its first argument says what it does.
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

    def test_what_an_error_comes_of_counts(self):
        error = ValueError("no loss")
        error.__cause__ = RuntimeError("a step failed")
        error.__cause__.__context__ = RuntimeError(ECC)
        self.assertEqual(health.device_error(error), f"RuntimeError: {ECC}")
        self.assertEqual(health.device_error(ExceptionGroup("some", [ValueError(), RuntimeError(ECC)])), f"RuntimeError: {ECC}")
        error.__cause__.__context__.__cause__ = error  # a circle
        self.assertEqual(health.device_error(error), f"RuntimeError: {ECC}")
        self.assertEqual(health.device_error(None), "")


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
            ("print('begins'); raise SystemExit('what is copied to the GPU does not come back')", False, "does not come back"),
            (f"print('begins'); raise SystemExit({ASSERT!r})", False, "device-side assert triggered"),
            ("print('begins'); import os; os._exit(9)", False, "ended with 9"),
            ("print('begins'); print('no room')", None, "no room"),
            ("raise SystemExit('No module named torch')", None, "No module named torch"),
        ]:
            with self.subTest(code):
                sound, told = self.check(code)
                self.assertIs(sound, want)
                self.assertIn(why, told)

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
        for error, settings, want in [
            (ECC, {"gpu": ECC}, health.EXIT_DEVICE),
            (ECC, {}, health.EXIT_DEVICE),  # no program causes that
            (ASSERT, {}, 1),
            (ASSERT, {"gpu": "CUDA error: unspecified launch failure"}, health.EXIT_DEVICE),
            (ASSERT, {"gpu": "kills"}, health.EXIT_DEVICE),
            (ASSERT, {"equal": False}, health.EXIT_DEVICE),
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

    def test_a_program_that_ends_itself_by_the_error_does_so_by_the_device(self):
        for gpu, want in (ECC, health.EXIT_DEVICE), (None, 3):
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
        for settings, want in [({"gpu": ECC}, health.EXIT_DEVICE), ({}, 0), ({"gpu": "CUDA error: out of memory"}, 0)]:
            with self.subTest(**settings):
                code, errors, said = self.run_it("well", **settings, **{health.CHECK_FIRST: "1"})
                self.assertEqual(code, want, errors)
                self.assertEqual("join" in [message["type"] for message in said], want == 0)


if __name__ == "__main__":
    unittest.main()
