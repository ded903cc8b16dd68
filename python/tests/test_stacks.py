"""What a program that hangs tells of itself."""

import os
import signal
import subprocess
import sys
import time
import unittest

from concertina import stacks

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


if __name__ == "__main__":
    unittest.main()
