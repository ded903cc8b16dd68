import gc
import os
import socket
import sys
import threading
import time
import unittest
from unittest import mock

import concertina
from concertina import agent as agent_module
from concertina.gate import Phase
from tests.fakeagent import FakeAgent, world

DATA = list(range(10))


class Case(unittest.TestCase):
    def agent(self, *worlds, **options) -> FakeAgent:
        """A fake agent that the programs of this test find in their environment."""
        started = self.enterContext(FakeAgent(*(worlds or [world()]), **options))
        self.enterContext(mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": started.path, "LOCAL_RANK": "0"}))
        return started

    def clock(self) -> mock.Mock:
        """The agent connection's clock, which stands still unless it is set."""
        clock = mock.Mock(return_value=100.0)
        self.enterContext(mock.patch.object(agent_module.time, "monotonic", clock))
        return clock


def make(**options) -> concertina.Run:
    return concertina.Run(**({"epochs": 2, "global_batch": 4, "seed": 3} | options))


def train_on(run, data=DATA, body=lambda step: None):
    def train(world):
        for _ in run.epochs():
            for step in run.steps(data):
                body(step)

    return train


class TheSocket(Case):
    def test_a_whole_run(self):
        agent = self.agent(world(1, 2, term=4, round=6, masterPort=7000))
        run, worlds = make(), []
        self.assertEqual(run(lambda w: worlds.append(w) or "result"), "result")
        self.assertEqual(worlds, [concertina.World(4, 6, 0, 1, 2, 0, 1, 1, 2, "127.0.0.1", 7000)])
        want = [{"type": "hello", "protocol": 2, "localRank": 0}, {"type": "join"}]
        self.assertEqual(agent.received(), [*want, {"type": "finished", "step": 0, "clean": True}])

    def test_messages_that_come_in_pieces(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            agent = self.agent(listener=listener)
            agent.pieces = 7
            make()(lambda w: None)
            self.assertEqual(len(agent.received("finished")), 1)

    def test_a_process_takes_its_own_slot(self):
        agent = self.agent(world(0, 2), world(1, 2, localRank=1))
        with mock.patch.dict(os.environ, {"LOCAL_RANK": "1"}):
            run = make()
            run(train_on(run))
        self.assertEqual(agent.words(0)["done"], 0)
        self.assertEqual(agent.words(1)["done"], 6)

    def test_a_taken_slot_is_refused_in_words(self):
        self.agent()

        def train(_):
            with self.assertRaisesRegex(concertina.AgentError, "slot 0 is not free"):
                make()(lambda w: None)

        make()(train)

    def test_the_master_port_goes_to_who_forms_the_world(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.agent(listener=listener)
            formed = []

            class Forming(concertina.Run):
                def _form(self, world, listener):
                    with listener:
                        formed.append((listener.getsockname(), os.get_inheritable(listener.fileno())))

            Forming(epochs=1, global_batch=1)(lambda w: None)
            self.assertEqual(formed, [(listener.getsockname(), False)])

    def test_nothing_stays_open(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            agent = self.agent(listener=listener)
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(3):
                make()(lambda w: None)
                agent.received()
            gc.collect()
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_bad_agents(self):
        page = {"slot": 0, "slots": 1, "fds": 1}
        for what, setup, message in [
            ("says nothing", {"raw_greeting": b""}, "closed the connection"),
            ("no JSON", {"raw_greeting": b"hello\n"}, "greet the agent"),
            ("no object", {"raw_greeting": b"[1]\n"}, "no object"),
            ("too long", {"raw_greeting": b"x" * 70000}, "64 KiB"),
            ("no page", {"raw_greeting": b'{"type":"welcome","slot":0}\n'}, "sent none"),
            ("refuses", {"raw_greeting": b'{"type":"error","message":"too old"}\n'}, "too old"),
            ("slot beyond the page", {"greeting": page | {"slot": 5}}, "slot 5"),
            ("slot before the page", {"greeting": page | {"slot": -1}}, "slot -1"),
            ("slot of no kind", {"greeting": page | {"slot": "0"}}, "slot '0'"),
        ]:
            with self.subTest(what), FakeAgent(world()) as agent:
                vars(agent).update(setup)
                with mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": agent.path}):
                    with self.assertRaisesRegex(concertina.AgentError, message):
                        make()(lambda w: None)

    def test_bad_worlds(self):
        for bad, error, message in [
            (world(rank=1, size=1), concertina.AgentError, "rank 1 of 1"),
            ({"type": "world"}, concertina.AgentError, "term = None"),
            ({"type": "error", "message": "job is deleted"}, concertina.AgentError, "job is deleted"),
            (world(fromStep=7), concertina.AgentError, "after step 7, and no snapshot"),
            (world(fromStep=7, restore=False), RuntimeError, "after step 7, this process has done 0"),
            (world(writer="yes"), concertina.AgentError, "writer = 'yes'"),
        ]:
            with self.subTest(bad), FakeAgent(bad) as agent:
                with mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": agent.path}):
                    with self.assertRaisesRegex(error, message):
                        make()(lambda w: None)

    def test_nobody_at_the_socket(self):
        with mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": "/nonexistent/agent.sock"}):
            with self.assertRaisesRegex(concertina.AgentError, "/nonexistent/agent.sock"):
                make()(lambda w: None)

    def test_bad_local_rank(self):
        self.agent()
        with mock.patch.dict(os.environ, {"LOCAL_RANK": "zero"}):
            with self.assertRaisesRegex(ValueError, "LOCAL_RANK"):
                make()(lambda w: None)


class TheGatePage(Case):
    def test_words_of_every_step(self):
        agent, seen = self.agent(), []
        run = make()
        run(train_on(run, body=lambda step: seen.append((step.number, agent.words()))))
        samples = [0, 4, 8, 10, 14, 18]
        want = [
            (k, {"entered": k, "done": k - 1, "lastStep": 6, "phase": Phase.STEP, "samples": samples[k - 1]})
            for k in range(1, 7)
        ]
        self.assertEqual(seen, want)
        done = {"entered": 6, "done": 6, "lastStep": 6, "phase": Phase.FINISHED, "samples": 20}
        self.assertEqual(agent.words(), done)

    def test_stamps_of_every_step(self):
        agent, seen = self.agent(), []
        run, before = make(), time.monotonic_ns()
        run(train_on(run, body=lambda step: seen.append(agent.stamps())))
        begun = {at for _, at in seen}
        self.assertEqual(len(begun), 1, "only the first step of a world is stamped when it begins")
        ended = [at for at, _ in seen] + [agent.stamps()[0]]
        self.assertEqual(ended[0], 0)
        self.assertEqual(ended, sorted(set(ended)))
        self.assertLess(before, min(begun))
        self.assertLess(min(begun), ended[1])
        self.assertLess(ended[-1], time.monotonic_ns())

    def test_phases(self):
        agent, seen = self.agent(), []

        class Watched(list):
            def __getitem__(self, number):
                seen.append(("sample", agent.words()["phase"]))
                return super().__getitem__(number)

        class Forming(concertina.Run):
            def _form(self, world, listener):
                seen.append(("form", agent.words()["phase"]))

        run = Forming(epochs=1, global_batch=1)

        def train(_):
            for _ in run.epochs():
                for step in run.steps(Watched([1])):
                    for _ in step.micro_batches():
                        seen.append(("piece", agent.words()["phase"]))
            with run.evaluating():
                seen.append(("eval", agent.words()["phase"]))

        run(train)
        want = [("form", Phase.FORMING), ("sample", Phase.DATA), ("piece", Phase.STEP), ("eval", Phase.EVAL)]
        self.assertEqual(seen, want)

    def test_the_evaluation_is_over_whatever_ends_it(self):
        agent = self.agent()
        run = make(epochs=1)

        def train(_):
            for _ in run.epochs():
                for _ in run.steps(DATA):
                    pass
            with run.evaluating():
                raise ValueError("the test data are not there")

        with self.assertRaises(ValueError):
            run(train)
        self.assertEqual(agent.words()["phase"], Phase.STEP)

    def test_a_step_that_fails_is_not_done(self):
        agent = self.agent()
        run = make()

        def body(step):
            if step.number == 3:
                raise ArithmeticError("bad step")

        with self.assertRaises(ArithmeticError):
            run(train_on(run, body=body))
        self.assertEqual((agent.words()["entered"], agent.words()["done"]), (3, 2))
        self.assertNotEqual(agent.words()["phase"], Phase.FINISHED)

    def test_pages_that_are_none(self):
        for what, offset, value, message in ("magic", 0, 1, "does not start"), ("layout", 8, 1, "layout 1"):
            with self.subTest(what), FakeAgent(world()) as agent:
                agent.page[offset : offset + 8] = value.to_bytes(8, sys.byteorder)
                with mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": agent.path}):
                    with self.assertRaisesRegex(concertina.AgentError, message):
                        make()(lambda w: None)


class Reports(Case):
    def test_at_most_one_a_second_and_the_newest_at_the_end(self):
        agent, clock = self.agent(), self.clock()
        run = make(epochs=10)

        def body(step):
            clock.return_value += 0.3
            step.report(loss=step.number)

        run(train_on(run, body=body))
        reports = agent.received("progress")
        losses = [report["metrics"]["loss"] for report in reports]
        self.assertEqual(losses, [1, 5, 9, 13, 17, 21, 25, 29, 30])
        self.assertEqual({report["totalSteps"] for report in reports}, {30})

    def test_what_came_last_is_sent_before_finished(self):
        agent = self.agent()
        self.clock()
        run = make()

        def train(world):
            train_on(run, body=lambda step: step.report(loss=0.5))(world)
            run.report(accuracy=0.97)

        run(train)
        last = agent.received()[-2:]
        self.assertEqual(last[0]["metrics"], {"loss": 0.5, "accuracy": 0.97})
        self.assertEqual(last[1]["type"], "finished")

    def test_numbers_are_read_only_when_they_are_sent(self):
        self.agent()
        clock = self.clock()
        read = []

        class Expensive:
            def __float__(self):
                read.append(clock.return_value)
                return 1.0

        run = make(epochs=5)
        run(train_on(run, body=lambda step: step.report(loss=Expensive())))
        self.assertEqual(len(read), 2, "read in the first step and at the end only")

    def test_what_is_not_finite_is_left_out(self):
        agent = self.agent()
        run = make()
        run(lambda w: run.report(loss=float("nan"), peak=float("inf"), lr=0.1))
        self.assertEqual(agent.received("progress")[-1]["metrics"], {"lr": 0.1})

    def test_only_rank_0_reports(self):
        agent = self.agent(world(1, 2))
        run = make()
        run(lambda w: run.report(loss=1))
        self.assertEqual(agent.received("progress"), [])

    def test_bad_names(self):
        self.agent()
        run = make()

        def train(_):
            for name in "", "a b", "x" * 33, "naïve":
                with self.assertRaisesRegex(ValueError, "metric"):
                    run.report(**{name: 1})
            run.report(**{f"m{i}": i for i in range(8)})
            with self.assertRaisesRegex(ValueError, "more than 8"):
                run.report(ninth=1)

        run(train)

    def test_an_agent_that_reads_nothing_holds_nobody_up(self):
        agent, clock = self.agent(), self.clock()
        agent.silent_after_join = True
        run = make(epochs=2000)

        def body(step):
            clock.return_value += 2
            step.report(**{f"{'m' * 30}{i}": 1 / 3 for i in range(8)})
            if step.number == run.total_steps:
                agent.hang_up()

        with mock.patch.object(agent_module, "_SEND_TIMEOUT", 0.05):
            run(train_on(run, body=body))
        self.assertEqual(agent.words()["done"], 6000)

    def test_the_program_outlives_its_agent(self):
        agent, clock = self.agent(), self.clock()
        run = make(epochs=50)

        def body(step):
            clock.return_value += 2
            step.report(loss=1)
            if step.number == 10:
                agent.hang_up()

        run(train_on(run, body=body))
        self.assertEqual(agent.words()["done"], 150)


    def test_a_reader_that_fails_leaves_nobody_waiting(self):
        agent = self.agent(None)
        connection = agent_module.Agent(agent.path, 0)
        self.addCleanup(connection.close)
        with (
            mock.patch.object(connection, "_parse", side_effect=RuntimeError("out of luck")),
            mock.patch.object(threading, "excepthook"),
        ):
            agent.say("abort", round=1, reason="any")
            with self.assertRaisesRegex(concertina.AgentError, "out of luck"):
                connection.wait()

    def test_an_interrupt_that_fails_is_tried_again(self):
        agent = self.agent(None)
        connection = agent_module.Agent(agent.path, 0)
        self.addCleanup(connection.close)
        often = threading.Event()
        interrupt = mock.Mock(side_effect=[RuntimeError("busy"), RuntimeError("busy"), None])
        connection.begin(1, lambda: (interrupt(), often.set()))
        agent.say("abort", round=1, reason="any")
        self.assertTrue(often.wait(30))
        connection.end()


class Faults(Case):
    def fault(self, error):
        agent = self.agent()
        run = make()

        def body(step):
            if step.number == 2:
                raise error

        with self.assertRaises(type(error)) as caught:
            run(train_on(run, body=body))
        self.assertIs(caught.exception, error)
        messages = agent.received()
        self.assertNotIn("finished", [message["type"] for message in messages])
        return [message for message in messages if message["type"] == "fault"]

    def test_the_traceback_is_reported(self):
        (fault,) = self.fault(ZeroDivisionError("over ünity"))
        self.assertEqual((fault["step"], fault["clean"]), (1, False))
        self.assertIn("test_run.py", fault["message"])
        self.assertTrue(fault["message"].rstrip().endswith("ZeroDivisionError: over ünity"))

    def test_of_a_long_one_the_end(self):
        (fault,) = self.fault(ValueError("ü" * 20000 + "the end"))
        self.assertTrue(fault["message"].endswith("the end\n"))
        self.assertLessEqual(len(fault["message"].encode()), 16 * 1024)

    def test_exit_with_a_code(self):
        (fault,) = self.fault(SystemExit(3))
        self.assertEqual(fault["message"], "SystemExit: 3")

    def test_exit_without_one(self):
        self.assertEqual(self.fault(SystemExit()), [])

    def test_an_interrupt_is_no_fault(self):
        self.assertEqual(self.fault(KeyboardInterrupt()), [])


class Elsewhere(Case):
    def test_without_an_agent(self):
        run, seen = make(), []

        def body(step):
            seen.append([batch for batch, _ in step.micro_batches()])
            step.report(loss=1)

        with mock.patch.dict(os.environ, clear=True):
            run(train_on(run, body=body))
        self.assertEqual(run.total_steps, 6)
        epochs = seen[:3], seen[3:]
        for epoch in epochs:
            self.assertEqual(sorted(x for step in epoch for batch in step for x in batch), DATA)
        self.assertNotEqual(*epochs)

    def test_ranks_of_the_environment(self):
        seen = []
        for rank in range(3):
            env = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
            run = make(epochs=1, micro_batch=1)

            def body(step):
                seen.extend((step.number, x) for batch, weight in step.micro_batches() if weight for x in batch)

            with mock.patch.dict(os.environ, env, clear=True):
                run(train_on(run, body=body))
        self.assertEqual(sorted(x for _, x in seen), DATA)

    def test_a_rank_without_a_share_runs_the_first_sample_for_nothing(self):
        got = {}
        for rank in range(4):
            env = {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
            run = make(epochs=1)
            with mock.patch.dict(os.environ, env, clear=True):
                run(train_on(run, data=["only"], body=lambda s: got.update({rank: list(s.micro_batches())})))
        self.assertEqual(got, {0: [(["only"], 0)], 1: [(["only"], 0)], 2: [(["only"], 0)], 3: [(["only"], 4)]})

    def test_collate(self):
        run, seen = make(epochs=1, global_batch=10), []

        def train(_):
            for _ in run.epochs():
                for step in run.steps(DATA, collate=sum):
                    seen.extend(step.micro_batches())

        with mock.patch.dict(os.environ, clear=True):
            run(train)
        self.assertEqual(seen, [(45, 1.0)])


class WrongUse(Case):
    def setUp(self):
        self.enterContext(mock.patch.dict(os.environ, clear=True))

    def test_options_out_of_range(self):
        for bad in {"epochs": 0}, {"global_batch": 0}, {"micro_batch": 0}, {"micro_batch": -1}, {"seed": -1}:
            with self.assertRaisesRegex(ValueError, next(iter(bad))):
                make(**bad)

    def test_outside_the_training_function(self):
        run = make()
        for call in lambda: next(run.epochs()), lambda: next(run.steps(DATA)), lambda: run.report(loss=1):
            with self.assertRaisesRegex(RuntimeError, "training function"):
                call()

    def test_steps_outside_an_epoch(self):
        run = make()
        with self.assertRaisesRegex(RuntimeError, "epochs"):
            run(lambda w: next(run.steps(DATA)))

    def test_a_run_trains_once(self):
        run = make()
        run(lambda w: None)
        with self.assertRaisesRegex(RuntimeError, "already"):
            run(lambda w: None)

    def test_data_without_samples(self):
        run = make()
        with self.assertRaisesRegex(ValueError, "empty"):
            run(train_on(run, data=[]))

    def test_data_that_changes_its_length(self):
        run = make()

        def train(_):
            for epoch in run.epochs():
                for _ in run.steps(range(10 + 10 * epoch)):
                    pass

        with self.assertRaisesRegex(ValueError, "one length"):
            run(train)


if __name__ == "__main__":
    unittest.main()
