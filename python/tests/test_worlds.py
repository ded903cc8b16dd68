"""A program on its way from world to world, with the agent's side played by the test."""

import gc
import os
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

    def __init__(self, case, state=True, **options):
        self.counter = Counter()
        states = {"counter": self.counter} if state else None
        self.run = concertina.Run(**({"epochs": 2, "global_batch": 4, "seed": 3, "state": states} | options))
        self.worlds, self.steps, self.evaluations = [], [], []
        self.entered, self.proceed = threading.Semaphore(0), threading.Semaphore(0)
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

    def go_on(self):
        """Lets it run freely."""
        self.proceed.release(1000)

    def end(self):
        """Waits for its end; what it raised or returned."""
        self.thread.join(SECONDS)
        assert not self.thread.is_alive(), "the program has not ended"
        return self.outcome

    def train(self, world):
        self.worlds.append(world)
        for epoch in self.run.epochs():
            for step in self.run.steps(DATA):
                self.step(step)
            with self.run.evaluating():
                self.evaluate(epoch)
        return "result"

    def step(self, step):
        assert self.proceed.acquire(timeout=SECONDS)
        if step.number == self.fail_at:
            self.fail_at = 0
            self.counter.add([1000])  # half a step
            raise ArithmeticError(f"bad step {step.number}")
        for batch, weight in step.micro_batches():
            self.counter.add(batch)
        self.steps.append(step.number)
        self.entered.release()

    def evaluate(self, epoch):
        self.evaluations.append(epoch)

    def _main(self):
        try:
            self.outcome = self.run(self.train)
        except BaseException as error:
            self.outcome = error

    def _abandon(self):
        self.go_on()
        self.thread.join(SECONDS)


