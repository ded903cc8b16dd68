"""The images of the examples."""

import pathlib
import unittest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


class Images(unittest.TestCase):
    def test_all_that_have_python_have_its_byte_code(self):
        """A pod cannot write it, and would compile what it imports at every start."""
        files = [file for file in EXAMPLES.glob("*/Dockerfile") if "\nFROM python:" in file.read_text()]
        self.assertTrue(files)
        for file in files:
            with self.subTest(file.parent.name):
                compiled = file.read_text().split("COPY examples/", 1)[1]
                self.assertRegex(compiled, r'(?s)\nRUN python -m compileall [^\n]+\n[^\n]+"stdlib"[^\n]+ /app\n.*\nUSER ')


if __name__ == "__main__":
    unittest.main()
