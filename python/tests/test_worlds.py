"""A program on its way from world to world, with the agent's side played by the test."""

import gc
import os
import queue
import random
import socket
import threading
import unittest
import weakref
from unittest import mock

import concertina
from concertina.gate import Phase
from concertina.snapshot import Codec, read
from tests.fakeagent import FakeAgent, world

SECONDS = 20
DATA = list(range(10))


class Counter:
    """A state that training changes: the sum of what it was fed, and random numbers."""

    def __init__(self):
        self.values = [0, 0.0]

    def add(self, batch):
        self.values = [self.values[0] + sum(batch), random.random()]

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values = state["values"]


class Program:
    """A training program in a thread of its own; each step waits until the test lets it go."""

    def __init__(self, case, **options):
        self.counter = Counter()
        self.options = {"epochs": 2, "global_batch": 4, "evaluate": "epoch"} | options
        self.job = concertina.join({"counter": self.counter}, seed=3)
        self.best = self.job.values(evaluated=0)
        self.worlds, self.steps, self.evaluations, self.attempts = [], [], [], []
        self.entered, self.proceed = threading.Semaphore(0), threading.Semaphore(0)
        self.begun: queue.Queue[int] = queue.Queue()
        self.fail_at = 0
        self.outcome = None
        self.thread = threading.Thread(target=self._main, daemon=True)
        case.addCleanup(self._abandon)
        self.thread.start()

    def make(self, steps):
        """Lets it make so many steps."""
        for _ in range(steps):
            self.proceed.release()
            assert self.entered.acquire(timeout=SECONDS)

    def stands_in(self, step):
        """Waits until it has passed the gate before this step, and waits in it: when make() returns, it may still be about
        to commit the last one that it made."""
        while self.begun.get(timeout=SECONDS) != step:
            pass

    def go_on(self):
        """Lets it run freely."""
        self.proceed.release(1000)

    def end(self):
        """Waits for its end; what it raised or returned."""
        self.thread.join(SECONDS)
        assert not self.thread.is_alive(), "the program has not ended"
        return self.outcome

    def train(self):
        for step in self.loop():
            with step:
                if step.world not in self.worlds:
                    self.worlds.append(step.world)
                if step.evaluates:
                    self.evaluate(step)
                else:
                    self.step(step)
            self.attempts.append((step.number, step.evaluates, step.committed))
        return "result"

    def loop(self):
        return self.job.steps(DATA, **self.options)

    def step(self, step):
        self.begun.put(step.number)
        assert self.proceed.acquire(timeout=SECONDS)
        if step.number == self.fail_at:
            self.fail_at = 0
            self.counter.add([1000])  # half a step
            raise ArithmeticError(f"bad step {step.number}")
        for batch in step.micro_batches():
            self.counter.add(batch)
        self.steps.append(step.number)
        self.entered.release()

    def evaluate(self, step):
        self.evaluations.append(step.epoch)
        self.best.evaluated += 1

    def _main(self):
        try:
            self.outcome = self.train()
        except BaseException as error:
            self.outcome = error

    def _abandon(self):
        self.go_on()
        self.thread.join(SECONDS)


