import gc
import os
import random
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


def train(data=DATA, body=lambda step: None, state=(), job=concertina.Job, **options):
    """Trains a whole job, whose steps do what body says; returns the job."""
    joined = job(dict(state), seed=3)
    for step in joined.steps(data, **({"epochs": 2, "global_batch": 4} | options)):
        with step:
            body(step)
    return joined


class TheSocket(Case):
    def test_a_whole_training(self):
        agent = self.agent(world(1, 2, term=4, round=6, masterPort=7000, writer=False))
        worlds = []
        job = train(epochs=1, global_batch=10, body=lambda step: worlds.append(step.world))
        self.assertEqual(worlds, [concertina.World(4, 6, 0, 1, 2, 0, 1, 1, 2, "127.0.0.1", 7000)])
        self.assertEqual(job.world, worlds[0], "still known after the loop")
        want = [{"type": "hello", "protocol": 2, "localRank": 0, "shares": True}, {"type": "join"}]
        self.assertEqual(agent.received(), [*want, {"type": "finished", "step": 1, "clean": True}])

    def test_messages_that_come_in_pieces(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            agent = self.agent(listener=listener)
            agent.pieces = 7
            train()
            self.assertEqual(len(agent.received("finished")), 1)

    def test_a_process_takes_its_own_slot(self):
        agent = self.agent(world(0, 2), world(1, 2, localRank=1))
        with mock.patch.dict(os.environ, {"LOCAL_RANK": "1"}):
            train()
        self.assertEqual(agent.words(0)["done"], 0)
        self.assertEqual(agent.words(1)["done"], 6)

    def test_a_taken_slot_is_refused_in_words(self):
        self.agent()

        def body(step):
            with self.assertRaisesRegex(concertina.AgentError, "slot 0 is not free"):
                concertina.join({})

        train(max_steps=1, body=body)

    def test_the_master_port_goes_to_who_forms_the_world(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.agent(listener=listener)
            formed = []

            class Forming(concertina.Job):
                def _form(self, world, listener):
                    with listener:
                        formed.append((listener.getsockname(), os.get_inheritable(listener.fileno())))

            train(job=Forming)
            self.assertEqual(formed, [(listener.getsockname(), False)])

    def test_nothing_stays_open(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            agent = self.agent(listener=listener)
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(3):
                train()
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
            ("no page", {"raw_greeting": b'{"type":"welcome","protocol":2,"slot":0}\n'}, "sent none"),
            ("refuses", {"raw_greeting": b'{"type":"error","message":"too old"}\n'}, "too old"),
            ("of another version", {"greeting": page | {"protocol": 1}}, "protocol 1, this SDK 2: install the SDK of"),
            ("slot beyond the page", {"greeting": page | {"slot": 5}}, "slot 5"),
            ("slot before the page", {"greeting": page | {"slot": -1}}, "slot -1"),
            ("slot of no kind", {"greeting": page | {"slot": "0"}}, "slot '0'"),
        ]:
            with self.subTest(what), FakeAgent(world()) as agent:
                vars(agent).update(setup)
                with mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": agent.path}):
                    with self.assertRaisesRegex(concertina.AgentError, message):
                        concertina.join({})

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
                        train()

    def test_nobody_at_the_socket(self):
        with mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": "/nonexistent/agent.sock"}):
            with self.assertRaisesRegex(concertina.AgentError, "/nonexistent/agent.sock"):
                concertina.join({})

    def test_bad_local_rank(self):
        self.agent()
        with mock.patch.dict(os.environ, {"LOCAL_RANK": "zero"}):
            with self.assertRaisesRegex(ValueError, "LOCAL_RANK"):
                concertina.join({})


class TheGatePage(Case):
    def test_words_of_every_step(self):
        agent, seen = self.agent(), []
        train(body=lambda step: seen.append((step.number, agent.words())))
        samples = [0, 4, 8, 10, 14, 18]
        want = [
            (k, {"entered": k, "done": k - 1, "lastStep": 6, "phase": Phase.STEP, "samples": samples[k - 1]})
            for k in range(1, 7)
        ]
        self.assertEqual(seen, want)
        done = {"entered": 6, "done": 6, "lastStep": 6, "phase": Phase.FINISHED, "samples": 20}
        self.assertEqual(agent.words(), done)

    def test_a_step_is_done_when_its_block_ends(self):
        agent = self.agent()
        job = concertina.join({}, seed=3)
        for step in job.steps(DATA, global_batch=10, epochs=1):
            with step:
                self.assertEqual((agent.words()["done"], step.committed), (0, False))
            self.assertEqual((agent.words()["done"], step.committed), (1, True))

    def test_stamps_of_every_step(self):
        agent, seen = self.agent(), []
        before = time.monotonic_ns()
        train(body=lambda step: seen.append(agent.stamps()))
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

        class Forming(concertina.Job):
            def _form(self, world, listener):
                seen.append(("form", agent.words()["phase"]))

        def body(step):
            if step.evaluates:
                return seen.append(("eval", agent.words()["phase"]))
            for _ in step.micro_batches():
                seen.append(("piece", agent.words()["phase"]))

        train(Watched([1]), body, job=Forming, epochs=1, evaluate="epoch")
        want = [("form", Phase.FORMING), ("sample", Phase.DATA), ("piece", Phase.STEP), ("eval", Phase.EVAL)]
        self.assertEqual(seen, want)

    def test_a_step_that_fails_is_not_done(self):
        agent = self.agent()

        def body(step):
            if step.number == 3:
                raise ArithmeticError("bad step")

        with self.assertRaises(ArithmeticError):
            train(body=body)
        self.assertEqual((agent.words()["entered"], agent.words()["done"]), (3, 2))
        self.assertNotEqual(agent.words()["phase"], Phase.FINISHED)

    def test_pages_that_are_none(self):
        for what, offset, value, message in ("magic", 0, 1, "does not start"), ("layout", 8, 1, "layout 1"):
            with self.subTest(what), FakeAgent(world()) as agent:
                agent.page[offset : offset + 8] = value.to_bytes(8, sys.byteorder)
                with mock.patch.dict(os.environ, {"CONCERTINA_SOCKET": agent.path}):
                    with self.assertRaisesRegex(concertina.AgentError, message):
                        concertina.join({})


class Reports(Case):
    def test_at_most_one_a_second_and_the_newest_at_the_end(self):
        agent, clock = self.agent(), self.clock()

        def body(step):
            clock.return_value += 0.3
            step.report(loss=step.number)

        train(epochs=10, body=body)
        reports = agent.received("progress")
        losses = [report["metrics"]["loss"] for report in reports]
        self.assertEqual(losses, [1, 5, 9, 13, 17, 21, 25, 29, 30])
        self.assertEqual({report["totalSteps"] for report in reports}, {30})

    def test_what_came_last_is_sent_before_finished(self):
        agent = self.agent()
        self.clock()
        train(body=lambda step: step.report(accuracy=0.97) if step.evaluates else step.report(loss=0.5), evaluate="epoch")
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

        train(epochs=5, body=lambda step: step.report(loss=Expensive()))
        self.assertEqual(len(read), 2, "read in the first step and at the end only")

    def test_what_is_not_finite_is_left_out(self):
        agent = self.agent()
        train(body=lambda step: step.report(loss=float("nan"), peak=float("inf"), lr=0.1))
        self.assertEqual(agent.received("progress")[-1]["metrics"], {"lr": 0.1})

    def test_only_rank_0_reports(self):
        agent = self.agent(world(1, 2))
        train(body=lambda step: step.report(loss=1))
        self.assertEqual(agent.received("progress"), [])

    def test_a_step_that_is_not_done_reports_nothing(self):
        agent = self.agent()

        def body(step):
            step.report(loss=step.number)
            if step.number == 3:
                raise ArithmeticError("bad step")

        with self.assertRaises(ArithmeticError):
            train(body=body)
        self.assertEqual({report["metrics"]["loss"] for report in agent.received("progress")} - {1, 2}, set())

    def test_bad_names(self):
        self.agent()

        def body(step):
            for name in "", "a b", "x" * 33, "naïve":
                with self.assertRaisesRegex(ValueError, "metric"):
                    step.report(**{name: 1})
            step.report(**{f"m{i}": i for i in range(8)})
            with self.assertRaisesRegex(ValueError, "more than 8"):
                step.report(ninth=1)

        train(body=body)

    def test_an_agent_that_reads_nothing_holds_nobody_up(self):
        agent, clock = self.agent(), self.clock()
        agent.silent_after_join = True

        def body(step):
            clock.return_value += 2
            step.report(**{f"{'m' * 30}{i}": 1 / 3 for i in range(8)})
            if step.number == 6000:
                agent.hang_up()

        with mock.patch.object(agent_module, "_SEND_TIMEOUT", 0.05):
            train(epochs=2000, body=body)
        self.assertEqual(agent.words()["done"], 6000)

    def test_the_program_outlives_its_agent(self):
        agent, clock = self.agent(), self.clock()

        def body(step):
            clock.return_value += 2
            step.report(loss=1)
            if step.number == 10:
                agent.hang_up()

        train(epochs=50, body=body)
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

        def body(step):
            if step.number == 2:
                raise error

        with self.assertRaises(type(error)) as caught:
            train(body=body)
        self.assertIs(caught.exception, error)
        messages = agent.received()
        self.assertNotIn("finished", [message["type"] for message in messages])
        return [message for message in messages if message["type"] == "fault"]

    def test_the_traceback_is_reported(self):
        (fault,) = self.fault(ZeroDivisionError("over ünity"))
        self.assertEqual((fault["step"], fault["clean"]), (1, False))
        self.assertIn("test_job.py", fault["message"])
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
        seen = []

        def body(step):
            seen.append(list(step.micro_batches()))
            step.report(loss=1)

        with mock.patch.dict(os.environ, clear=True):
            job = train(body=body)
        self.assertEqual(job.total_steps, 6)
        epochs = seen[:3], seen[3:]
        for epoch in epochs:
            self.assertEqual(sorted(x for step in epoch for batch in step for x in batch), DATA)
        self.assertNotEqual(*epochs)

    def of_ranks(self, size, body, **options):
        """Trains as each of so many ranks, one after another; body takes the rank and the step."""
        for rank in range(size):
            env = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "a", "MASTER_PORT": "1"}
            with mock.patch.dict(os.environ, env, clear=True):
                train(body=lambda step: body(rank, step), **options)

    def test_ranks_of_the_environment(self):
        seen = []
        self.of_ranks(3, lambda _, step: seen.extend(x for b in step.micro_batches() for x in b), epochs=1, micro_batch=1)
        self.assertEqual(sorted(seen), DATA)

    def test_a_rank_without_a_share_has_nothing_to_do(self):
        got = {}
        self.of_ranks(4, lambda rank, step: got.update({rank: list(step.micro_batches())}), data=["only"], epochs=1)
        self.assertEqual(got, {0: [], 1: [], 2: [], 3: [["only"]]})

    def test_collate(self):
        seen = []
        with mock.patch.dict(os.environ, clear=True):
            train(body=lambda step: seen.extend(step.micro_batches()), epochs=1, global_batch=10, collate=sum)
        self.assertEqual(seen, [45])

    def drawn(self, size, **options):
        """What each rank draws in each item of the loop."""
        found = {}

        def body(rank, step):
            found[rank, step.number, step.evaluates] = random.random()

        self.of_ranks(size, body, evaluate="epoch", **options)
        return found

    def test_random_numbers_are_of_the_step_and_the_rank(self):
        first = self.drawn(2)
        self.assertEqual(len(set(first.values())), 2 * 8, "six steps and two evaluations of two ranks")
        random.seed(99)
        self.assertEqual(self.drawn(2), first)
        fewer = self.drawn(1)
        self.assertEqual(fewer, {key: value for key, value in first.items() if not key[0]})


class Plans(Case):
    """What the loop gives, without any change of the world."""

    def setUp(self):
        self.enterContext(mock.patch.dict(os.environ, clear=True))

    def items(self, **options):
        found = []
        train(body=lambda step: found.append((f"e{step.number}" if step.evaluates else step.number)), **options)
        return found

    def test_evaluations(self):
        for options, want in [
            ({"epochs": 2}, [1, 2, 3, 4, 5, 6]),
            ({"epochs": 2, "evaluate": "epoch"}, [1, 2, 3, "e3", 4, 5, 6, "e6"]),
            ({"epochs": 2, "evaluate": 4}, [1, 2, 3, 4, "e4", 5, 6, "e6"]),
            ({"epochs": 2, "evaluate": 6}, [1, 2, 3, 4, 5, 6, "e6"]),
            ({"epochs": None, "max_steps": 4, "evaluate": "epoch"}, [1, 2, 3, "e3", 4, "e4"]),
            ({"epochs": 1, "max_steps": 7}, [1, 2, 3]),
            ({"epochs": 2, "max_steps": 2}, [1, 2]),
        ]:
            with self.subTest(options):
                self.assertEqual(self.items(**options), want)

    def test_where_an_item_is(self):
        found = []
        train(body=lambda step: found.append((step.epoch, step.ends_epoch, step.samples)), evaluate="epoch", epochs=1)
        self.assertEqual(found, [(0, False, 4), (0, False, 4), (0, True, 2), (0, True, 0)])


class WrongUse(Case):
    def setUp(self):
        self.enterContext(mock.patch.dict(os.environ, clear=True))

    def test_options_out_of_range(self):
        for bad in (
            {"epochs": 0}, {"global_batch": 0}, {"micro_batch": 0}, {"micro_batch": -1}, {"max_steps": 0},
            {"evaluate": 0}, {"evaluate": "often"}, {"evaluate": True},
        ):  # fmt: skip
            with self.subTest(bad), self.assertRaisesRegex(ValueError, next(iter(bad))):
                train(**bad)
        with self.assertRaisesRegex(ValueError, "say when the training ends"):
            train(epochs=None)
        with self.assertRaisesRegex(ValueError, "seed"):
            concertina.join({}, seed=-1)

    def test_what_is_no_whole_number(self):
        for bad in {"epochs": 1.0}, {"global_batch": "4"}, {"global_batch": None}, {"micro_batch": 2.5}, {"max_steps": "9"}:
            ((name, value),) = bad.items()
            with self.subTest(bad), self.assertRaisesRegex(TypeError, f"{name} is {value!r}: it must be a whole number"):
                train(**bad)
        for seed in "1", 1.5:
            with self.assertRaisesRegex(TypeError, f"seed is {seed!r}: it must be a whole number"):
                concertina.join({}, seed=seed)

    def test_numbers_of_other_libraries_are_kept_as_pythons_own(self):
        class Three:
            def __index__(self):
                return 3

        job = concertina.join({}, seed=Three())
        job.steps([0], global_batch=Three(), micro_batch=Three(), max_steps=Three())
        position = job._position()
        self.assertEqual({type(value) for value in position.values()}, {int})
        self.assertEqual((position["seed"], position["batch"], position["total"]), (3, 3, 3))

    def test_data_that_cannot_be_read_by_number(self):
        with self.assertRaisesRegex(TypeError, "data is a list_iterator: it must have a length"):
            concertina.join({}).steps(iter([1]), global_batch=1, epochs=1)

    def test_options_of_another_join(self):
        for name in "backend", "total_steps":
            with self.assertRaisesRegex(TypeError, rf"join\(state=…, {name}=…\): with a state it takes seed only"):
                concertina.join({}, **{name: 1})

    def test_a_seed_without_a_state(self):
        with self.assertRaisesRegex(TypeError, "name what training changes"):
            concertina.join(seed=3)

    def test_states_that_are_none(self):
        for state, error in [([1], TypeError), ({"x": 1}, TypeError), ({"concertina.x": 1}, ValueError), ({1: 1}, ValueError)]:
            with self.subTest(state), self.assertRaisesRegex(error, "state"):
                concertina.join(state)

    def test_a_step_without_its_block(self):
        with self.assertRaisesRegex(RuntimeError, "with step:"):
            for _ in concertina.join({}).steps(DATA, global_batch=4, epochs=1):
                pass

    def test_a_step_that_is_over(self):
        job, first = concertina.join({}), []
        with self.assertRaisesRegex(RuntimeError, "is over"):
            for step in job.steps(DATA, global_batch=4, epochs=1):
                first.append(step)
                with first[0]:
                    pass

    def test_a_job_trains_once(self):
        job = train()
        with self.assertRaisesRegex(RuntimeError, "over"):
            job.steps(DATA, global_batch=4, epochs=1)

    def test_two_loops_at_once(self):
        job = concertina.join({})
        for step in job.steps(DATA, global_batch=10, epochs=1):
            with step, self.assertRaisesRegex(RuntimeError, "under way"):
                job.steps(DATA, global_batch=10, epochs=1)

    def test_micro_batches_once_and_not_in_an_evaluation(self):
        def body(step):
            if not step.evaluates:
                list(step.micro_batches())
            with self.assertRaisesRegex(RuntimeError, "evaluation" if step.evaluates else "once"):
                step.micro_batches()

        train(body=body, evaluate="epoch")

    def test_the_world_before_the_loop(self):
        with self.assertRaisesRegex(RuntimeError, "in the loop"):
            concertina.join({}).world

    def test_data_without_samples(self):
        with self.assertRaisesRegex(ValueError, "empty"):
            train(data=[])

    def test_values_that_are_none(self):
        values = concertina.join({}).values(best=0.0)
        with self.assertRaisesRegex(TypeError, "best"):
            values.best = object()
        for call in lambda: values.worst, lambda: setattr(values, "worst", 1):
            with self.assertRaisesRegex(AttributeError, "job.values"):
                call()


if __name__ == "__main__":
    unittest.main()
