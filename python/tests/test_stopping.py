"""The smallest form, with the agent's side played by the test."""

import contextlib
import subprocess
import sys
import threading
import types
import unittest
from unittest import mock

import concertina
from concertina import stopping
from concertina.gate import Phase
from tests.fakeagent import FakeAgent, world

SECONDS = 20


def joined(agent: FakeAgent, slot: int = 0, **options) -> stopping.Job:
    return concertina.join(env={"CONCERTINA_SOCKET": agent.path, "LOCAL_RANK": str(slot)}, **options)


class Asking:
    """should_stop in a thread of its own: it may not return for a while."""

    def __init__(self, case: unittest.TestCase, job: stopping.Job, step: int):
        self.answer: object = None
        self.thread = threading.Thread(target=self._ask, args=(job, step), daemon=True)
        case.addCleanup(self.thread.join, SECONDS)
        self.thread.start()

    def _ask(self, job: stopping.Job, step: int) -> None:
        try:
            self.answer = job.should_stop(step)
        except Exception as error:
            self.answer = error

    def result(self) -> object:
        self.thread.join(SECONDS)
        assert not self.thread.is_alive(), "should_stop does not return"
        return self.answer


class StoppingTest(unittest.TestCase):
    def agent(self, slots: int = 1) -> FakeAgent:
        agent = FakeAgent(*[None] * slots)
        agent.leaves = True
        self.enterContext(agent)
        return agent

    def join(self, agent: FakeAgent, slot: int = 0, **options) -> stopping.Job:
        job = joined(agent, slot, **options)
        self.addCleanup(job.close)
        self.assertTrue(agent.hear("hello", slot)["leaves"])
        return job

    def test_steps_are_told_and_nothing_stops_them(self):
        agent = self.agent()
        job = self.join(agent, total_steps=900)
        self.assertEqual(agent.words()["done"], 0)
        for step in 41, 42:
            self.assertFalse(job.should_stop(step))
        words = agent.words()
        self.assertEqual((words["entered"], words["done"], words["lastStep"]), (43, 42, 900))
        ended, begun = agent.stamps()
        self.assertTrue(0 < begun <= ended)
        agent.stop(44)
        self.assertFalse(job.should_stop(43))

    def test_nothing_stops_it_after_the_last_step(self):
        agent = self.agent()
        job = self.join(agent, total_steps=9)
        agent.stop(9)
        self.assertFalse(job.should_stop(8))
        self.assertIs(Asking(self, job, 9).result(), False)
        words = agent.words()
        # An agent passes over a last step that is less than what was entered.
        self.assertEqual((words["entered"], words["done"], words["lastStep"]), (9, 9, 9))
        # A program that goes on all the same can be stopped.
        agent.stop(10)
        asking = Asking(self, job, 10)
        self.assertEqual(agent.hear("parked")["step"], 10)
        agent.stop(0)
        agent.say("go")
        self.assertIs(asking.result(), False)

    def test_told_to_leave(self):
        agent = self.agent()
        job = self.join(agent)
        agent.stop(7)
        self.assertFalse(job.should_stop(6))
        asking = Asking(self, job, 7)
        self.assertEqual(agent.hear("parked")["step"], 7)
        agent.say("leave", step=7)
        self.assertIs(asking.result(), True)
        with self.assertRaises(SystemExit) as end:
            job.exit()
        self.assertEqual(end.exception.code, 0)
        self.assertEqual(agent.hear("left")["step"], 7)

    def test_the_change_is_called_off(self):
        agent = self.agent()
        job = self.join(agent)
        agent.stop(7)
        asking = Asking(self, job, 7)
        agent.hear("parked")
        agent.stop(0)
        agent.say("go")
        self.assertIs(asking.result(), False)
        with self.assertRaises(SystemExit):
            job.exit()
        self.assertEqual(agent.received("left"), [])

    def test_the_barrier_moves(self):
        agent = self.agent()
        job = self.join(agent)
        agent.stop(7)
        asking = Asking(self, job, 7)
        agent.hear("parked")
        agent.stop(8)
        agent.say("go")
        self.assertIs(asking.result(), False)
        asking = Asking(self, job, 8)
        self.assertEqual(agent.hear("parked")["step"], 8)
        agent.say("go")  # the barrier is where it was
        self.assertEqual(agent.hear("parked")["step"], 8)
        agent.say("leave", step=8)
        self.assertIs(asking.result(), True)

    def test_called_every_tenth_step(self):
        agent = self.agent()
        job = self.join(agent)
        self.assertFalse(job.should_stop(10))
        agent.stop(agent.words()["entered"])
        asking = Asking(self, job, 20)
        self.assertEqual(agent.hear("parked")["step"], 20)
        agent.stop(20)
        agent.say("leave", step=20)
        self.assertIs(asking.result(), True)

    def test_each_process_has_its_slot(self):
        agent = self.agent(2)
        jobs = [self.join(agent, slot) for slot in range(2)]
        for slot, job in enumerate(jobs):
            agent.stop(5, slot)
        asking = [Asking(self, job, 5) for job in jobs]
        said = {agent.messages.get(timeout=SECONDS)[0] for _ in jobs}
        self.assertEqual(said, {0, 1})
        for slot in range(2):
            agent.say("leave", slot, step=5)
        self.assertEqual([one.result() for one in asking], [True, True])

    def test_training_is_over(self):
        agent = self.agent()
        job = self.join(agent)
        self.assertFalse(job.should_stop(7))
        job.finished()
        self.assertEqual(agent.hear("finished")["step"], 7)
        self.assertEqual(agent.words()["phase"], Phase.FINISHED)
        agent.stop(7)
        self.assertFalse(job.should_stop(8))

    def test_steps_that_cannot_be(self):
        job = self.join(self.agent())
        self.assertFalse(job.should_stop(0))
        for step in 0, -1, 2**62:
            with self.assertRaisesRegex(ValueError, rf"should_stop\({step}\)"):
                job.should_stop(step)
        with self.assertRaisesRegex(TypeError, "step is '8': it must be a whole number"):
            job.should_stop("8")
        self.assertFalse(job.should_stop(1))

    def test_numbers_to_show(self):
        agent = self.agent()
        job = self.join(agent, total_steps=9)
        job.report(loss=0.5, worst=float("inf"))
        self.assertEqual(agent.messages.get(timeout=SECONDS)[1], {"type": "progress", "totalSteps": 9, "metrics": {"loss": 0.5}})
        with self.assertRaisesRegex(ValueError, "the loss"):
            job.report(**{"the loss": 1})
        with self.assertRaisesRegex(ValueError, "more than 8"):
            job.report(**{f"m{i}": i for i in range(8)})

    def test_what_is_no_number_is_named(self):
        agent = self.agent()
        job = self.join(agent)
        with self.assertRaises(TypeError) as caught:
            job.report(loss=[1, 2])
        self.assertEqual(caught.exception.__notes__, ["report(loss=…) got a list, which is not one number: give a scalar, such as loss.mean()"])

    def test_an_older_agent_stops_nothing(self):
        agent = self.agent()
        agent.leaves = False
        job = self.join(agent)
        agent.stop(7)
        self.assertFalse(job.should_stop(7))
        self.assertEqual(agent.words()["done"], 7)

    def test_the_agent_goes_away(self):
        agent = self.agent()
        job = self.join(agent)
        agent.stop(7)
        asking = Asking(self, job, 7)
        agent.hear("parked")
        agent.hang_up()
        self.assertIsInstance(asking.result(), concertina.AgentError)
        self.assertFalse(job.should_stop(8))  # nobody waits any more

    def test_the_agent_refuses(self):
        agent = self.agent()
        agent.raw_greeting = b'{"type":"error","message":"resize.strategy of this job is InPlace"}\n'
        with self.assertRaisesRegex(concertina.AgentError, "InPlace"):
            joined(agent)

    def test_the_loop_of_the_sdk_says_nothing_of_it(self):
        with FakeAgent(world()) as agent:
            agent.leaves = True
            with mock.patch.dict("os.environ", {"CONCERTINA_SOCKET": agent.path}):
                for step in concertina.join({}).steps([0], global_batch=4, epochs=1):
                    with step:
                        pass
            self.assertNotIn("leaves", agent.hear("hello"))


