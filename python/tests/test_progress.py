import contextlib
import io
import os
import sys
import types
import unittest
from unittest import mock

import concertina
from concertina.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Alone(unittest.TestCase):
    def trained(self, modules):
        """What a program that runs alone on a terminal shows."""
        with (
            mock.patch.dict(os.environ, clear=True),
            mock.patch.dict(sys.modules, modules),
            contextlib.redirect_stderr(Terminal()) as shown,
        ):
            for step in concertina.join({}).steps(range(6), global_batch=2, epochs=1):
                with step:
                    step.report(loss=1 / step.number)
        return shown.getvalue()

    def test_one_line_is_written_over(self):
        lines = self.trained({"tqdm": None}).split("\r")
        self.assertEqual(lines[1], "step 1/3 loss 1\033[K")
        self.assertEqual(lines[-1], "step 3/3 loss 0.3333\033[K\n")

    def test_a_training_whose_end_nobody_knows(self):
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            Progress().show(3, 0, {"loss": 1}, last=False)
        self.assertEqual(shown.getvalue(), "\rstep 3 loss 1\033[K")
        bar = mock.Mock(n=0)
        Progress(bar).show(3, 0, {}, last=False)
        self.assertIsNone(bar.total)

    def test_with_tqdm(self):
        bar = mock.Mock(n=0)
        bar.update.side_effect = lambda more: setattr(bar, "n", bar.n + more)
        self.trained({"tqdm": types.SimpleNamespace(tqdm=lambda **_: bar)})
        self.assertEqual((bar.n, bar.total), (3, 3))
        bar.set_postfix.assert_called_with({"loss": "0.3333"}, refresh=False)
        bar.close.assert_called_once_with()

    def test_nothing_where_nobody_looks(self):
        with mock.patch.object(Terminal, "isatty", return_value=False):
            self.assertEqual(self.trained({}), "")


if __name__ == "__main__":
    unittest.main()
