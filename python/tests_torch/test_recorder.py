"""What the log has of the exchanges of a program that hangs, with stand-ins for NCCL and its recorder."""

import json
import os
import threading
import unittest
from unittest import mock

import torch

import concertina.torch as elastic
from concertina import recorder, stacks
from tests.fakeagent import FakeAgent, world

LIBRARY = torch._C._distributed_c10d
NCCL, OTHERS = "_dump_nccl_trace_json", "_dump_fr_trace_json"


def entry(number, state="completed", **more):
    return {"pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": number, "profiling_name": "nccl:all_reduce", "state": state} | more


def recorded(*entries):
    return mock.Mock(return_value=json.dumps({"version": "2.10", "pg_status": {}, "entries": entries}).encode())


class Recorder(unittest.TestCase):
    def library(self, **functions):
        self.enterContext(mock.patch.multiple(LIBRARY, create=True, **{NCCL: None, OTHERS: None} | functions))

    def lines(self):
        *lines, last = recorder.describe().splitlines()
        return [json.loads(line)["collective_seq_id"] for line in lines], last

    def test_those_that_have_not_ended_are_last_whatever_began_after_them(self):
        self.library(**{NCCL: recorded(entry(1), entry(2, "started", frames=["deep"]), entry(3), entry(4, "scheduled"))})
        lines, last = self.lines()
        self.assertEqual(lines, [1, 3, 2, 4])
        self.assertIn("which has 4; 2 of them have not ended", last)
        self.assertNotIn("deep", recorder.describe())

    def test_few_of_many_are_shown(self):
        self.library(**{NCCL: recorded(*(entry(number, "started" if number % 2 else "completed") for number in range(2000)))})
        lines, _ = self.lines()
        self.assertEqual((len(lines), lines[-1], max(lines)), (2 * recorder._SHOWN, 1999, 1999))

    def test_backends_without_a_recorder_of_their_own_have_one_in_common(self):
        for nccl in recorded(), mock.Mock(side_effect=RuntimeError("CUDA error")), mock.Mock(return_value=b"{}"), None:
            with self.subTest(nccl):
                self.library(**{NCCL: nccl, OTHERS: recorded(entry(7, "started"))})
                self.assertEqual(self.lines()[0], [7])

    def test_nothing_is_said_where_nothing_is_recorded(self):
        for found in b"", b"null", b"[]", b'{"entries": 5}', b'{"entries": [5, null]}', b"\xff":
            with self.subTest(found):
                self.library(**{NCCL: mock.Mock(return_value=found)})
                self.assertEqual(recorder.describe(), "")

    def test_the_pytorch_that_is_there_can_be_asked(self):
        self.assertIsInstance(recorder.describe(), str)


class Hangs(unittest.TestCase):
    def test_a_program_that_hangs_in_an_exchange_leaves_it_in_the_log(self):
        """As with NCCL an exchange blocks until it is aborted; here the abort hangs too."""
        errors, there = os.pipe()
        self.addCleanup(os.close, errors)
        self.addCleanup(os.close, there)
        free = threading.Event()
        seen = []

        def read():
            seen.append(os.read(errors, 1 << 16))
            free.set()

        agent = self.enterContext(FakeAgent(world()))
        self.enterContext(mock.patch.dict(os.environ, CONCERTINA_SOCKET=agent.path))
        self.enterContext(mock.patch.multiple(LIBRARY, create=True, **{NCCL: recorded(entry(41), entry(42, "started"))}))
        self.enterContext(mock.patch.multiple(stacks, _HANGS=0.0, _LONG=0.0, _ERRORS=there))
        backend = mock.Mock(**{"abort.side_effect": lambda: free.wait(60)})
        group = mock.Mock(**{"_get_backend.return_value": backend})
        reader = threading.Thread(target=read)
        reader.start()
        self.addCleanup(reader.join)
        self.addCleanup(os.write, there, b"\n")

        net = torch.nn.Linear(1, 1)
        job = elastic.join({"net": net}, backend="gloo")
        self.addCleanup(job._close)
        worlds = []
        for step in job.steps([0, 1], global_batch=1, epochs=1):
            with step:
                worlds.append(step.world.round)
                if len(worlds) == 1:
                    with mock.patch("concertina.groups._groups", return_value=[group]), mock.patch.object(job._groups, "backend", "nccl"):
                        agent.say("abort", round=1, reason="a peer is gone")
                        agent.give(world(round=2))
                        self.assertTrue(free.wait(60))
                    raise RuntimeError("NCCL communicator was aborted on rank 0.")
                for _ in step.micro_batches():
                    step.backward(net(torch.ones(1, 1)).mean())
        self.assertEqual(worlds, [1, 2, 2])
        self.assertIn(b'"collective_seq_id": 42', seen[0])
        self.assertIn(b"1 of them have not ended", seen[0])


if __name__ == "__main__":
    unittest.main()
