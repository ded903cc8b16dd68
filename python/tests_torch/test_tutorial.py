"""The programs of docs/tutorial.md do what it says, and the differences that it shows are theirs."""

import difflib
import pathlib
import re
import unittest

from tests_frameworks.worlds import Job, Process

TOP = pathlib.Path(__file__).parents[2]
PROGRAMS = TOP / "examples" / "tutorial"


class Printing(Process):
    """A program that prints its steps as the tutorial's do."""

    def parse(self, line):
        if found := re.fullmatch(r"step (\d+)/(\d+) loss ([\d.]+)\n", line):
            return {"step": int(found[1]), "last": int(found[2]), "loss": float(found[3])}
        if found := re.fullmatch(r"accuracy ([\d.]+)\n", line):
            return {"step": 0, "accuracy": float(found[1])}
        return None


class Alone(Printing):
    """One that has no agent."""

    def environment(self, job, size, port):
        return super().environment(job, size, port) | {"CONCERTINA_SOCKET": ""}


class Differences(unittest.TestCase):
    def test_they_are_those_of_the_files(self):
        text = (TOP / "docs" / "tutorial.md").read_text()
        shown = dict(re.findall(r"```diff\n--- (.*?)\n(.*?)```", text, flags=re.DOTALL))
        self.assertTrue(shown)
        for before, rest in shown.items():
            after = rest.removeprefix("+++ ").split("\n", 1)[0]
            lines = [(PROGRAMS / name).read_text().splitlines(keepends=True) for name in (before, after)]
            self.assertEqual("".join(difflib.unified_diff(*lines, before, after, n=1)), f"--- {before}\n{rest}")


class Programs(unittest.TestCase):
    def train(self, program: str, *sizes: int, kind=Printing) -> list[dict]:
        """Trains in worlds of these sizes, each but the last of which is stopped early, and returns what was told."""
        with Job(PROGRAMS / program, arguments=(), kind=kind) as job:
            for size in sizes[:-1]:
                job.start(size)
                job.world[0].next_line()
                job.stop()
            job.start(sizes[-1])
            job.finish()
            return [line for world in job.worlds for line in world[0].told]

    def test_level_1_makes_each_step_once_and_learns_what_the_undisturbed_one_does(self):
        alone, changing = self.train("level1.py", 1), self.train("level1.py", 2, 3, 1)
        for told in alone, changing:
            steps = [line["step"] for line in told if line["step"]]
            self.assertEqual(steps, list(range(1, told[0]["last"] + 1)))
            self.assertGreater(told[-1]["accuracy"], 0.95)
        for one, other in zip(alone[-11:-1], changing[-11:-1], strict=True):
            self.assertAlmostEqual(other["loss"], one["loss"], delta=1e-3 * one["loss"] + 2e-6)

    def test_level_2_is_the_same_training(self):
        level1, level2 = self.train("level1.py", 1, kind=Alone), self.train("level2.py", 2, kind=Alone)
        self.assertEqual([line["step"] for line in level2], [line["step"] for line in level1])
        self.assertGreater(level2[-1]["accuracy"], 0.95)
        for one, other in zip(level1[:20], level2[:20], strict=True):
            self.assertAlmostEqual(other["loss"], one["loss"], delta=1e-3 * one["loss"])

    def test_the_plain_one_learns_as_well(self):
        told = self.train("plain.py", 2)
        self.assertGreater(told[-1]["accuracy"], 0.95)


if __name__ == "__main__":
    unittest.main()
