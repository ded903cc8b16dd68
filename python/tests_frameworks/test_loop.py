"""The SDK's loops with the newest PyTorch, in worlds that change: tests of tests_torch, which has the same with that of the images."""

import os
import unittest

MODULES = "elastic", "groups", "state", "fsdp", "local", "localhandover"


def load_tests(loader, tests, pattern):
    """All of them, unless FRAMEWORKS names others than Loop."""
    wanted = os.environ.get("FRAMEWORKS", "Loop").split()
    names = MODULES if "Loop" in wanted or not wanted else ()
    return unittest.TestSuite(loader.loadTestsFromName(f"tests_torch.test_{name}") for name in names)


if __name__ == "__main__":
    unittest.main()
