"""Whether a GPU or the program is to blame for an error of CUDA, on a GPU that is sound."""

import os
import subprocess
import sys
import unittest

from concertina import health
from tests.fakeagent import FakeAgent, world
from tests_gpu import DEVICE

PROGRAM = """
import torch
import torch.nn.functional as F
import concertina.torch as elastic

table = torch.nn.Embedding(4, 1).cuda()
opt = torch.optim.SGD(table.parameters(), lr=0.1)
job = elastic.join({"table": table, "opt": opt}, backend="nccl")
for step in job.steps(torch.utils.data.TensorDataset(torch.tensor([0, 1, 2, 4])), global_batch=4, epochs=1):
    with step:
        for (numbers,) in step.micro_batches():
            step.backward(table(numbers.cuda()).mean())  # The last number is one too many.
        opt.step()
"""


@unittest.skipIf(DEVICE == "cpu", "TEST_DEVICE=cpu has no GPU to look at")
class Health(unittest.TestCase):
    def test_a_gpu_is_found_sound_also_while_another_process_uses_it(self):
        import torch

        kept = torch.ones(1 << 20, device="cuda")
        self.assertEqual(health.Check(0).outcome(), (True, "it computes what it should"))
        self.assertEqual(float(kept.sum()), 1 << 20)

    def test_of_a_device_that_is_not_there_nobody_knows_anything(self):
        sound, why = health.Check(99).outcome()
        self.assertIs(sound, None, why)

    def test_an_assertion_that_fails_on_a_sound_gpu_is_the_program_s(self):
        with FakeAgent(world()) as agent:
            program = subprocess.run(
                [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "CONCERTINA_SOCKET": agent.path, "LOCAL_RANK": "0"},
            )  # fmt: skip
            faults = [message["message"].splitlines()[-1] for message in agent.received("fault")]
        self.assertEqual(program.returncode, 1, program.stderr)
        self.assertIn("the GPU is sound", program.stderr)
        self.assertEqual(len(faults), 1, faults)
        self.assertTrue(faults[0].endswith("CUDA error: device-side assert triggered"), faults)


if __name__ == "__main__":
    unittest.main()
