import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

import concertina.torch as elastic
from concertina.gate import Phase
from tests.fakeagent import FakeAgent, world
from tests_torch import forkserver

RANK = str(pathlib.Path(__file__).with_name("rank.py"))
SECONDS = 300


class Group:
    """The ranks of one world, each a process of its own."""

    def __init__(self, arguments, environments):
        self.stack = contextlib.ExitStack()
        self.ranks = []
        for env in environments:
            files = [self.stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
            env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | env
            process = forkserver.start([RANK, *arguments], env, *files)
            self.stack.callback(process.wait)
            self.stack.callback(process.kill)
            self.ranks.append((process, files))

    def end(self) -> list[tuple[int, str, str]]:
        """Exit code, output and errors of every rank."""
        with self.stack:
            return [(process.wait(SECONDS), *map(read, files)) for process, files in self.ranks]


def read(file) -> str:
    """All that was written to a file."""
    file.seek(0)
    return file.read()


class Worlds(unittest.TestCase):
    def under_agents(self, size, *arguments):
        """Runs a world with an agent for every rank; returns the agents and the outcome."""
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = listener.getsockname()[1]
            agents = [
                stack.enter_context(FakeAgent(world(rank, size, masterPort=port), listener=listener))
                for rank in range(size)
            ]
            outcome = Group(arguments, [{"CONCERTINA_SOCKET": agent.path} for agent in agents]).end()
            return [(agent.received(), agent.words()) for agent in agents], outcome

    def found(self, outcome):
        for code, _, errors in outcome:
            self.assertEqual(code, 0, errors)
        return [json.loads(output) for _, output, _ in outcome]

    def assert_gradients(self, ranks, whole):
        """Every rank had the gradients of a world of one, in every step."""
        for rank in ranks:
            self.assertEqual(len(rank["gradients"]), len(whole["gradients"]))
            for got, want in zip(rank["gradients"], whole["gradients"]):
                torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(torch.tensor(rank["losses"]), torch.tensor(whole["losses"]))

    def test_gradients_are_those_of_the_whole_batch(self):
        # 23 samples in batches of 10: a last batch of 3, which leaves ranks of 4 without a sample.
        (whole,) = self.found(Group((23, 10, 10, 0), [{}]).end())
        self.assertEqual((whole["size"], whole["steps"], whole["exchanges"]), (1, 6, 0))
        for size, micro in (2, 10), (4, 2):
            with self.subTest(size=size, micro=micro):
                agents, outcome = self.under_agents(size, 23, 10, micro, 0)
                ranks = self.found(outcome)
                self.assertEqual([rank["rank"] for rank in ranks], list(range(size)))
                self.assert_gradients(ranks, whole)
                for rank in ranks:
                    self.assertEqual(rank["exchanges"], 6, "gradients are exchanged once in a step")
                    self.assertTrue(rank["group_left"])
                for messages, words in agents:
                    said = [message["type"] for message in messages]
                    self.assertEqual([kind for kind in said if kind != "snapshot"], ["hello", "join", "finished"])
                    self.assertEqual(
                        words, {"entered": 6, "done": 6, "lastStep": 6, "phase": Phase.FINISHED, "samples": 46}
                    )

    def test_without_agents(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = self.found(Group((20, 10, 3, 0), [env | {"RANK": "0"}, env | {"RANK": "1"}]).end())
        (whole,) = self.found(Group((20, 10, 10, 0), [{}]).end())
        self.assertEqual([rank["size"] for rank in ranks], [2, 2])
        self.assert_gradients(ranks, whole)

    def test_ranks_that_have_different_data(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        outcome = Group((20, 10, 3, 0), [env | {"RANK": "0"}, env | {"RANK": "1", "TEST_SAMPLES": "22"}]).end()
        self.assertEqual([code for code, _, _ in outcome], [1, 1])
        self.assertIn("len(data) is not what it is on rank 0 (22, 20 there)", outcome[1][2])

    def test_a_rank_that_fails_says_why(self):
        agents, outcome = self.under_agents(2, 20, 10, 10, 2)
        self.assertEqual([code for code, _, _ in outcome], [1, 1])
        messages, words = agents[1]
        (fault,) = [message for message in messages if message["type"] == "fault"]
        self.assertEqual(fault["step"], 1)
        self.assertIn("rank 1 had to fail", fault["message"])
        self.assertEqual(words["done"], 1)


LEAVE_OFTEN = """
import sys, torch, torch.distributed as dist, concertina.torch as elastic

sys.setswitchinterval(1e-6)
for _ in range(60):
    for step in elastic.join({}).steps([0], global_batch=1, epochs=1):
        with step:
            dist.all_reduce(torch.ones(1))  # a tensor that only gloo still holds when the step is over
            dist.all_reduce(torch.ones(1), group=dist.new_group())
"""


class Leaving(unittest.TestCase):
    def test_never_waits_for_a_thread_that_waits_for_python(self):
        # With the plain order of destruction one of a dozen runs hangs.
        env = {name: value for name, value in os.environ.items() if name != "CONCERTINA_SOCKET"}
        subprocess.run(
            [sys.executable, "-c", LEAVE_OFTEN],
            env=env | {"PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=SECONDS,
            check=True,
        )


class MapStyle(Dataset):
    """Counts how it was asked."""

    def __init__(self):
        self.asked = []

    def __len__(self):
        return 6

    def __getitem__(self, number):
        self.asked.append(number)
        return torch.tensor([number]), number % 2


class InOneGo(MapStyle):
    def __getitems__(self, numbers):
        self.asked.append(numbers)
        return [(torch.tensor([number]), 0) for number in numbers]


class Batches(unittest.TestCase):
    def setUp(self):
        self.enterContext(mock.patch.dict(os.environ))
        for name in "CONCERTINA_SOCKET", "RANK", "WORLD_SIZE":
            os.environ.pop(name, None)

    def batches(self, data, **options):
        seen = []
        for step in elastic.join({}, seed=1).steps(data, **({"epochs": 1, "global_batch": 4} | options)):
            with step:
                self.assertTrue(dist.is_initialized())
                seen.extend(step.micro_batches())
        self.assertFalse(dist.is_initialized())
        return seen

    def test_samples_are_stacked(self):
        data = MapStyle()
        seen = self.batches(data)
        self.assertEqual([(tuple(x.shape), tuple(y.shape)) for x, y in seen], [((4, 1), (4,)), ((2, 1), (2,))])
        self.assertEqual([x.flatten().tolist() for x, _ in seen], [data.asked[:4], data.asked[4:]])

    def test_data_that_is_fetched_in_one_go(self):
        data = InOneGo()
        seen = self.batches(data)
        self.assertEqual([x.flatten().tolist() for x, _ in seen], data.asked)

    def test_tensors(self):
        values = torch.arange(6) * 10
        seen = self.batches(torch.utils.data.TensorDataset(values))
        self.assertEqual(sorted(torch.cat([x for (x,) in seen]).tolist()), values.tolist())

    def test_own_collate(self):
        self.assertEqual(self.batches(MapStyle(), collate=len), [4, 2])


if __name__ == "__main__":
    unittest.main()
