"""Streams that worlds of real processes read while they change."""

import os
import unittest
from collections import Counter
from unittest import mock

import torch
import torch.distributed as dist

import concertina.torch as elastic
from concertina.snapshot import SnapshotError
from tests.fakeagent import FakeAgent, world
from tests_torch.coordinator import Coordinator, losses

SHARDS = 5


class Worlds(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Coordinator(shards=SHARDS) as c:
            members = c.start(1)
            c.first_world(members)
            c.end(members)
            cls.undisturbed = losses(*members)
            cls.order = cls.used(*members)

    @staticmethod
    def used(*members):
        """The samples of each step, by epoch, as those used them who made it last."""
        lines = [line for member in members for line in member.told if "uses" in line]
        last = {line["in_step"]: line["round"] for line in sorted(lines, key=lambda line: line["round"])}
        steps = {}
        for line in lines:
            if line["round"] == last[line["in_step"]]:
                steps.setdefault((line["epoch"], line["in_step"]), Counter()).update(line["uses"])
        return steps

    def assert_undisturbed(self, *members):
        self.assertEqual(self.used(*members), self.order)
        got = losses(*members)
        self.assertEqual(sorted(got), sorted(self.undisturbed))
        for step, loss in got.items():
            self.assertAlmostEqual(loss, self.undisturbed[step], delta=1e-3, msg=f"step {step}")

    def coordinator(self):
        return self.enterContext(Coordinator(seconds=0.01, shards=SHARDS))

    def test_an_epoch_has_each_sample_once_and_its_last_step_what_is_left(self):
        for epoch in 0, 1:
            steps = [self.order[key] for key in sorted(self.order) if key[0] == epoch]
            self.assertEqual(sum(steps, Counter()), Counter(range(230)))
            self.assertEqual([step.total() for step in steps], [20] * 11 + [10])

    def test_one_joins_and_another_one_is_lost(self):
        c = self.coordinator()
        *members, newcomer = c.start(3, interval=0)
        c.first_world(members)
        members[0].wait_for(step=3)
        step = c.barrier(members)
        path = c.save(members[0], step)
        c.world(everybody := [*members, newcomer], step, [newcomer], path)
        newcomer.wait_for(step=step + 3)
        members[0].kill()
        survivors = everybody[1:]
        c.abort(survivors)
        step = max(survivors[0].snapshots)
        c.world(survivors, step, survivors, survivors[0].snapshots[step])
        survivors[0].wait_for(world=c.number)
        c.end(survivors)
        self.assert_undisturbed(*everybody)

    def test_all_are_started_anew(self):
        c = self.coordinator()
        members = c.start(3, interval=0)
        c.first_world(members)
        members[0].wait_for(step=13)  # in the second epoch
        step = c.barrier(members)
        path = c.save(members[0], step)
        for member in members:
            member.agent.stop(0)
            member.agent.say("go")
        members[0].wait_for(step=step + 3)
        for member in members:
            member.kill()
        started = c.start(2)
        c.world(started, step, started, path)
        c.end(started)
        self.assert_undisturbed(*members, *started)


class Alone(unittest.TestCase):
    def setUp(self):
        self.enterContext(mock.patch.dict(os.environ))
        for name in "CONCERTINA_SOCKET", "RANK", "WORLD_SIZE":
            os.environ.pop(name, None)

    def read(self, stream, **options):
        """The batches of each step, and the job."""
        job, steps = elastic.join({}), []
        for step in job.steps(stream, **({"global_batch": 4, "micro_batch": 3} | options)):
            with step:
                steps.append("evaluation" if step.evaluates else [b.tolist() for b in step.micro_batches()])
        return steps, job

    def test_batches_are_made_of_turns(self):
        stream = elastic.Stream(lambda shard, epoch: range(100 * epoch + 10 * shard, 100 * epoch + 11 * shard), shards=4)
        steps, job = self.read(stream, epochs=2, evaluate="epoch")
        first = [[[10, 20, 30], [21]], [[31, 32]]]
        second = [[[100 + n for n in batch] for batch in step] for step in first]
        self.assertEqual(steps, [*first, "evaluation", *second, "evaluation"])
        self.assertEqual(job.total_steps, 4)

    def test_it_goes_on_in_the_next_epoch_until_max_steps(self):
        stream = elastic.Stream(lambda shard, epoch, first: range(6)[first:], shards=1, seeks=True)
        steps, job = self.read(stream, max_steps=3, evaluate=2, collate=torch.tensor)
        self.assertEqual(steps, [[[0, 1, 2], [3]], [[4, 5]], "evaluation", [[0, 1, 2], [3]], "evaluation"])
        self.assertEqual(job.total_steps, 3)

    def test_a_snapshot_of_another_training(self):
        stream, job = elastic.Stream(lambda shard, epoch: [1], shards=3), elastic.join({})
        self.addCleanup(job._close)
        for loaded, what in ({"shards": 2}, "shards=2, this one has shards=3"), ({"data": 9}, r"len\(data\)=9"):
            job._loaded = loaded | {"batch": 4}
            with self.assertRaisesRegex(SnapshotError, what):
                job.steps(stream, global_batch=4, epochs=1)

    def test_what_it_cannot_do(self):
        stream, job = elastic.Stream(lambda shard, epoch: [1], shards=1), elastic.join({})
        self.addCleanup(job._close)
        with self.assertRaisesRegex(ValueError, "fillers with a Stream"):
            job.steps(stream, global_batch=1, epochs=1, fillers=True)
        with self.assertRaisesRegex(TypeError, "a Loader around a Stream: give the stream itself"):
            job.steps(elastic.Loader(stream), global_batch=1, epochs=1)
        with self.assertRaisesRegex(ValueError, "say when the training ends"):
            job.steps(stream, global_batch=1)


class Agents(unittest.TestCase):
    def test_the_last_step_is_said_once_it_is_known(self):
        agent = self.enterContext(FakeAgent(world()))
        self.enterContext(mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": agent.path, "LOCAL_RANK": "0"}))
        os.environ.pop("RANK", None)
        told = []
        stream = elastic.Stream(lambda shard, epoch: range(5), shards=2)
        for step in elastic.join({}).steps(stream, global_batch=4, epochs=1):
            with step:
                self.assertEqual(dist.get_world_size(), 1)
                told.append(agent.words()["lastStep"])
                list(step.micro_batches())
        self.assertEqual((told, agent.words()["samples"]), ([0, 0, 3], 10))


if __name__ == "__main__":
    unittest.main()
