"""Real members of a world, and the agent's side of each, played by the test."""

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

from tests.fakeagent import FakeAgent, excerpt, world
from tests_torch import forkserver

MEMBER = str(pathlib.Path(__file__).with_name("member.py"))
SECONDS = 300
"""How long anything of a member is waited for."""
UNTIL = time.monotonic() + float(os.environ.get("TEST_MEMBERS_SECONDS", "inf"))
"""Nothing is from then on, so that it is told where members stand before somebody ends the tests."""


class Member:
    """A process with its agent."""

    def __init__(self, command, folder, stack, everybody, agent=None, place=(0, 1)):
        """command: the program and its arguments. everybody: a list of all members, to which this one is added. agent: what it has of
        the agent of its worker, and place which one it is of how many there; otherwise it is alone, with an agent of its own."""
        self.everybody = everybody
        everybody.append(self)
        self.agent = agent or stack.enter_context(FakeAgent(None))
        self.agent.answers = {}
        self.errors = tempfile.TemporaryFile("w+")
        stack.callback(self.errors.close)
        env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        env |= {"PYTHONPATH": os.pathsep.join(sys.path), "TEST_DIR": folder}
        env |= {"CONCERTINA_SOCKET": self.agent.path, "LOCAL_RANK": str(place[0]), "LOCAL_WORLD_SIZE": str(place[1])}
        self.process = forkserver.start(command, env, stdout=subprocess.PIPE, stderr=self.errors)
        self.lines: queue.Queue[dict] = queue.Queue()
        self.told: list[dict] = []
        self.snapshots: dict[int, str] = {}
        self.parts: dict[int, dict[str, str]] = {}  # of a state in shards, by step and key
        self.round = 0
        self.heard: list[dict] = []
        reader = threading.Thread(target=self._read)
        reader.start()
        stack.callback(reader.join)
        stack.callback(self._end)

    def hear(self, kind):
        """The next message of this kind; snapshots on the way are taken over."""
        while True:
            message = self.message(kind)
            self._keep(message)
            if message["type"] == kind:
                return message
            assert message["type"] in ("progress", "snapshot", "hello", "want"), f"not {kind}: {message} {self.stderr()}"

    def _keep(self, message):
        """Takes over what a message brings of a snapshot."""
        if message["type"] == "snapshot" and "file" in message:
            self.snapshots[message["step"]] = self.agent.take_over(message, self.round)
        elif message["type"] == "snapshot" and "parts" in message:
            self.parts[message["step"]] = self.agent.take_parts(message, self.round)

    def taken(self, step):
        """The parts of a snapshot that it has said are written, as far as it was heard."""
        while not self.agent.messages.empty():
            self._keep(self.agent.messages.get()[1])
        return self.parts.get(step, {})

    def message(self, what):
        """The next message; what is waited for is said if there is none."""
        try:
            self.heard.append(self.agent.messages.get(timeout=_patience())[1])
            return self.heard[-1]
        except queue.Empty:
            raise AssertionError(f"no {what}: {self.where_all_stand()}") from None

    def wait_for(self, **what):
        """The next line that the program prints which has these values."""
        while True:
            try:
                line = self.lines.get(timeout=_patience())
            except queue.Empty:
                raise AssertionError(f"no {what}: {self.where_all_stand()}") from None
            if what.items() <= line.items():
                return line

    def stderr(self):
        self.errors.seek(0)
        return self.errors.read()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS)

    def ends(self):
        """Waits until the program has ended, which is to be well."""
        try:
            code = self.process.wait(_patience())
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the program does not end: {self.where_all_stand()}") from None
        assert code == 0, f"ended with {code}: {self.stderr()}"

    def where_all_stand(self):
        """How far each member is, and the stacks of all of its threads. It ends them."""
        return "".join(f"\n\nMember {number}: {member._where()}" for number, member in enumerate(self.everybody))

    def _where(self):
        ended = self.process.poll()
        if ended is None:
            self.process.send_signal(signal.SIGABRT)  # It writes the stacks, whatever the interpreter waits for.
            self.process.wait(SECONDS)
        state = "runs" if ended is None else f"has ended with {ended}"
        return f"process {self.process.pid} {state}, world {self.round}, gate {self.agent.words()}\n" + "\n".join(
            [*(f"{line}" for line in self.told[-20:]), self.stderr()]
        )

    def _read(self):
        with self.process.stdout as lines:
            for line in lines:
                self.told.append(json.loads(line))
                self.lines.put(self.told[-1])

    def _end(self):
        self.process.kill()
        self.process.wait()


def _patience():
    return max(0.0, min(SECONDS, UNTIL - time.monotonic()))


