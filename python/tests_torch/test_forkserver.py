import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from unittest import mock

from tests_torch import forkserver

SECONDS = 120


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        self.errors = self.enterContext(tempfile.TemporaryFile("w+"))
        self.env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    def write(self, text):
        """A program's file."""
        path = self.folder / f"program{len(os.listdir(self.folder))}.py"
        path.write_text(textwrap.dedent(text))
        return path

    def told(self):
        """What programs have written to stderr."""
        self.errors.seek(0)
        return self.errors.read()


class Programs(Case):
    """Programs that a server has forked are what they are where Python begins them."""

    def start(self, text, *arguments, **env):
        program = forkserver.start([self.write(text), *arguments], self.env | env, stdout=subprocess.PIPE, stderr=self.errors)
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.wait, SECONDS)
        self.addCleanup(program.kill)
        return program

    def ended(self, text, *arguments, **env):
        """The exit code and the output of a program."""
        program = self.start(text, *arguments, **env)
        return program.wait(SECONDS), program.stdout.read()

    def test_what_it_sees_is_its_own(self):
        text = """
            import __main__, os, sys

            class Here: pass

            print(sys.argv[1:], os.environ["SOME"], os.environ.get("OTHER"), os.getcwd(), sys.path[0], __name__, os.path.basename(__file__))
            print(__main__.Here is Here, "tests_torch.forkserver" in sys.modules, "concertina" in sys.modules, len(os.listdir("/proc/self/fd")))
        """
        os.environ["OTHER"] = "of the tests"
        self.addCleanup(os.environ.pop, "OTHER")
        self.env.pop("OTHER", None)
        code, output = self.ended(text, "one", 2, SOME="thing")
        first = f"['one', '2'] thing None {os.getcwd()} {self.folder} __main__ program0.py"
        self.assertEqual((code, output.splitlines()), (0, [first, "True False False 4"]), self.told())

    def test_each_end_is_told(self):
        for end, code in (("", 0), ("sys.exit(3)", 3), ("sys.exit('it is over')", 1), ("1 / 0", 1), ("os._exit(4)", 4), ("os.abort()", -6)):
            with self.subTest(end):
                self.assertEqual(self.ended(f"import os, sys\n{end}"), (code, ""))
        for words in "it is over", "ZeroDivisionError", "Fatal Python error: Aborted":
            self.assertIn(words, self.told())

    def test_it_ends_as_python_does(self):
        text = """
            import atexit, threading, time

            atexit.register(print, "and what was registered")
            threading.Thread(target=lambda: (time.sleep(0.05), print("threads are waited for"))).start()
            print("first")
        """
        self.assertEqual(self.ended(text), (0, "first\nthreads are waited for\nand what was registered\n"))

    def test_one_that_is_stopped_is_killed(self):
        program = self.start("import signal, time\nprint('here', flush=True)\ntime.sleep(3600)")
        self.assertEqual(program.stdout.readline(), "here\n")
        os.kill(program.pid, signal.SIGSTOP)
        with self.assertRaises(subprocess.TimeoutExpired):
            program.wait(0.05)
        self.assertIsNone(program.poll())
        program.kill()
        self.assertEqual(program.wait(SECONDS), -signal.SIGKILL)
        program.kill()
        self.assertEqual(program.poll(), -signal.SIGKILL)

    def test_its_number_is_its_own_until_it_was_waited_for(self):
        program = self.start("print('here')")
        program.stdout.read()
        while pathlib.Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
        os.kill(program.pid, signal.SIGKILL)
        self.assertEqual(program.wait(SECONDS), 0)

    def test_the_stacks_of_one_that_hangs(self):
        program = self.start("import time\n\ndef hangs():\n    print('here', flush=True)\n    time.sleep(3600)\n\nhangs()")
        program.stdout.readline()
        program.send_signal(signal.SIGABRT)
        self.assertEqual(program.wait(SECONDS), -signal.SIGABRT)
        self.assertRegex(self.told(), r'program0.py", line \d+ in hangs')

    def test_they_compute_with_several_threads(self):
        """Where a server had computed its copies would wait for threads that only it has."""
        text = """
            import torch

            torch.set_num_threads(4)
            weight = torch.ones(600, 600, requires_grad=True)
            (weight @ torch.ones(600, 600)).relu().sum().backward()
            print(weight.grad.unique().tolist(), torch.get_num_threads())
        """
        programs = [self.start(text) for _ in range(4)]
        for program in programs:
            self.assertEqual((program.wait(SECONDS), program.stdout.read()), (0, "[600.0] 4\n"), self.told())

    def test_members_of_a_world_order_their_sets_differently(self):
        (_, first), (_, second) = (self.ended("print(hash('a'))") for _ in range(2))
        self.assertNotEqual(first, second)

    def test_one_that_cannot_be_found(self):
        program = forkserver.start([self.folder / "none.py"], self.env, stderr=self.errors)
        self.assertEqual(program.wait(SECONDS), 1)
        self.assertIn("No such file or directory", self.told())


class Threads(Case):
    """What is imported may begin threads, which no copy would have."""

    def test_programs_are_begun_by_python(self):
        folder = str(self.folder)
        (self.folder / "threaded.py").write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n")
        with mock.patch.object(sys, "path", [folder, *sys.path]):
            server = forkserver.Server(preloaded=("threaded",))
        self.addCleanup(server.process.kill)
        self.assertEqual(server.threads(), 2)
        with mock.patch.object(forkserver, "_next", lambda: server):
            program = forkserver.start([self.write("import sys\nprint('threaded' in sys.modules)")], self.env, subprocess.PIPE, self.errors)
        self.addCleanup(program.stdout.close)
        self.assertEqual((program.wait(SECONDS), program.stdout.read()), (0, "False\n"), self.told())


class Ends(Case):
    """Nobody is left behind."""

    def setUp(self):
        super().setUp()
        self.server = forkserver.Server(preloaded=())
        self.addCleanup(self.server.close)

    def hanging(self):
        path = self.write("import time\nprint('here', flush=True)\ntime.sleep(3600)")
        programs = [self.server.start([path], self.env, subprocess.PIPE, self.errors) for _ in range(2)]
        for program in programs:
            self.addCleanup(program.stdout.close)
            self.addCleanup(program._channel.close)
            self.assertEqual(program.stdout.readline(), "here\n")
        os.kill(programs[1].pid, signal.SIGSTOP)
        return programs, [os.pidfd_open(program.pid) for program in programs]

    def assert_ended(self, ends):
        for end in ends:
            self.assertTrue(select.select([end], [], [], SECONDS)[0], "a program outlives who has forked it")
            os.close(end)

    def test_with_the_tests(self):
        _, ends = self.hanging()
        self.server.close()
        self.assert_ended(ends)
        self.assertEqual(self.server.process.returncode, 0)

    def test_with_a_server_that_is_killed(self):
        programs, ends = self.hanging()
        self.server.process.kill()
        self.assert_ended(ends)
        with self.assertRaisesRegex(RuntimeError, "the fork server has ended"):
            programs[0].wait(SECONDS)

    def test_with_who_drops_it(self):
        programs, ends = self.hanging()
        programs[0]._channel.close()
        self.assert_ended(ends[:1])
        self.assertIsNone(programs[1].poll())
        programs[1].kill()
        self.assert_ended(ends[1:])


if __name__ == "__main__":
    unittest.main()
