"""Each framework trains a small model, is stopped for another world and goes on, loses a rank and goes on."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from tests_frameworks.worlds import EXAMPLES, Job

sys.path.insert(0, str(EXAMPLES))
import points  # noqa: E402

LAST = points.STEPS
PER_EPOCH = points.SAMPLES // points.GLOBAL_BATCH
STEP_SECONDS = 0.1


class Framework:
    """What every framework promises in docs/frameworks.md."""

    program = ""
    alone = True  # it needs no launcher

    def test_it_runs_without_a_launcher(self):
        if not self.alone:
            self.skipTest("torchrun starts it, with one process as well")
        place = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CONCERTINA_SOCKET"}
        env = {name: value for name, value in os.environ.items() if name not in place}
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(
                [sys.executable, "-W", "ignore", EXAMPLES / self.program, "--checkpoints", folder],
                env=env | {"PYTHONPATH": str(EXAMPLES.parents[1] / "python"), "OMP_NUM_THREADS": "1"},
                cwd=folder,
                capture_output=True,
                text=True,
            )
        self.assertEqual(run.returncode, 0, run.stderr[-4000:])
        told = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"step"')]
        self.assertEqual([line["step"] for line in told], list(range(1, LAST + 1)))

    def test_a_planned_change_loses_no_step_and_no_sample(self):
        with Job(self.program, step_seconds=STEP_SECONDS) as job:
            job.start(2)
            job.world[0].wait_for(3)
            first = job.stop()
            job.start(3)
            job.world[0].wait_for(PER_EPOCH + 3)
            second = job.stop()
            job.start(1)
            job.finish()
            self.assertEqual(job.steps(0), list(range(1, first + 1)))
            self.assertEqual(job.steps(1), list(range(first + 1, second + 1)))
            self.assertEqual(job.steps(2), list(range(second + 1, LAST + 1)))
            self.assert_undisturbed(job)

    def test_after_a_loss_it_goes_on_from_its_newest_checkpoint(self):
        every = 5
        with Job(self.program, every=every, step_seconds=STEP_SECONDS) as job:
            job.start(2)
            job.world[0].wait_for(every + 3)
            job.kill()
            lost = job.steps(0)[-1]
            job.start(1)
            job.finish()
            begun = job.steps(1)[0]
            self.assertEqual(begun % every, 1, "it goes on from a checkpoint")
            self.assertLessEqual(lost - (begun - 1), every)
            self.assert_undisturbed(job)

    def assert_undisturbed(self, job: Job) -> None:
        """Each sample once in each epoch, and the loss of one who trains alone and undisturbed."""
        history = job.history()
        self.assertEqual(sorted(history), list(range(1, LAST + 1)))
        for epoch in range(points.EPOCHS):
            steps = range(1 + epoch * PER_EPOCH, 1 + (epoch + 1) * PER_EPOCH)
            used = [sample for step in steps for line in history[step] for sample in line["samples"]]
            self.assertEqual(sorted(used), list(range(points.SAMPLES)), f"samples of epoch {epoch}")
        alone = undisturbed(self.program)
        for step in (LAST // 2, LAST):
            self.assertAlmostEqual(mean_loss(history[step]) / mean_loss(alone[step]), 1, delta=1e-3, msg=f"step {step}")


def mean_loss(lines: list[dict]) -> float:
    """The loss of a step: the mean over its ranks, which have as many samples each."""
    return sum(line["loss"] for line in lines) / len(lines)


_undisturbed: dict[str, dict[int, list[dict]]] = {}


def undisturbed(program: str) -> dict[int, list[dict]]:
    """What a program alone in one world tells of each step."""
    if program not in _undisturbed:
        with Job(program) as job:
            job.start(1)
            job.finish()
            _undisturbed[program] = job.history()
    return _undisturbed[program]


class Transformers(Framework, unittest.TestCase):
    program = "hf_trainer.py"


class Lightning(Framework, unittest.TestCase):
    program = "lightning_fit.py"


class Accelerate(Framework, unittest.TestCase):
    program = "accelerate_loop.py"


class DeepSpeed(Framework, unittest.TestCase):
    program = "deepspeed_engine.py"
    alone = False


class Jax(Framework, unittest.TestCase):
    program = "jax_loop.py"


def load_tests(loader, tests, pattern):
    """All of them, or those that FRAMEWORKS names."""
    wanted = os.environ.get("FRAMEWORKS", "").split()
    kinds = [kind for kind in Framework.__subclasses__() if not wanted or kind.__name__ in wanted]
    return unittest.TestSuite(loader.loadTestsFromTestCase(kind) for kind in kinds)


if __name__ == "__main__":
    unittest.main()
