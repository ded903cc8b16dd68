"""The state that is left when a world ends in the middle of a step: who has which, and goes on with it."""

import random
import threading
import unittest

from concertina.live import LiveState
from tests.fakeagent import world
from tests.test_worlds import SECONDS, Case, Program


class Exact(Program):
    """Says where it changes its state, and waits twice in a step: before that, and in the middle of it."""

    def __init__(self, *args, **options):
        self.arrived, self.within = threading.Semaphore(0), threading.Semaphore(0)
        self.drawn = []
        super().__init__(*args, **options)

    def step(self, step):
        self.drawn.append(random.random())  # what dropout or an augmentation does
        self.arrived.release()
        assert self.proceed.acquire(timeout=SECONDS)
        self.fail(step, before=True)
        step.begin_update()
        for batch in step.micro_batches():
            self.counter.add(batch)
        self.fail(step, before=False)
        self.steps.append(step.number)
        self.entered.release()

    def fail(self, step, before):
        if self.fail_at == (step.number if before else -step.number):
            self.fail_at = 0
            raise ConnectionError("a peer is gone")


class Recovery(Case):
    def begun(self, fail_at):
        """A program that has made three steps, and fails in the next: before its update, or in the middle of it."""
        agent, program = self.start(program=Exact)
        path = agent.take_over(agent.hear("snapshot"), 1)
        program.make(3)
        program.fail_at = fail_at
        program.proceed.release()
        return agent, program, path

    def test_before_the_update_the_state_is_that_of_the_last_step(self):
        agent, program, _ = self.begun(4)
        fault = agent.hear("fault")
        self.assertEqual((fault["step"], fault["clean"]), (3, True))
        before = program.counter.values
        agent.say("save", step=3)
        path = agent.take_over(agent.hear("snapshot"), 1)
        agent.give(world(round=2, fromStep=3, restore=False))
        self.finish(agent, program)
        self.assertEqual(program.steps, [1, 2, 3, 4, 5, 6])
        self.assertEqual(program.drawn[3], program.drawn[4], "the fourth step draws the same numbers again")

        random.seed(99)
        other_agent, other = self.start(None, program=Exact)
        other_agent.give(world(round=2, fromStep=3, snapshot=path, writer=False))
        self.assertTrue(other.arrived.acquire(timeout=SECONDS))
        self.assertEqual(other.counter.values, before)
        self.finish(other_agent, other)
        self.assertEqual(other.counter.values, program.counter.values)
        self.assertEqual(other.drawn, program.drawn[4:])

    def test_in_the_middle_of_the_update_it_is_that_of_none(self):
        agent, program, path = self.begun(-4)
        fault = agent.hear("fault")
        self.assertEqual((fault["step"], fault["clean"]), (3, False))
        agent.say("save", step=3)
        self.assertIn("in the middle of a step", agent.hear("snapshot")["error"])
        agent.give(world(round=2, snapshot=path, writer=False))
        self.finish(agent, program)
        self.assertEqual(program.steps, [1, 2, 3, 1, 2, 3, 4, 5, 6])

    def test_who_cannot_go_on_does_not(self):
        agent, program, _ = self.begun(-4)
        agent.hear("fault")
        agent.give(world(round=2, fromStep=3, restore=False))
        self.assertIn("a part of the next", agent.hear("fault")["message"])
        agent.say("raise")
        self.assertIsInstance(program.end(), RuntimeError)

    def test_the_first_step_is_not_known(self):
        agent, program = self.start(program=Exact)
        agent.hear("snapshot")
        program.fail_at = 1
        program.proceed.release()
        self.assertFalse(agent.hear("fault")["clean"])
        agent.say("raise")
        self.assertIsInstance(program.end(), ConnectionError)

    def test_after_an_abort(self):
        agent, program, _ = self.begun(0)
        self.assertTrue(program.entered.acquire(timeout=SECONDS))
        for _ in range(5):
            self.assertTrue(program.arrived.acquire(timeout=SECONDS))
        program.fail_at = 5
        agent.say("abort", round=1, reason="lost a peer")
        self.wait_for_abort(program)
        program.proceed.release()
        self.assertEqual(agent.hear("aborted"), {"type": "aborted", "step": 4, "clean": True})
        agent.say("save", step=4)
        agent.take_over(agent.hear("snapshot"), 1)
        agent.give(world(round=2, fromStep=4, restore=False))
        self.finish(agent, program)
        self.assertEqual(program.steps, [1, 2, 3, 4, 5, 6])

    def test_who_has_finished_gives_its_state(self):
        agent, program = self.start(program=Exact)
        agent.hear("snapshot")
        program.go_on()
        self.assertEqual(agent.hear("finished"), {"type": "finished", "step": 6, "clean": True})
        agent.say("save", step=6)
        agent.take_over(agent.hear("snapshot"), 1)
        agent.give(world(round=2, fromStep=6, restore=False))
        self.finish(agent, program)
        self.assertEqual(program.steps, [1, 2, 3, 4, 5, 6])


class TheState(unittest.TestCase):
    def setUp(self):
        self.copied = self.undone = 0
        self.state = LiveState(self.copy)

    def copy(self):
        self.copied += 1
        return self.undo

    def undo(self):
        self.undone += 1

    def steps(self, write=True):
        self.state.settled()
        self.state.begin()
        if write:
            self.state.write()

    def test_a_step_that_says_nothing_is_not_trusted(self):
        self.steps(write=False)
        self.state.leave()
        self.assertEqual((self.state.clean, self.undone), (False, 0))

    def test_once_it_was_said_it_is_trusted(self):
        self.steps()
        self.steps(write=False)
        self.assertFalse(self.state.clean)  # it can be put back, and was not yet
        self.state.leave()
        self.assertEqual((self.state.clean, self.undone), (True, 1))

    def test_what_was_written_is_not_put_back(self):
        self.steps()
        self.steps()
        self.assertTrue(self.state.writing)
        self.state.leave()
        self.assertEqual((self.state.clean, self.undone), (False, 0))

    def test_between_two_steps(self):
        self.steps()
        self.state.settled()
        self.assertTrue(self.state.clean)
        self.state.leave()
        self.assertEqual((self.state.clean, self.undone), (True, 1))

    def test_what_stands_still_is_neither_copied_nor_put_back(self):
        self.steps()
        self.state.settled()
        copied = self.copied
        self.state.stand()
        self.state.leave()
        self.assertEqual((self.state.clean, self.copied - copied, self.undone), (True, 0, 0))

    def test_what_goes_on_after_it_stood_is_put_back_as_it_stood(self):
        self.steps()
        self.state.settled()
        copied = self.copied
        self.state.go_on()
        self.assertEqual(self.copied, copied)  # it had not stood
        self.state.stand()
        self.state.go_on()
        self.assertEqual(self.copied, copied + 1)
        self.state.begin()
        self.state.leave()
        self.assertEqual((self.state.clean, self.undone), (True, 1))

    def test_what_is_loaded_half_way(self):
        self.state.settled()
        self.state.doubt()
        self.assertTrue(self.state.doubtful)
        self.state.leave()
        self.assertEqual((self.state.clean, self.undone), (False, 0))

    def test_what_cannot_be_put_back(self):
        def broken():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        self.state = LiveState(lambda: broken)
        self.steps()
        self.steps(write=False)
        self.state.leave()
        self.assertFalse(self.state.clean)