class AloneTest(unittest.TestCase):
    def test_nothing_stops_it(self):
        job = concertina.join(env={})
        self.assertFalse(job.should_stop(1))
        job.report(loss=1.0)
        job.finished()
        with self.assertRaises(SystemExit) as end:
            job.exit()
        self.assertEqual(end.exception.code, 0)

    def test_bad_input(self):
        with self.assertRaisesRegex(ValueError, "LOCAL_RANK is 'first'"):
            concertina.join(env={"CONCERTINA_SOCKET": "/nowhere", "LOCAL_RANK": "first"})
        with self.assertRaisesRegex(TypeError, "total_steps is '9'"):
            concertina.join(total_steps="9", env={})
        with self.assertRaisesRegex(ValueError, "total_steps is -1"):
            concertina.join(total_steps=-1, env={})
        with self.assertRaisesRegex(concertina.AgentError, "/nowhere"):
            concertina.join(env={"CONCERTINA_SOCKET": "/nowhere"})

    def test_the_process_ends_with_code_0(self):
        program = "import concertina\ntry:\n concertina.join(env={}).exit()\nfinally:\n print('cleaned up')"
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stdout), (0, "cleaned up\n"))


class MetByMPI(unittest.TestCase):
    """PyTorch's own MPI, without an mpirun."""

    def ask(self, size: str, **group: object) -> bool:
        made = {"is_available": lambda: True, "is_initialized": lambda: True, "get_backend": lambda: "mpi", "get_world_size": lambda: 1} | group
        torch = types.SimpleNamespace(distributed=types.SimpleNamespace(**made))
        with FakeAgent(None) as agent, mock.patch.dict(sys.modules, {"torch": torch}):
            env = {"CONCERTINA_SOCKET": agent.path, "LOCAL_RANK": "0", "WORLD_SIZE": size}
            with contextlib.closing(concertina.join(env=env)) as job:
                return job.should_stop(1)

    def test_ranks_that_train_alone_are_told_what_to_do(self):
        with self.assertRaisesRegex(RuntimeError, r"each of the 3 ranks trains alone.*InitProcessGroupKwargs\(backend=.*ddp_backend="):
            self.ask("3")

    def test_others_train(self):
        for size, group in (
            ("1", {}),
            ("3", {"get_world_size": lambda: 3}),
            ("3", {"get_backend": lambda: "gloo"}),  # of a part of the job, as the program wants it
            ("3", {"is_initialized": lambda: False}),
            ("3", {"is_available": lambda: False, "is_initialized": None}),
            ("", {}),
        ):
            with self.subTest(size=size, **group):
                self.assertFalse(self.ask(size, **group))
