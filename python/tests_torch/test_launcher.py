"""torchrun's connection to the agent of its worker."""

import json
import os
import socket
import tempfile
import threading
import unittest
from unittest import mock

from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from concertina import torchrun


class Launcher(unittest.TestCase):
    def test_a_reader_that_fails_leaves_nobody_waiting(self):
        path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "agent.sock")
        server = self.enterContext(socket.socket(socket.AF_UNIX))
        server.bind(path)
        server.listen()

        def serve():
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as lines:
                lines.readline()
                connection.sendall(json.dumps({"type": "welcome", "protocol": 2, "slots": 1}).encode() + b"\n")
                connection.sendall(b"[" * 60_000 + b"\n")  # More brackets than Python reads.
                lines.readline()

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        with mock.patch.object(threading, "excepthook"):
            agent = torchrun._Agent(path)
            self.addCleanup(agent.close)
            ended = threading.Event()

            def wait():
                with self.assertRaisesRegex(RendezvousConnectionError, "RecursionError"):
                    agent.next_world()
                ended.set()

            threading.Thread(target=wait, daemon=True).start()
            self.assertTrue(ended.wait(20))


if __name__ == "__main__":
    unittest.main()
