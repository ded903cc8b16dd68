"""torchrun's connection to the agent of its worker."""

import json
import os
import pathlib
import socket
import tempfile
import threading
import unittest
from unittest import mock

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from concertina import torchrun
from tests_frameworks.test_torchrun import Node
from tests_frameworks.worlds import Job

# What torchrun finds by itself where the package is installed.
RUN = """
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.run import main

from concertina import torchrun

rendezvous_handler_registry.register("concertina", torchrun.handler())
main()
"""


class Uninstalled(Node):
    """A torchrun in whose environment the package is not installed."""

    COMMAND = ("-c", RUN, "--rdzv-backend=concertina", "--log-dir=logs")


class ExitCodes(unittest.TestCase):
    def test_that_of_a_broken_device_is_passed_on_and_no_other(self):
        for code, want in (113, 113), (7, 1):
            with self.subTest(code=code), Job("ends.py") as job:
                program = pathlib.Path(job.folder, "ends.py")
                program.write_text(
                    f"import os, time\n"
                    f"if os.environ['RANK'] == '0': time.sleep(600)\n"
                    f"launch = [os.environ[name] for name in ('TORCHELASTIC_RUN_ID', 'MASTER_ADDR', 'MASTER_PORT')]\n"
                    f"os._exit({code} if os.environ['CONCERTINA_EXIT_CODE_PASSED_ON'].split() == launch else 2)\n"
                )
                node = Uninstalled(job, 0, 1, 0, program=program, options=("--nproc-per-node=2",))
                node.hear("hello")
                with socket.create_server(("127.0.0.1", 0)) as free:
                    port = free.getsockname()[1]
                node.agent.lead(0, 1, 1, port)
                self.assertEqual(node.exit_code(), want, node.stderr())
                self.assertRegex(node.stderr(), f"exitcode +: {code} ")  # torchrun's own report is still there


    def test_the_first_one_tells_of_a_signal(self):
        for codes, want in ((-11, -15), 139), ((-6, 1), 134), ((-7,), 135), ((1, -11), 0), ((-9,), 0), ((-11, 113), 113):
            failed = ChildFailedError("train.py", {rank: mock.Mock(exitcode=code, timestamp=rank) for rank, code in enumerate(codes)})
            self.assertEqual(torchrun._passed_on(failed), want, codes)


class Launcher(unittest.TestCase):
    def test_only_the_processes_of_the_first_world_look_at_their_devices(self):
        told = []
        with (
            mock.patch.object(torchrun, "TCPStore"),
            mock.patch.object(torchrun, "_Agent") as agent,
            mock.patch.dict(os.environ, CONCERTINA_SOCKET="agent.sock", CONCERTINA_CHECK_DEVICE="1"),
        ):
            agent().next_world.return_value = {"round": 1, "masterAddress": "127.0.0.1", "masterPort": 1, "workerRank": 0, "workers": 1}
            agent().stopping = True
            handler = torchrun.Handler(mock.Mock(run_id="none"))
            for _ in range(2):
                handler.next_rendezvous()
                told.append(os.environ.get("CONCERTINA_CHECK_DEVICE"))
        self.assertEqual(told, ["1", None])

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