class Case(unittest.TestCase):
    def start(self, *worlds, answers=(), state=True, program=Program, listener=None, setup=None, **options):
        agent = self.enterContext(FakeAgent(*(worlds or [world()]), listener=listener))
        agent.answers = dict(answers)
        vars(agent).update(setup or {})
        self.enterContext(mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": agent.path, "LOCAL_RANK": "0"}))
        os.environ.pop("RANK", None)
        started = program(self, state=state, **options)
        self.assertEqual(agent.hear("hello")["protocol"], 2)
        agent.hear("join")
        return agent, started

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
        random.seed(5)
        counter = Counter()
        run = concertina.Run(epochs=2, global_batch=4, seed=3)

        def train(_):
            for _ in run.epochs():
                for step in run.steps(DATA):
                    for batch, _ in step.micro_batches():
                        counter.add(batch)

        with mock.patch.dict(os.environ, clear=True):
            run(train)
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

    def test_poll_lets_a_change_through_and_evaluation_starts_over(self):
        class Polling(Program):
            def evaluate(self, epoch):
                super().evaluate(epoch)
                if len(self.evaluations) == 1:
                    agent.stop(3)
                    self.run.poll()

        agent, program = self.start(program=Polling)
        agent.hear("snapshot")
        program.make(3)
        self.assertEqual(agent.hear("parked")["step"], 3)
        self.assertEqual(agent.words()["phase"], Phase.EVAL)
        agent.stop(0)
        agent.give(world(0, 2, round=2, fromStep=3, restore=False))
        self.finish(agent, program)
        self.assertEqual(program.evaluations, [0, 0, 1])
        self.assertEqual(program.steps, [1, 2, 3, 4, 5, 6])

    def test_all_ranks_go_on_at_the_same_place_after_the_last_step_of_an_epoch(self):
        class Later(Program):
            def evaluate(self, epoch):
                super().evaluate(epoch)
                if len(self.evaluations) == 1:
                    agent.stop(3)  # Seen at the gate of step 4, past the evaluation of epoch 0.

        agent, program = self.start(program=Later)
        agent.hear("snapshot")
        program.make(3)
        self.assertEqual(agent.hear("parked")["step"], 3)
        agent.stop(0)
        agent.give(world(0, 2, round=2, fromStep=3, restore=False))
        self.finish(agent, program)
        self.assertEqual(program.evaluations, [0, 0, 1])

    def scheduled(self, leave):
        """Trains two epochs, after each of which a number of the state goes up; leave brings the program into its
        second world after that of the first one. The number in the end, and how often each epoch was ended."""

        class Scheduled(Program):
            def evaluate(self, epoch):
                super().evaluate(epoch)
                self.counter.values = [self.counter.values[0] + 1_000_000, 0.0]
                if len(self.evaluations) == 1:
                    agent.stop(3)

        agent, program = self.start(program=Scheduled)
        first = agent.hear("snapshot")
        agent.take_over(first, 1)
        program.make(3)
        self.assertEqual(agent.hear("parked")["step"], 3)
        leave(agent, program)
        self.finish(agent, program)
        return program.counter.values[0] // 1_000_000, program.evaluations

    def test_what_follows_an_epoch_changes_the_state_once_in_a_planned_change(self):
        def leave(agent, program):
            agent.stop(0)
            agent.give(world(0, 2, round=2, fromStep=3, restore=False))

        self.assertEqual(self.scheduled(leave), (2, [0, 0, 1]))

    def test_what_follows_an_epoch_is_not_in_a_snapshot_of_its_last_step(self):
        def leave(agent, program):
            agent.say("save", step=3)
            path = agent.take_over(agent.hear("snapshot"), 1)
            self.assertLess(read(path, Codec())[1]["counter"]["values"][0], 1_000_000)
            agent.stop(0)
            agent.give(world(0, 2, round=2, fromStep=3, restore=True, snapshot=path))

        self.assertEqual(self.scheduled(leave), (2, [0, 0, 1]))

    def test_what_follows_an_epoch_stays_when_the_world_goes_on(self):
        def leave(agent, program):
            agent.say("save", step=3)
            agent.take_over(agent.hear("snapshot"), 1)
            agent.stop(0)
            agent.say("go")

        self.assertEqual(self.scheduled(leave), (2, [0, 1]))

    def test_what_follows_an_epoch_changes_the_state_once_when_the_next_step_is_broken_off(self):
        def leave(agent, program):
            agent.say("abort", round=1, reason="a rank is lost")
            self.assertTrue(agent.hear("aborted")["clean"])
            agent.stop(0)
            agent.give(world(0, 1, round=2, fromStep=3, restore=False))

        self.assertEqual(self.scheduled(leave), (2, [0, 0, 1]))

    def test_an_agent_that_goes_away_ends_the_wait(self):
        agent, program = self.start()
        agent.hear("snapshot")
        self.barrier_after_one(agent, program)
        agent.hang_up()
        self.assertIsInstance(program.end(), concertina.AgentError)


class Snapshots(Case):
    def test_who_joins_loads_what_the_barrier_saved(self):
        random.seed(5)
        agent, program = self.start()
        agent.hear("snapshot")
        program.make(3)
        self.barrier(agent, program, 4)
        agent.say("save", step=4)
        path = agent.take_over(agent.hear("snapshot"), 1)
        position, _ = read(path, Codec())
        self.assertEqual(
            position, {"step": 4, "samples": 14, "epoch": 1, "cursor": 4, "total": 6, "seed": 3, "batch": 4}
        )  # fmt: skip
        agent.say("abort", round=1, reason="enough")
        self.assertEqual(agent.hear("aborted"), {"type": "aborted", "step": 4, "clean": True})

        random.seed(99)
        newcomer_agent, newcomer = self.start(None)
        newcomer_agent.give(world(1, 2, round=2, fromStep=4, restore=True, snapshot=path, writer=False))
        newcomer.make(1)
        self.assertEqual(
            newcomer_agent.words(), {"entered": 6, "done": 5, "lastStep": 6, "phase": Phase.STEP, "samples": 18}
        )
        self.finish(newcomer_agent, newcomer)
        self.assertEqual(newcomer.steps, [5, 6])
        self.assertEqual(newcomer.evaluations, [1])
        agent.hang_up()

    def test_ranks_that_load_one_snapshot_draw_different_numbers(self):
        agent, program = self.start()
        agent.hear("snapshot")
        program.make(1)
        self.barrier(agent, program, 2)
        agent.say("save", step=2)
        path = agent.take_over(agent.hear("snapshot"), 1)

        def drawn(number, rank, size):
            agent.give(world(rank, size, round=number, fromStep=2, restore=True, snapshot=path, writer=False))
            self.assertEqual(agent.hear("parked")["step"], 2)  # The stop of the first world is still there.
            return random.getstate()

        def away():
            agent.say("abort", round=number, reason="next")
            agent.hear("aborted")

        found = {}
        for number, (rank, size) in enumerate([(0, 2), (1, 2), (0, 2), (0, 1)], 2):
            program.proceed.release()
            found[number] = drawn(number, rank, size)
            away()
        self.assertEqual(len(set(found.values())), 4, "of each rank, and of each world")
        self.assertEqual(found[5], self.kept(path), "who is alone goes on with what was kept")
        program.go_on()
        agent.stop(0)
        agent.give(world(0, 1, round=6, fromStep=2, restore=True, snapshot=path, writer=False))
        self.finish(agent, program)

    def kept(self, path):
        return read(path, Codec())[1]["concertina.random"]["python"]

    def test_a_run_that_goes_back_ends_like_one_that_was_never_disturbed(self):
        random.seed(5)
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
        random.seed(5)
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

    def test_a_program_without_a_state(self):
        agent, program = self.start(state=False)
        self.barrier_and_save(agent, program, "Run\\(state")

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
        agent, program = self.start(epochs=10, setup={"interval": interval})
        taken = [agent.hear("snapshot")["step"]]
        for _ in range(29):
            clock.return_value += int(step_takes * 1e9)
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

    def wait_for_abort(self, program):
        program.run._session.agent._arrived.acquire()
        program.run._session.agent._arrived.wait_for(lambda: program.run._session.aborted, SECONDS)
        program.run._session.agent._arrived.release()

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


class Abort(Case):
    def test_a_program_that_waits_for_its_peer_is_freed(self):
        server = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        before = self.enterContext(socket.create_connection(server.getsockname()))
        # The other end is of this process too: what is accepted once the world has begun is of the world.
        older = self.enterContext(server.accept()[0])
        outcome = []

        class Waiting(Program):
            def train(self, world):
                if world.round == 1:
                    with socket.create_connection(server.getsockname()) as peer:
                        peer.sendall(b"x")
                        outcome.append(peer.recv(1))
                        raise ConnectionError("the peer is gone")
                return super().train(world)

        agent, program = self.start(program=Waiting)
        peer = self.enterContext(server.accept()[0])
        peer.recv(1)
        agent.say("abort", round=1, reason="lost a peer")
        self.assertEqual(agent.hear("aborted"), {"type": "aborted", "step": 0, "clean": True})
        self.assertEqual(outcome, [b""])
        older.sendall(b"y")
        self.assertEqual(before.recv(1), b"y", "a connection from before the world is not touched")
        agent.give(world(round=2))
        agent.hear("snapshot")
        self.finish(agent, program)

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

    def test_what_a_world_held_is_freed_without_the_collector(self):
        held = []

        class Wrapper:
            pass

        class Holding(Program):
            def train(self, world):
                wrapper = Wrapper()
                held.append(weakref.ref(wrapper))
                result = super().train(world)
                del wrapper
                return result

        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        agent, program = self.start(program=Holding)
        agent.hear("snapshot")
        program.make(1)
        self.barrier(agent, program, 2)
        agent.stop(0)
        agent.give(world(round=2, fromStep=2, restore=False))
        program.make(1)
        self.assertIsNone(held[0](), "after a planned change")
        program.fail_at = 4
        program.proceed.release()
        agent.hear("fault")
        agent.give(world(round=3, fromStep=0, restore=True, writer=False, snapshot=self.first(agent)))
        program.make(1)
        self.assertIsNone(held[1](), "after a fault")
        self.finish(agent, program)

    def first(self, agent):
        (name,) = [name for name in os.listdir(agent.snapshots) if name.startswith("0.")]
        return os.path.join(agent.snapshots, name)


if __name__ == "__main__":
    unittest.main()
