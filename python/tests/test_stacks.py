"""What a program that hangs tells of itself."""

import os
import signal
import subprocess
import sys
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
            seen = b""
            while b"hang_in_a_thread" not in seen or b"hang_in_a_read" not in seen:  # It may not hang yet.
                program.send_signal(stacks._SIGNAL)
                seen = b""
                while not seen.endswith(b" in <module>\n"):  # One at a time, or it does nothing but write them.
                    written = os.read(program.stderr.fileno(), 1 << 16)
                    self.assertTrue(written, seen)
                    seen += written
            program.stdin.close()
            self.assertEqual(program.stdout.read(), b"lives on")
        self.assertEqual(program.returncode, 0)

    def test_it_is_a_signal_that_nobody_else_uses(self):
        self.assertTrue(signal.SIGRTMIN <= stacks._SIGNAL <= signal.SIGRTMAX)


if __name__ == "__main__":
    unittest.main()
