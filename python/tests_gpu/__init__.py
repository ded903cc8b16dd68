"""Tests that need a GPU, one of which is enough: python3 -m tests_gpu, in the folder above.

TEST_DEVICE=cpu runs those that can be run on processors, to see whether the tests work.
"""

import os

DEVICE = os.environ.get("TEST_DEVICE", "cuda")
BACKEND = "nccl" if DEVICE == "cuda" else "gloo"
