"""States in shards: models that are sharded with fully_shard(), in worlds of real processes that change."""

import os
import pathlib
import signal
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp

import concertina.torch as elastic
from concertina import fsdp, randomness
from concertina.codec import SnapshotError
from concertina.snapshot import Image
from concertina.tensors import TensorCodec
from tests_torch import sharded
from tests_torch.checkpoint import store
from tests_torch.coordinator import Coordinator, losses

MEMBER = str(pathlib.Path(sharded.__file__))


def undisturbed() -> dict[int, float]:
    """The loss of each step of one process that shards nothing."""
    torch.manual_seed(randomness.seed_of(5, "state"))
    state = sharded.build()
    state |= sharded.optimizers(state)
    found = {}
    job = elastic.join(state, seed=5)
    for step in job.steps(sharded.data(), **sharded.STEPS):
        with step:
            if not step.evaluates:
                found[step.number] = sharded.train(step, state)
    return found


class Worlds(unittest.TestCase):
    """Worlds of members whose state is in shards."""

    def coordinator(self, odd="") -> Coordinator:
        return self.enterContext(Coordinator(command=(MEMBER, odd)))

    def change(self, c, members, following):
        """Stops the members of a world, and gives others the next one with their state; its step and its parts."""
        step = c.barrier(members)
        parts = c.save_shards(members, step)
        self.assertEqual({key.split(".")[1] for key in parts}, {str(len(members))})
        c.shards_world(following, step, parts)
        return step, parts

    def begun(self, members, step):
        """The state with which all of them have begun a world, which is the same one."""
        lines = [member.wait_for(size=len(members)) for member in members]
        self.assertEqual({line["done"] for line in lines}, {step})
        (state,) = {line["state"] for line in lines}
        return state

    def leave(self, c, members):
        """Breaks a world off in which nothing is under way: gloo may wait for the rest of a message for ever, and an agent ends whoever
        does, which is not what is tested here."""
        c.barrier(members)
        c.abort(members)

    def assert_undisturbed(self, *members):
        want, got = undisturbed(), losses(*members)
        self.assertEqual(sorted(got), sorted(want))
        for step, loss in got.items():
            self.assertAlmostEqual(loss, want[step], delta=1e-6, msg=f"step {step}")

    def fault(self, member):
        while (message := member.message("a fault"))["type"] != "fault":
            pass
        return message["message"]