class Case(unittest.TestCase):
    def start(self, *worlds, answers=(), program=Program, listener=None, setup=None, **options):
        agent = self.enterContext(FakeAgent(*(worlds or [world()]), listener=listener))
        agent.answers = dict(answers)
        vars(agent).update(setup or {})
        self.enterContext(mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": agent.path, "LOCAL_RANK": "0"}))
        os.environ.pop("RANK", None)
        started = program(self, **options)
        self.assertEqual(agent.hear("hello")["protocol"], 2)
        agent.hear("join")
        return agent, started

    def wait_for_abort(self, program):
        agent = program.job._session.agent
        with agent._arrived:
            assert agent._arrived.wait_for(lambda: agent.aborted, SECONDS)

    def barrier(self, agent, program, step):
        """Stops a program that is about to make the step after this one."""
        agent.stop(step)
        program.make(1)
        self.assertEqual(agent.hear("parked"), {"type": "parked", "step": step})

    def finish(self, agent, program):
        program.go_on()
        agent.hear("finished")
        agent.say("end")
        self.assertEqual(program.end(), "result")

    def undisturbed(self):
        counter = Counter()
        with mock.patch.dict(os.environ, clear=True):
            job = concertina.join({"counter": counter}, seed=3)
            for step in job.steps(DATA, epochs=2, global_batch=4):
                with step:
                    for batch in step.micro_batches():
                        counter.add(batch)
        return counter.values


class Barrier(Case):
    def test_it_waits_where_it_is_told_and_goes_on(self):
        agent, program = self.start()
        agent.hear("snapshot")
        program.make(1)
        self.barrier(agent, program, 2)
        self.assertEqual((agent.words()["entered"], agent.words()["done"]), (3, 2))
        agent.stop(3)
        agent.say("go")  # to a later barrier
        program.make(1)
        self.assertEqual(agent.hear("parked")["step"], 3)
        agent.say("go")  # for nothing: it looks, and says that it still stands there
        self.assertEqual(agent.hear("parked")["step"], 3)
        agent.stop(0)
        agent.say("go")
        self.finish(agent, program)
        self.assertEqual(program.steps, [1, 2, 3, 4, 5, 6])
        self.assertEqual(len(program.worlds), 1)

    def test_state_lives_on_in_the_next_world(self):
        agent, program = self.start()
        agent.hear("snapshot")
        self.barrier_after_one(agent, program)
        agent.stop(0)
        ended, first = agent.stamps()
        self.assertLess(first, ended)
        agent.give(world(1, 3, round=2, fromStep=2, restore=False))
        self.finish(agent, program)
        last, second = agent.stamps()
        self.assertTrue(ended < second < last, "the first step of the second world is stamped")
        self.assertEqual([w.round for w in program.worlds], [1, 2])
        self.assertEqual(program.steps, [1, 2, 3, 4, 5, 6])

    def barrier_after_one(self, agent, program):
        program.make(1)
        self.barrier(agent, program, 2)

    def test_who_stands_at_an_epochs_end_has_not_evaluated_yet(self):
        agent, program = self.start()
        agent.hear("snapshot")
        program.make(2)
        agent.stop(3)
        program.make(1)
        self.assertEqual(agent.hear("parked")["step"], 3)
        self.assertEqual(program.evaluations, [])
        agent.stop(0)
        agent.give(world(0, 2, round=2, fromStep=3, restore=False))
        self.finish(agent, program)
        self.assertEqual(program.evaluations, [0, 1])
        self.assertEqual(program.steps, [1, 2, 3, 4, 5, 6])

    def test_who_evaluates_makes_the_next_step_before_it_parks(self):
        class Slow(Program):
            def evaluate(self, step):
                super().evaluate(step)
                agent.stop(max(3, agent.words()["entered"]))  # as an agent does that is told of a barrier at 3

        agent, program = self.start(program=Slow)
        agent.hear("snapshot")
        program.make(4)
        self.assertEqual(agent.hear("parked")["step"], 4)
        agent.stop(0)
        agent.give(world(0, 2, round=2, fromStep=4, restore=False))
        self.finish(agent, program)
        self.assertEqual(program.evaluations, [0, 1])

    def broken_off(self, program=Program, at=4, **options):
        """A program whose world is broken off in its step at; the agent has told it to go on from the step before."""
        agent, started = self.start(program=program, **options)
        agent.take_over(agent.hear("snapshot"), 1)
        started.job._live.write()  # From now on it is taken to say where it changes its state.
        started.make(at - 1)
        started.stands_in(at)
        started.fail_at = at
        agent.say("abort", round=1, reason="a rank is lost")
        agent.stop(1)
        self.wait_for_abort(started)
        started.proceed.release()
        left = agent.hear("aborted")
        self.assertEqual(left, {"type": "aborted", "step": at - 1, "clean": True})
        agent.stop(0)
        return agent, started

    def test_an_evaluation_before_a_step_that_is_broken_off_starts_over(self):
        agent, program = self.broken_off()
        self.assertEqual((program.evaluations, program.best.evaluated), ([0], 0), "what it changed is put back")
        program.counter.values = [21, 0.0]  # what a real program has not begun to change
        agent.give(world(0, 1, round=2, fromStep=3, restore=False))
        self.finish(agent, program)
        self.assertEqual((program.evaluations, program.best.evaluated), ([0, 0, 1], 2))
        self.assertIn((4, False, False), program.attempts)

    def test_the_state_of_an_epochs_end_has_nothing_of_its_evaluation(self):
        agent, program = self.broken_off()
        agent.say("save", step=3)
        path = agent.take_over(agent.hear("snapshot"), 1)
        self.assertEqual(read(path, Codec())[1]["concertina.values"], {"evaluated": 0})
        agent.give(world(0, 1, round=2, fromStep=3, restore=True, snapshot=path))
        self.finish(agent, program)
        self.assertEqual((program.evaluations, program.best.evaluated), ([0, 0, 1], 2))

    def test_values_that_are_named_in_an_evaluation_are_put_back(self):
        class Naming(Program):
            seen = ()

            def evaluate(self, step):
                super().evaluate(step)
                best = self.job.values(best=0)
                self.seen += (best.best,)
                best.best += 1

        agent, program = self.broken_off(program=Naming)
        agent.give(world(0, 1, round=2, fromStep=3, restore=False))
        self.finish(agent, program)
        self.assertEqual(program.seen, (0, 0, 1))

    def test_an_evaluation_that_writes_to_the_state_leaves_nothing_clean(self):
        class Writing(Program):
            def evaluate(self, step):
                super().evaluate(step)
                step.begin_update()

        agent, program = self.start(program=Writing)
        agent.take_over(agent.hear("snapshot"), 1)
        program.job._live.write()
        program.make(3)
        program.stands_in(4)
        program.fail_at = 4
        agent.say("abort", round=1, reason="a rank is lost")
        agent.stop(1)
        self.wait_for_abort(program)
        program.proceed.release()
        self.assertEqual(agent.hear("aborted"), {"type": "aborted", "step": 3, "clean": False})

    def test_an_evaluation_is_reported_once(self):
        class Reporting(Program):
            def evaluate(self, step):
                super().evaluate(step)
                step.report(accuracy=len(self.evaluations))

        agent, program = self.broken_off(program=Reporting)
        self.assertEqual(program.job.metrics, {"accuracy": 1})
        agent.give(world(0, 1, round=2, fromStep=3, restore=False))
        program.make(1)
        self.assertEqual(program.evaluations, [0, 0])
        self.assertEqual(program.job.metrics, {"accuracy": 1})
        self.finish(agent, program)
        self.assertEqual(program.job.metrics, {"accuracy": 3})

    def test_values_that_a_broken_step_has_changed(self):
        class Counting(Program):
            def step(self, step):
                self.best.evaluated += 1000
                super().step(step)

        agent, program = self.broken_off(program=Counting, at=2)
        self.assertEqual(program.best.evaluated, 1000)
        agent.give(world(0, 1, round=2, fromStep=1, restore=False))
        self.finish(agent, program)
        self.assertEqual(program.best.evaluated, 6002)

    def test_a_world_that_ends_in_the_last_evaluation(self):
        class Last(Program):
            def evaluate(self, step):
                super().evaluate(step)
                if len(self.evaluations) == 2:
                    agent.say("abort", round=1, reason="a rank is lost")
                    case.wait_for_abort(self)
                    raise ConnectionError("a peer is gone")

        case = self
        agent, program = self.start(program=Last)
        agent.hear("snapshot")
        program.go_on()
        self.assertEqual(agent.hear("aborted"), {"type": "aborted", "step": 6, "clean": True})
        agent.give(world(0, 1, round=2, fromStep=6, restore=False))
        self.finish(agent, program)
        self.assertEqual((program.evaluations, program.best.evaluated), ([0, 1, 1], 2))

    def test_who_has_evaluated_last_and_is_needed_again(self):
        agent, program = self.start()
        agent.hear("snapshot")
        program.go_on()
        self.assertTrue(agent.hear("finished")["clean"])
        agent.say("save", step=6)
        path = agent.take_over(agent.hear("snapshot"), 1)
        self.assertEqual(read(path, Codec())[1]["concertina.values"], {"evaluated": 1})
        agent.give(world(0, 2, round=2, fromStep=6, restore=False))
        self.finish(agent, program)
        self.assertEqual((program.evaluations, program.best.evaluated), ([0, 1, 1], 2))

    def test_an_agent_that_goes_away_ends_the_wait(self):
        agent, program = self.start()
        agent.hear("snapshot")
        self.barrier_after_one(agent, program)
        agent.hang_up()
        self.assertIsInstance(program.end(), concertina.AgentError)


class Snapshots(Case):
    def test_who_joins_loads_what_the_barrier_saved(self):
        agent, program = self.start()
        agent.hear("snapshot")
        program.make(3)
        self.barrier(agent, program, 4)
        agent.say("save", step=4)
        path = agent.take_over(agent.hear("snapshot"), 1)
        position, _ = read(path, Codec())
        self.assertEqual(
            position, {"step": 4, "samples": 14, "epoch": 1, "cursor": 4, "total": 6, "seed": 3, "batch": 4, "data": 10}
        )  # fmt: skip
        agent.say("abort", round=1, reason="enough")
        self.assertEqual(agent.hear("aborted"), {"type": "aborted", "step": 4, "clean": True})

        random.seed(99)
        newcomer_agent, newcomer = self.start(None)
        newcomer_agent.give(world(1, 2, round=2, fromStep=4, restore=True, snapshot=path, writer=False))
        newcomer.make(1)
        newcomer.stands_in(6)
        self.assertEqual(
            newcomer_agent.words(), {"entered": 6, "done": 5, "lastStep": 6, "phase": Phase.STEP, "samples": 18}
        )
        self.finish(newcomer_agent, newcomer)
        self.assertEqual(newcomer.steps, [5, 6])
        self.assertEqual(newcomer.evaluations, [1])
        agent.hang_up()

    def test_a_snapshot_of_another_training_is_refused(self):
        agent, program = self.start()
        path = agent.take_over(agent.hear("snapshot"), 1)
        self.finish(agent, program)
        agent, program = self.start(world(snapshot=path), global_batch=5)
        self.assertIn("global_batch=4, this one has global_batch=5", agent.hear("fault")["message"])
        agent.say("raise")
        self.assertIsInstance(program.end(), ValueError)

    def test_a_run_that_goes_back_ends_like_one_that_was_never_disturbed(self):
        agent, program = self.start(setup={"interval": 0})
        agent.take_over(agent.hear("snapshot"), 1)
        program.make(2)
        path = agent.take_over(agent.hear("snapshot"), 1)
        self.assertTrue(path.endswith("1-1"))
        program.make(1)
        agent.stop(4)
        program.make(1)
        while (message := agent.messages.get(timeout=SECONDS)[1])["type"] == "snapshot":
            pass
        self.assertEqual(message, {"type": "parked", "step": 4})
        agent.stop(1)
        agent.say("abort", round=1, reason="lost a peer")
        while (message := agent.messages.get(timeout=SECONDS)[1])["type"] == "snapshot":
            pass
        self.assertEqual(message, {"type": "aborted", "step": 4, "clean": True})
        agent.stop(0)
        agent.interval = 3600
        agent.give(world(round=2, fromStep=1, snapshot=path))
        program.go_on()
        while (message := agent.messages.get(timeout=SECONDS)[1])["type"] == "snapshot":
            pass
        self.assertEqual(message["type"], "finished")
        agent.say("end")
        self.assertEqual(program.end(), "result")
        self.assertEqual(program.counter.values, self.undisturbed())

    def test_back_to_the_first_step_without_a_file(self):
        agent, program = self.start(world(writer=False))
        program.fail_at = 1
        program.proceed.release()
        agent.hear("fault")
        agent.give(world(round=2, writer=False))
        self.finish(agent, program)
        self.assertEqual(program.counter.values, self.undisturbed())

    def test_back_to_the_first_step_when_nothing_is_left_of_it(self):
        agent, program = self.start(world(writer=False))
        program.make(2)
        self.barrier(agent, program, 3)
        agent.say("abort", round=1, reason="lost a peer")
        agent.hear("aborted")
        agent.stop(0)
        agent.give(world(round=2, writer=False))
        self.assertIn("nothing is left", agent.hear("fault")["message"])
        agent.say("raise")
        self.assertIsInstance(program.end(), ValueError)

    def test_a_snapshot_that_cannot_be_written(self):
        agent, program = self.start(setup={"snapshots": "/nonexistent"})
        self.assertIn("No such file", agent.hear("snapshot")["error"])
        self.barrier_and_save(agent, program, "/nonexistent")

    def test_no_folder(self):
        agent, program = self.start(setup={"snapshots": ""})
        self.barrier_and_save(agent, program, "no folder")

    def barrier_and_save(self, agent, program, error):
        program.make(1)
        self.barrier(agent, program, 2)
        agent.say("save", step=2)
        message = agent.hear("snapshot")
        self.assertEqual(message["step"], 2)
        self.assertRegex(message["error"], error)
        agent.stop(0)
        agent.say("go")
        self.finish(agent, program)

    def test_how_often(self):
        self.assertEqual(self.taken(interval=2.5, step_takes=1, every=4), [0, 4, 8, 12, 16, 20, 24, 28])

    def test_auto_is_not_more_often_than_every_second(self):
        self.assertEqual(self.taken(interval="auto", step_takes=0.125, every=16), [0, 16])

    def taken(self, interval, step_takes, every):
        """The snapshots in 29 steps, which are told of after the steps that every divides."""
        clock = mock.Mock(return_value=0)
        self.enterContext(mock.patch("concertina.keeper.time.monotonic_ns", clock))

        class Timed(Program):
            def step(self, step):
                clock.return_value += int(step_takes * 1e9)
                super().step(step)

        agent, program = self.start(epochs=10, setup={"interval": interval}, program=Timed)
        taken = [agent.hear("snapshot")["step"]]
        for _ in range(29):
            program.make(1)
            if program.steps[-1] % every == 1 and program.steps[-1] > 1:
                taken.append(agent.hear("snapshot")["step"])
        self.finish(agent, program)
        return taken


class Faults(Case):
    def test_one_that_comes_from_the_world(self):
        agent, program = self.start()
        agent.hear("snapshot")
        program.fail_at = 1
        program.proceed.release()
        fault = agent.hear("fault")
        self.assertEqual((fault["step"], fault["clean"]), (0, False))
        self.assertIn("bad step 1", fault["message"])
        agent.say("abort", round=1, reason="lost a peer")
        agent.give(world(round=2))
        agent.hear("snapshot")
        self.finish(agent, program)

    def test_one_that_is_its_own(self):
        agent, program = self.start()
        agent.hear("snapshot")
        program.fail_at = 1
        program.proceed.release()
        agent.hear("fault")
        agent.say("raise")
        self.assertIsInstance(program.end(), ArithmeticError)

    def test_after_an_abort_errors_mean_nothing(self):
        agent, program = self.start()
        agent.hear("snapshot")
        program.make(1)
        program.fail_at = 2
        agent.say("abort", round=1, reason="lost a peer")
        self.wait_for_abort(program)
        program.proceed.release()
        self.assertEqual(agent.hear("aborted"), {"type": "aborted", "step": 1, "clean": False})
        agent.hang_up()
        self.assertIsInstance(program.end(), concertina.AgentError)

    def test_a_world_that_is_aborted_before_it_began(self):
        agent, program = self.start(None)
        agent.say("abort", round=4, reason="lost a peer")
        agent.give(world(round=4))
        self.assertEqual(agent.hear("aborted"), {"type": "aborted", "step": 0, "clean": True})
        agent.give(world(round=5))
        agent.hear("snapshot")
        self.finish(agent, program)
        self.assertEqual([w.round for w in program.worlds], [5])

    def test_who_has_finished_may_be_needed_again(self):
        agent, program = self.start()
        agent.take_over(agent.hear("snapshot"), 1)
        program.make(1)
        self.barrier(agent, program, 2)
        agent.say("save", step=2)
        path = agent.take_over(agent.hear("snapshot"), 1)
        agent.stop(0)
        agent.say("go")
        program.go_on()
        agent.hear("finished")
        agent.give(world(round=2, fromStep=2, snapshot=path))
        self.finish(agent, program)
        self.assertEqual(program.steps, [1, 2, 3, 4, 5, 6, 3, 4, 5, 6])


class Told(Program):
    """Is told of each world, and raises in those that the test names."""

    bad = ()

    def loop(self):
        self.changes, self.heard = [], []
        self.job.on_change(self.changed)
        self.job.on_change(self.heard.append)
        return super().loop()

    def changed(self, change):
        assert change.world is self.job.world
        self.changes.append((change.before and change.before.round, change.world.round, change.lost, len(self.steps)))
        if change.world.round in self.bad:
            raise ArithmeticError("cannot be made to fit")


class Changes(Case):
    def test_each_world_is_told_before_its_first_step(self):
        agent, program = self.start(program=Told)
        agent.hear("snapshot")
        program.make(1)
        self.barrier(agent, program, 2)
        agent.stop(0)
        agent.give(world(1, 3, round=2, fromStep=2, restore=False))
        self.finish(agent, program)
        self.assertEqual(program.changes, [(None, 1, 0, 0), (1, 2, 0, 2)])

    def test_steps_that_are_made_again(self):
        agent, program = self.start(program=Told)
        agent.take_over(agent.hear("snapshot"), 1)
        program.make(1)
        self.barrier(agent, program, 2)
        agent.say("save", step=2)
        path = agent.take_over(agent.hear("snapshot"), 1)
        agent.stop(0)
        agent.say("go")
        program.go_on()
        agent.hear("finished")
        agent.give(world(round=2, fromStep=2, snapshot=path))
        self.finish(agent, program)
        self.assertEqual(program.changes, [(None, 1, 0, 0), (1, 2, 4, 6)])

    def test_what_it_raises_is_the_programs_as_in_a_step(self):
        with mock.patch.object(Told, "bad", (1,)):
            agent, program = self.start(program=Told)
            self.assertIn("cannot be made to fit", agent.hear("fault")["message"])
            agent.give(world(round=2))
            agent.hear("snapshot")
            self.finish(agent, program)
            self.assertEqual(program.changes, [(None, 1, 0, 0), (None, 2, 0, 0)])
            agent, program = self.start(program=Told)
            agent.hear("fault")
            agent.say("raise")
            self.assertIsInstance(program.end(), ArithmeticError)

    def test_a_call_that_was_broken_off_is_made_with_the_whole_change(self):
        with mock.patch.object(Told, "bad", (2,)):
            agent, program = self.start(program=Told)
            path = agent.take_over(agent.hear("snapshot"), 1)
            program.make(1)
            self.barrier(agent, program, 2)
            agent.stop(0)
            agent.give(world(round=2, snapshot=path))
            agent.hear("fault")
            agent.give(world(round=3, snapshot=path))
            agent.hear("snapshot")
            self.finish(agent, program)
            self.assertEqual(program.changes, [(None, 1, 0, 0), (1, 2, 2, 2), (1, 3, 2, 2)])
            self.assertEqual([(change.world.round, change.lost) for change in program.heard], [(1, 0), (3, 2)])

    def test_alone_there_is_one_world(self):
        with mock.patch.dict(os.environ, clear=True):
            job, told = concertina.join({"counter": Counter()}), []
            self.assertEqual(job.on_change(told.append), told.append)

            @job.on_change
            def changed(change):
                job.on_change(told.append)  # is called from the next world on

            for step in job.steps(DATA, global_batch=4, epochs=1):
                with step:
                    self.assertEqual(told, [concertina.Change(None, step.world, 0)])
        self.assertTrue(callable(changed))
        with self.assertRaisesRegex(TypeError, "on_change.. got a int"):
            job.on_change(3)

        async def later(change):
            pass

        class Later:
            async def __call__(self, change):
                pass

        for call in later, Later():
            with self.assertRaisesRegex(TypeError, "nobody awaits it"):
                job.on_change(call)


class Abort(Case):
    def test_a_program_that_waits_for_its_peer_is_freed(self):
        server = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        before = self.enterContext(socket.create_connection(server.getsockname()))
        # The other end is of this process too: what is accepted once the world has begun is of the world.
        older = self.enterContext(server.accept()[0])
        outcome = []

        class Waiting(Program):
            def step(self, step):
                if step.world.round == 1:
                    with socket.create_connection(server.getsockname()) as peer:
                        peer.sendall(b"x")
                        outcome.append(peer.recv(1))
                        raise ConnectionError("the peer is gone")
                super().step(step)

        agent, program = self.start(program=Waiting)
        peer = self.enterContext(server.accept()[0])
        peer.recv(1)
        agent.hear("snapshot")
        agent.say("abort", round=1, reason="lost a peer")
        self.assertEqual(agent.hear("aborted"), {"type": "aborted", "step": 0, "clean": False})
        self.assertEqual(outcome, [b""])
        older.sendall(b"y")
        self.assertEqual(before.recv(1), b"y", "a connection from before the world is not touched")
        agent.give(world(round=2))
        agent.hear("snapshot")
        self.finish(agent, program)

    def test_what_goes_elsewhere_once_the_world_is_formed_is_the_programs_own(self):
        from concertina.connections import Connections

        member, store = (self.enterContext(socket.create_server((address, 0))) for address in ("127.0.0.1", "127.0.0.2"))
        connections = Connections()
        connections.begin()

        def connect(server):
            mine = self.enterContext(socket.create_connection(server.getsockname(), source_address=(server.getsockname()[0], 0)))
            return mine, self.enterContext(server.accept()[0])

        def ended(pair):
            pair[0].settimeout(0)
            try:
                return pair[0].recv(1) == b""
            except BlockingIOError:
                return False

        first = connect(member)
        connections.formed(1)
        later, elsewhere = connect(member), connect(store)
        connections.shut_down()
        self.assertEqual([ended(pair) for pair in (first, later, elsewhere)], [True, True, False])
        for formed in False, True:
            connections.begin()
            again = connect(store)
            if formed:
                connections.formed(3)
                again = connect(member)
            connections.shut_down()
            self.assertTrue(ended(again), "before it is formed all count, and where not all are connected")

    def test_children_hold_no_connection_of_the_world(self):
        server = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        from concertina.connections import Connections

        connections = Connections()
        connections.begin()
        peer = socket.create_connection(server.getsockname())
        accepted = self.enterContext(server.accept()[0])
        ready, wait = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"x")
            os.close(wait[1])
            os.read(wait[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        peer.close()
        accepted.settimeout(SECONDS)
        self.assertEqual(accepted.recv(1), b"", "the end of the connection, although the child lives")
        for fd in (*ready, *wait):
            os.close(fd)
        os.waitpid(child, 0)

    def test_what_a_broken_step_held_is_freed_without_the_collector(self):
        held = []

        class Wrapper:
            pass

        class Holding(Program):
            def step(self, step):
                wrapper = Wrapper()
                held.append(weakref.ref(wrapper))
                super().step(step)
                del wrapper

        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        agent, program = self.start(program=Holding)
        first = agent.take_over(agent.hear("snapshot"), 1)
        program.make(1)
        program.fail_at = 2
        program.proceed.release()
        agent.hear("fault")
        agent.give(world(round=2, fromStep=0, restore=True, writer=False, snapshot=first))
        program.make(1)
        self.assertIsNone(held[1]())
        self.finish(agent, program)


class Worlds(Case):
    """Programs that build something anew in each world."""

    class Building(Program):
        def train(self):
            self.built = []
            for present in self.job.worlds():
                self.built.append(present.round)
                super().train()
            return "result"

    def test_the_loop_over_steps_ends_with_its_world(self):
        agent, program = self.start(program=self.Building)
        agent.hear("snapshot")
        program.make(2)
        self.barrier(agent, program, 3)
        agent.stop(0)
        agent.give(world(0, 2, round=2, fromStep=3, restore=False))
        program.make(1)
        program.fail_at = 5
        program.proceed.release()
        agent.hear("fault")
        agent.give(world(round=3, fromStep=0, snapshot=""))
        self.assertIn("nothing is left", agent.hear("fault")["message"])
        agent.say("raise")
        self.assertIsInstance(program.end(), ValueError)
        self.assertEqual(program.built, [1, 2])
        self.assertEqual(program.steps, [1, 2, 3, 4])

    def test_to_the_end_and_back_again(self):
        agent, program = self.start(program=self.Building)
        path = agent.take_over(agent.hear("snapshot"), 1)
        program.go_on()
        agent.hear("finished")
        agent.give(world(round=2, fromStep=0, snapshot=path))
        while agent.messages.get(timeout=SECONDS)[1]["type"] != "finished":
            pass
        agent.say("end")
        self.assertEqual(program.end(), "result")
        self.assertEqual(program.built, [1, 2])
        self.assertEqual(program.steps, 2 * [1, 2, 3, 4, 5, 6])

    def test_a_world_in_which_nothing_is_done(self):
        class Lazy(Program):
            def train(self):
                for _ in self.job.worlds():
                    pass

        _, program = self.start(program=Lazy)
        self.assertRegex(str(program.end()), "loop over job.steps")


if __name__ == "__main__":
    unittest.main()