class Coordinator:
    """Makes worlds of members."""

    def __init__(self, epochs=2, ballast=0, workers=0, seconds=0.0, shards=0, command=()):
        """command: another program than member.py, whose arguments the others are."""
        self.command = command or (MEMBER, epochs, ballast, workers, seconds, shards)
        self.number = 0
        self.port = 0
        self._members = []
        self._stack = contextlib.ExitStack()
        self.folder = self._stack.enter_context(tempfile.TemporaryDirectory())

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._stack.__exit__(*exception)

    def start(self, count, **settings):
        """Starts members, which wait for a world then."""
        members = [Member(self.command, self.folder, self._stack, self._members) for _ in range(count)]
        for member in members:
            vars(member.agent).update(settings)
        for member in members:
            member.hear("join")
        return members

    def world(self, members, step=0, restoring=(), path="", until=0, told=None, **more):
        """Gives them the next world, with ranks in this order. until: the step at which all of them park; 0: none. told: what one of them is
        told besides."""
        self.number += 1
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            for rank, member in enumerate(members):
                member.round = self.number
                restore = member in restoring
                message = world(rank, len(members), round=self.number, fromStep=step, masterPort=self.port)
                message |= {"restore": restore, "snapshot": path if restore else "", "writer": True} | more | (told or {}).get(member, {})
                member.agent.stop(until)
                member.agent.give(message, listener=listener if rank == 0 else None)

    def shards_world(self, members, step, parts, until=0, stay=()):
        """Gives them a world that begins with a state in shards: its parts by their keys. stay: those that have of it what their last world
        has left to them."""
        shards = sorted((key for key in parts if key[0] == "d"), key=lambda key: int(key[1:].split(".")[0]))
        described = next(path for key, path in sorted(parts.items()) if key[0] == "r")
        for member in members:
            number = self.number + 1

            def had(message, number=number):
                wanted = zip(message["parts"], message["ranges"], strict=True)
                found = [{"key": key, "file": excerpt(parts[key], some), "bytes": os.stat(parts[key]).st_size} for key, some in wanted]
                return {"type": "had", "round": number, "parts": found}

            member.agent.answers["want"] = had
        told = {member: {"restore": member not in stay, "snapshot": described} for member in members}
        self.world(members, step, members, described, until, told, shards=shards)

    def save_shards(self, members, step):
        """Has each write its shard of the state after a step; the parts by their keys."""
        found = {}
        for member in members:
            member.agent.say("save", step=step)
        for member in members:
            while True:  # One of those that it takes by itself may come first.
                message = member.hear("snapshot")
                assert "error" not in message, message
                if message["step"] == step:
                    break
            found |= member.parts[step]
        return found

    def first_world(self, members):
        self.world(members, restoring=members)

    def barrier(self, members):
        """Parks all of them at one step and returns it."""
        attempt = 0
        while True:
            attempt = max([attempt] + [m.agent.words()["entered"] for m in members])
            for member in members:
                member.agent.stop(attempt)
            attempt = max(m.agent.words()["entered"] for m in members)
            if all(m.agent.words()["entered"] <= attempt for m in members):
                break
        for member in members:
            member.agent.stop(attempt)
        for member in members:
            while member.hear("parked")["step"] < attempt:
                member.agent.say("go")
        return attempt

    def save(self, member, step):
        member.agent.say("save", step=step)
        while step not in member.snapshots:  # one of those that it takes by itself may come first
            message = member.hear("snapshot")
            assert "error" not in message, message
        return member.snapshots[step]

    def abort(self, members):
        """Breaks the world off; what each says when it has left it."""
        left = []
        for member in members:
            member.agent.say("abort", round=self.number, reason="a peer was lost")
            member.agent.stop(1)
        for member in members:
            while True:
                message = member.message("word that it has left the world")
                member._keep(message)
                if message["type"] in ("aborted", "fault"):
                    left.append(message)
                    break
        return left

    def recover(self, survivors, newcomers=()):
        """Goes on like an operator after a loss: from the newest state that one of them has. That step, and what each said."""
        left = self.abort(survivors)
        step, restoring, path = self.newest(survivors, left, newcomers)
        self.world([*survivors, *newcomers], step, restoring, path)
        return step, left

    def newest(self, survivors, left, newcomers=()):
        """The newest state that one of them has, who has to load it, and from where."""
        clean = [message["step"] for message in left if message["clean"]]
        if not clean:  # all were in the middle of an update: back to the newest snapshot, or to the beginning
            saved = {step: path for member in survivors for step, path in member.snapshots.items()}
            newest = max(saved, default=0)
            return newest, [*survivors, *newcomers], saved.get(newest, "")
        newest = max(clean)
        behind = [m for m, message in zip(survivors, left, strict=True) if message["step"] != newest or not message["clean"]]
        path = ""
        if behind or newcomers:
            holder = next(m for m in survivors if m not in behind)
            path = self.save(holder, newest)
        return newest, [*behind, *newcomers], path

    def end(self, members):
        """Waits until all have finished, and lets them end."""
        for member in members:
            member.hear("finished")
        for member in members:
            member.agent.say("end")
        for member in members:
            member.ends()


def losses(*members):
    """The last loss of each step, as any of the members printed it."""
    lines = sorted((line for member in members for line in member.told if "loss" in line), key=lambda line: line["at"])
    return {line["step"]: line["loss"] for line in lines}