class Resized(Worlds):
    def test_saved_at_4_and_restored_at_any_size(self):
        c = self.coordinator()
        everybody = c.start(8)
        c.first_world(everybody[:4])
        everybody[0].wait_for(step=3)
        step, parts = self.change(c, everybody[:4], everybody[:2])
        was = next(line["state"] for line in everybody[0].told if line.get("step") == step)
        for size, following in (2, everybody[::-1]), (8, everybody[2:5]):
            before = everybody[:size]
            self.assertEqual(self.begun(before, step), was)
            self.leave(c, before)
            c.shards_world(following, step, parts)
        # As many ranks as in an earlier world, where some had other ones.
        self.assertEqual(self.begun(everybody[2:5], step), was)
        self.leave(c, everybody[2:5])
        c.shards_world([everybody[i] for i in (2, 4, 3)], step, parts)
        self.assertEqual(self.begun(everybody[2:5], step), was)
        everybody[2].wait_for(step=step + 4)
        # They have left their world when they are asked for their state.
        step = c.barrier(everybody[2:5])
        left = c.abort(everybody[2:5])
        self.assertEqual([(message["step"], message["clean"]) for message in left], [(step, True)] * 3)
        parts = c.save_shards(everybody[2:5], step)
        c.shards_world(everybody[:6], step, parts)
        was = self.begun(everybody[:6], step)
        c.end(everybody[:6])
        self.assert_undisturbed(*everybody[:6])
        self.assert_plain_torch_reads(parts, was)

    def assert_plain_torch_reads(self, parts, was):
        """Checks that what is exported of a checkpoint with these parts is this state, in a process that shards nothing."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        store(os.path.join(folder, "7-9"), {key: pathlib.Path(path).read_bytes() for key, path in parts.items()})
        found, saved = sharded.exported(os.path.join(folder, "7-9"), folder)
        self.assertEqual(found, was)
        self.assertEqual(saved["concertina.position"]["step"], saved["schedule"]["last_epoch"])
        loaded = {name: module.state_dict() for name, module in sharded.build().items()}
        dcp.load(loaded, checkpoint_id=os.path.join(folder, "out"))
        torch.testing.assert_close(loaded["net"], saved["net"], rtol=0, atol=0)

    def test_a_rank_is_killed(self):
        c = self.coordinator()
        members = c.start(3, interval=0)
        c.first_world(members)
        members[2].wait_for(step=6)
        members[2].kill()
        c.abort(members[:2])
        parts = {}
        for step in sorted(members[0].parts, reverse=True):
            parts = {key: path for member in members for key, path in member.taken(step).items()}
            if len(parts) == 6:
                break
        self.assertEqual(len(parts), 6, "no snapshot has the shards of all")
        c.shards_world(members[:2], step, parts)
        c.end(members[:2])
        self.assert_undisturbed(*members)

    def test_a_world_that_ends_while_it_forms(self):
        """Nobody has a state until its loop has begun: what was built for the world before is gone."""
        c = self.coordinator()
        members = c.start(2)
        c.first_world(members)
        members[0].wait_for(step=3)
        step = c.barrier(members)
        parts = c.save_shards(members, step)
        os.kill(members[1].process.pid, signal.SIGSTOP)  # so that the others wait for it
        c.shards_world(members, step, parts)
        (left,) = c.abort(members[:1])
        members[1].kill()
        self.assertFalse(left["clean"], left)
        c.shards_world(members[:1], step, parts)
        c.end(members[:1])
        self.assert_undisturbed(*members)

    def test_a_model_of_another_shape(self):
        c = self.coordinator("narrow")
        members = c.start(2)
        c.first_world(members)
        members[0].wait_for(step=1)
        self.change(c, members, members[:1])
        self.assertRegex(
            self.fault(members[0]),
            r"state\['net'\]\['0.weight'\] is a float64 of \[11, 5\] in the snapshot, and a float64 of \[9, 5\] in this job",
        )

    def test_a_model_over_another_mesh(self):
        c = self.coordinator("unnamed")
        (member,) = c.start(1)
        c.first_world([member])
        self.assertNotEqual(member.process.wait(300), 0)
        self.assertRegex(member.stderr(), r"state\['net'\]: 0.weight is sharded over .* fully_shard\(module, mesh=job.mesh\)")

    def test_a_model_that_is_not_sharded_by_rows(self):
        c = self.coordinator("columns")
        members = c.start(1)
        c.first_world(members)
        self.assertRegex(self.fault(members[0]), r"is a DTensor with the placements \(Shard\(dim=1\),\).*dimension 0")


class Alone(unittest.TestCase):
    """Without an agent, in this process."""

    def state(self, job):
        state = sharded.build()
        sharded.shard(state["net"], job.mesh)
        return state | sharded.optimizers(state)

    def test_it_trains_as_what_shards_nothing(self):
        job, got, changes = fsdp.join(seed=5), {}, []
        job.on_change(lambda change: changes.append((change.world.size, job._place.step)))
        for _ in job.worlds():
            state = self.state(job)
            for step in job.steps(sharded.data(), state=state, **sharded.STEPS):
                with step:
                    if not step.evaluates:
                        got[step.number] = sharded.train(step, state)
        self.assertEqual(changes, [(1, 0)])
        want = undisturbed()
        self.assertEqual(got.keys(), want.keys())
        for number, loss in got.items():
            self.assertAlmostEqual(loss, want[number], delta=1e-6)

    def refused(self, kind, text, use):
        job = fsdp.join(seed=5)
        with self.assertRaisesRegex(kind, text):
            use(job)
        job._close()

    def test_what_begins_anew_weighs_samples_like_those_that_come_new(self):
        job = fsdp.join(seed=5)
        for _ in job.worlds():
            state = self.state(job)
            job._gradients.scale = 3  # as a world before has left it, in half precision
            for _ in job.steps(sharded.data(), state=state, **sharded.STEPS):
                self.assertEqual(job._position()["scale"], 0)
                break
            break
        job._close()

    def test_a_backward_pass_of_the_programs_own(self):
        def use(job):
            for _ in job.worlds():
                state = self.state(job)
                for step in job.steps(sharded.data(), state=state, **sharded.STEPS):
                    with step:
                        for x, _ in step.micro_batches():
                            state["net"](x).sum().backward()

        self.refused(RuntimeError, r"loss.backward\(\) in a step: use step.backward\(loss\)", use)

    def test_a_state_that_is_not_built_in_its_world(self):
        def outside(job):
            job.steps(sharded.data(), state={}, **sharded.STEPS)

        def with_a_stream(job):
            for _ in job.worlds():
                job.steps(elastic.Stream(lambda shard, epoch: [], shards=2), state={}, **sharded.STEPS)

        self.refused(RuntimeError, "loop over `for world in job.worlds", outside)
        self.refused(TypeError, "a Stream with a state in shards", with_a_stream)

    def test_a_sharded_model_in_a_job_that_keeps_its_own(self):
        """Of a job that concertina.torch keeps nothing is in shards."""
        job = fsdp.join(seed=5)
        for _ in job.worlds():
            net = self.state(job)["net"]
            with self.assertRaisesRegex(SnapshotError, r"state\['0.weight'\] is a DTensor: .* concertina.fsdp keeps it"):
                Image(net.state_dict(), {"step": 0}, TensorCodec())
            break
        job._close()
