"""What a program that hangs tells of itself."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

from concertina import stacks
from concertina.agent import Agent
from concertina.gate import Phase
from tests.fakeagent import FakeAgent

HANG = """
import concertina.stacks, os, threading
concertina.stacks.offer()
os.write(1, b"there")

def hang_in_a_thread():
    threading.Event().wait()

threading.Thread(target=hang_in_a_thread, daemon=True).start()

def hang_in_a_read():
    os.read(0, 1)

hang_in_a_read()
os.write(1, b"lives on")
"""


class Stacks(unittest.TestCase):
    def test_all_threads_are_written_and_the_program_lives_on(self):
        program = subprocess.Popen(
            [sys.executable, "-c", HANG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        with program:
            self.addCleanup(program.kill)
            self.assertEqual(program.stdout.read(5), b"there")
            self.wait_until_it_hangs(program.pid)
            program.send_signal(stacks._SIGNAL)
            seen = b""
            while not seen.endswith(b" in <module>\n"):
                written = os.read(program.stderr.fileno(), 1 << 16)
                self.assertTrue(written, seen)
                seen += written
            self.assertIn(b"hang_in_a_thread", seen)
            self.assertIn(b"hang_in_a_read", seen)
            program.stdin.close()
            self.assertEqual(program.stdout.read(), b"lives on")
        self.assertEqual(program.returncode, 0)

    def wait_until_it_hangs(self, pid):
        """Until both threads sleep, and neither has been switched to for a while: one that waits for the interpreter looks
        every 5 ms. faulthandler reads the frames of a thread that runs as they change, and may die of it."""
        before, switches = None, ()
        deadline = time.monotonic() + 60
        while len(switches) != 2 or before != switches:
            self.assertLess(time.monotonic(), deadline, switches)
            time.sleep(0.05)
            before, switches = switches, []
            for thread in sorted(os.listdir(f"/proc/{pid}/task")):
                with open(f"/proc/{pid}/task/{thread}/status") as file:
                    status = dict(line.split(":\t", 1) for line in file.read().splitlines())
                if status["State"].startswith("S"):
                    switches.append((thread, status["voluntary_ctxt_switches"], status["nonvoluntary_ctxt_switches"]))

    def test_it_is_a_signal_that_nobody_else_uses(self):
        self.assertTrue(signal.SIGRTMIN <= stacks._SIGNAL <= signal.SIGRTMAX)


class Hangs(unittest.TestCase):
    """A connection to an agent that wants the program out of its world."""

    def setUp(self):
        self.enterContext(mock.patch.multiple(stacks, _HANGS=0.0, _LONG=3600.0))
        self.errors, there = os.pipe()
        self.addCleanup(os.close, self.errors)
        self.addCleanup(os.close, there)
        self.enterContext(mock.patch.object(stacks, "_ERRORS", there))
        self.agent = self.enterContext(FakeAgent(None))
        self.connection = Agent(self.agent.path, 0)
        self.addCleanup(self.connection.close)
        self.asked = threading.Event()

    def describe(self):
        self.asked.set()
        return "the last exchanges\n"

    def begin(self, describe):
        self.connection.begin(1, lambda: None, describe)
        self.agent.say("abort", round=1, reason="any")

    def test_what_hangs_is_described_in_the_log(self):
        self.connection.gate.phase(Phase.STEP)
        self.begin(self.describe)
        self.assertEqual(os.read(self.errors, 100), b"the last exchanges\n")

    def test_a_long_description_is_cut_at_its_beginning(self):
        self.begin(lambda: "first\n" + 4000 * "0123456789\n" + "last\n")
        seen = b""
        while not seen.endswith(b"last\n"):
            seen += os.read(self.errors, 1 << 16)
        self.assertRegex(seen, rb"\A\(more before it\)\n(0123456789\n)+last\n\Z")
        self.assertLessEqual(len(seen), 20 << 10)

    def test_a_library_that_cannot_describe_it_does_no_harm(self):
        def fail():
            self.asked.set()
            raise RuntimeError("CUDA error: unspecified launch failure")

        with mock.patch.object(threading, "excepthook") as hook:
            self.begin(fail)
            self.assertTrue(self.asked.wait(60))
            self.connection.end()
            self.assertEqual(self.connection.wait()[0]["type"], "abort")
            for thread in threading.enumerate():
                if thread.name == "concertina-hang":
                    thread.join()
        hook.assert_not_called()

    def test_one_that_has_left_or_may_take_its_time_is_not(self):
        for phase, leaves in (Phase.STEP, True), (Phase.EVAL, False):
            with self.subTest(phase):
                at = iter([(5, 4, phase), (6, 5, phase), (7, 6, phase)])
                hang = stacks.Hang(lambda at=at: next(at), self.describe)
                with mock.patch.object(hang._over, "wait", side_effect=lambda seconds: leaves or seconds > 0) as wait:
                    hang._watch()
                wait.assert_called_once_with(stacks._HANGS if leaves else stacks._LONG)
                self.assertFalse(self.asked.is_set())

    def test_one_that_goes_on_is_waited_for(self):
        at = [(5, 4, Phase.STEP), (5, 4, Phase.STEP), (5, 5, Phase.DATA), (6, 5, Phase.STEP), (6, 5, Phase.STEP)]
        left = iter(at[1:])
        stacks.Hang(lambda: next(left), self.describe)._watch()
        self.assertEqual((os.read(self.errors, 100), [*left]), (b"the last exchanges\n", []))

    def test_one_that_has_left_is_not_watched_any_more(self):
        self.connection.begin(1, lambda: None, self.describe)
        hang = self.connection._hang
        self.connection.end()
        hang._watch()
        self.assertFalse(self.asked.is_set())


if __name__ == "__main__":
    unittest.main()
