"""Two torchruns go from world to world, as the agents of their workers say."""

import os
import socket
import sys
import time
import unittest

from tests.fakeagent import FakeAgent, world
from tests_frameworks.worlds import EXAMPLES, SECONDS, Job, Process

sys.path.insert(0, str(EXAMPLES))
import points  # noqa: E402

LAUNCHER = "launcher"


class LaunchAgent(FakeAgent):
    """An agent whose worker has a launcher."""

    def _hello(self, connection, hello):
        if not hello.get("launcher"):
            return super()._hello(connection, hello)
        self._taken[LAUNCHER] = connection
        self._send(connection, {"type": "welcome", "protocol": 2, "slots": 1, "aFieldOfLater": True})
        return LAUNCHER

    def lead(self, rank: int, size: int, number: int, port: int) -> None:
        """Gives the launcher a world."""
        self._send(self._taken[LAUNCHER], world(rank, size, round=number, masterPort=port))


class Node(Process):
    """A torchrun with one process, and its agent."""

    AGENT = LaunchAgent
    COMMAND = ("-m", "torch.distributed.run", "--rdzv-backend=concertina", "--rdzv-id=points", "--log-dir=logs")

    def environment(self, job, size, port):
        """A launcher gets no place by variables."""
        return {}


class Torchrun(unittest.TestCase):
    def lead(self, nodes, number):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for rank, node in enumerate(nodes):
            node.agent.lead(rank, len(nodes), number, port)

    def stop(self, nodes):
        for node in nodes:
            node.agent.say("stop", LAUNCHER)
        for node in nodes:
            node.hear("stopped")

    def wait_for_world(self, node, size, step=1):
        """Waits until a node trains in a world of this size, and returns its line."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            line = node.next_line()
            if line["size"] == size and line["step"] >= step:
                return line
        raise AssertionError(f"no world of {size}: {node.stderr()}")

    def test_it_stays_from_world_to_world_and_spends_no_restart(self):
        with Job("torchrun_loop.py", every=5, step_seconds=0.1) as job:
            first, second = nodes = [Node(job, rank, 2, 0) for rank in range(2)]
            for node in nodes:
                node.hear("hello")
            self.lead(nodes, 1)
            before = self.wait_for_world(first, 2, step=7)
            self.stop(nodes)
            self.lead([second], 2)  # and the other one rests
            after = self.wait_for_world(second, 1)
            self.assertLess(after["step"], before["step"] + 5)
            self.assertEqual(after["step"] % 5, 1, "it goes on from its newest checkpoint")
            self.wait_for_world(second, 1, step=after["step"] + 5)
            self.stop([second])
            self.lead([second, first], 3)
            self.wait_for_world(second, 2, step=points.STEPS)
            for node in nodes:
                self.assertEqual(node.exit_code(), 0, node.stderr())
                self.assertNotIn("attempts left", node.stderr())
            self.assertEqual(max(line["step"] for line in first.told), points.STEPS)

    def test_a_process_that_fails_ends_it(self):
        with Job("fails.py") as job:
            with open(f"{job.folder}/fails.py", "w") as file:
                file.write("raise ArithmeticError('it had to fail')\n")
            node = Node(job, 0, 1, 0, program=f"{job.folder}/fails.py", options=("--max-restarts=3",))
            node.hear("hello")
            self.lead([node], 1)
            self.assertEqual(node.exit_code(), 1)
            self.assertIn("the operator decides", node.stderr())

    def test_without_an_agent_it_says_what_to_do(self):
        with Job("torchrun_loop.py") as job:
            node = Node(job, 0, 1, 0, without=("CONCERTINA_SOCKET",))
            self.assertEqual(node.exit_code(), 1)
            self.assertIn("is for workers of a TrainingJob", node.stderr())


def load_tests(loader, tests, pattern):
    """These, unless FRAMEWORKS names others."""
    wanted = os.environ.get("FRAMEWORKS", "Torchrun").split()
    return loader.loadTestsFromTestCase(Torchrun) if "Torchrun" in wanted else unittest.TestSuite()


if __name__ == "__main__":
    unittest.main()
