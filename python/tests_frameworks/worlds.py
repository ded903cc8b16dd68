"""Worlds of real programs that are started anew in each, and the agents' side of them, played by the test."""

import contextlib
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from tests.fakeagent import FakeAgent

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "frameworks"
SECONDS = 900


class Process:
    """One rank of a world, with its agent."""

    AGENT = FakeAgent
    COMMAND: tuple[str, ...] = ()

    def __init__(self, job: "Job", rank: int, size: int, port: int, *, program="", options=(), without=()):
        """program: another than the job's. options: for what starts it. without: variables that it does not get."""
        self.rank = rank
        self.agent = job.stack.enter_context(self.AGENT(None))
        self.agent.answers, self.agent.leaves = {}, True
        self.errors = job.stack.enter_context(tempfile.TemporaryFile("w+"))
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCHELASTIC_"))}
        env |= {"PYTHONPATH": str(EXAMPLES.parents[1] / "python"), "CONCERTINA_SOCKET": self.agent.path}
        env |= {"OMP_NUM_THREADS": 1, "PYTHONUNBUFFERED": 1} | self.environment(job, size, port)
        command = [sys.executable, "-W", "ignore", *self.COMMAND, *options, program or EXAMPLES / job.program]
        self.process = subprocess.Popen(
            list(map(str, [*command, *job.arguments])),
            env={name: str(value) for name, value in env.items() if name not in without},
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=job.folder,
        )
        self.lines: queue.Queue[dict] = queue.Queue()
        self.told: list[dict] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        job.stack.callback(self.end)

    def environment(self, job: "Job", size: int, port: int) -> dict:
        """The variables that tell the program its place."""
        place = {"RANK": self.rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": self.rank}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        # Where there is a GPU, all ranks share that one, which NCCL lets those of different machines do alone.
        place |= {"NCCL_HOSTID": self.rank, "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": 1, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        return place | {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": size, "JAX_PROCESS_ID": self.rank}

    def hear(self, kind: str) -> dict:
        """The next message to the agent, which must be of this kind."""
        return self._get(self.agent.messages, kind, lambda found: found[1], lambda message: message["type"] == kind)

    def next_line(self) -> dict:
        """The next line that the program tells."""
        return self._get(self.lines, "a line", lambda line: line, lambda line: True)

    def wait_for(self, step: int) -> None:
        """Waits until the program has told of a step that is not below this one."""
        self._get(self.lines, f"step {step}", lambda line: line, lambda line: line["step"] >= step)

    def _get(self, where: queue.Queue, what: str, of, fits) -> dict:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                found = of(where.get(timeout=0.5))
            except queue.Empty:
                assert self.process.poll() is None, f"rank {self.rank} has ended without {what}: {self.stderr()}"
                assert time.monotonic() < deadline, f"no {what} of rank {self.rank}: {self.stderr()}"
                continue
            if fits(found):
                return found

    def exit_code(self) -> int:
        """The program's exit code, once it has ended and all that it told was read."""
        code = self.process.wait(SECONDS)
        self._reader.join()
        return code

    def end(self) -> None:
        """Ends the program, whatever it does."""
        self.process.kill()
        self.exit_code()

    def stderr(self) -> str:
        """The last that the program has said of errors."""
        self.errors.seek(0)
        return self.errors.read()[-4000:]

    def _read(self) -> None:
        with self.process.stdout as lines:
            for line in lines:
                if found := self.parse(line):
                    self.told.append(found)
                    self.lines.put(found)

    def parse(self, line: str) -> dict | None:
        """What a line tells of a step; None for one of somebody else: libraries print as well."""
        return json.loads(line) if line.startswith('{"step"') else None


class Job:
    """A program in one world after another. Use it as a context manager."""

    def __init__(
        self, program: str | pathlib.Path, *, every=1000, step_seconds=0.0, arguments=None, kind: type[Process] = Process
    ):
        """program: an example, or a path. arguments: others than those of the examples."""
        self.program, self.kind = program, kind
        self.stack = contextlib.ExitStack()
        self.folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        ours = ("--checkpoints", f"{self.folder}/checkpoints", "--every", every, "--step-seconds", step_seconds)
        self.arguments = ours if arguments is None else arguments
        self.worlds: list[list[Process]] = []

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *exception) -> None:
        self.stack.__exit__(*exception)

    @property
    def world(self) -> list[Process]:
        """The present world."""
        return self.worlds[-1]

    def start(self, size: int) -> None:
        """Starts the program as so many ranks."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.worlds.append([self.kind(self, rank, size, port) for rank in range(size)])

    def stop(self) -> int:
        """Stops all ranks after the same step, has them save and end, and returns that step."""
        step = self._barrier()
        for process in self.world:
            process.agent.say("leave", step=step)
        for process in self.world:
            assert process.hear("left")["step"] == step
            code = process.exit_code()
            assert code == 0, f"rank {process.rank} ended with code {code}: {process.stderr()}"
        return step

    def _barrier(self) -> int:
        attempt = 0
        while True:
            entered = max(process.agent.words()["entered"] for process in self.world)
            if attempt and entered <= attempt:
                break
            attempt = entered
            for process in self.world:
                process.agent.stop(attempt)
        for process in self.world:
            while process.hear("parked")["step"] < attempt:
                process.agent.say("go")
        return attempt

    def kill(self) -> None:
        """Kills the last rank; the others are ended as an agent ends them for the next world."""
        lost, *others = reversed(self.world)
        lost.end()
        for process in others:
            process.process.send_signal(signal.SIGTERM)
        for process in others:
            try:
                process.process.wait(5)
            except subprocess.TimeoutExpired:
                process.process.kill()
            process.exit_code()

    def finish(self) -> None:
        """Waits for the end of the training."""
        for process in self.world:
            code = process.exit_code()
            assert code == 0, f"rank {process.rank} ended with code {code}: {process.stderr()}"

    def steps(self, world: int) -> list[int]:
        """The steps that were made in a world, by number from 0."""
        return sorted({line["step"] for process in self.worlds[world] for line in process.told})

    def history(self) -> dict[int, list[dict]]:
        """What the ranks told of each step that counts: of one that was made again, the last time."""
        history: dict[int, list[dict]] = {}
        for world in self.worlds:
            again: dict[int, list[dict]] = {}
            for process in world:
                for line in process.told:
                    again.setdefault(line["step"], []).append(line)
            history = {step: lines for step, lines in history.items() if not again or step < min(again)} | again
        return history
