"""Workers of several processes each, which share a model, and the agents' side of them, played by the test."""

import queue
import socket
import sys

from tests.fakeagent import FakeAgent, world
from tests_torch.coordinator import Coordinator, Member


class _Sorted:
    """What the processes of a worker say, by slot."""

    def __init__(self, slots):
        self.of = [queue.Queue() for _ in range(slots)]

    def put(self, said):
        self.of[said[0]].put(said)
        if said[1]["type"] == "fault":
            print(f"slot {said[0]}: {said[1]['message']}", file=sys.stderr)


class _Slot:
    """What one process has of the agent of its worker."""

    def __init__(self, agent, slot):
        self._agent, self._slot = agent, slot
        self.path, self.messages = agent.path, agent.messages.of[slot]
        self.take_parts = agent.take_parts

    @property
    def hello(self):
        """What the last process of the worker has greeted it with."""
        return self._agent.hello

    def words(self):
        return self._agent.words(self._slot)

    def stop(self, step):
        self._agent.stop(step, self._slot)

    def say(self, kind, **fields):
        self._agent.say(kind, self._slot, **fields)

    def give(self, message, listener=None):
        self._agent.give(message, self._slot, listener)


class Worker(list):
    """The processes of a worker, by local rank."""

    def parts(self, step):
        """What they have said that they have written of the state after a step, by the keys."""
        return {key: path for member in self for key, path in member.taken(step).items()}


class Workers(Coordinator):
    """Makes worlds of workers."""

    def hire(self, count, size=2, **settings):
        """Starts workers of so many processes, which wait for a world then."""
        workers = []
        for _ in range(count):
            agent = FakeAgent(*[None] * size)
            agent.answers, agent.messages = {}, _Sorted(size)
            vars(agent).update(settings)
            self._stack.enter_context(agent)
            place = [_Slot(agent, slot) for slot in range(size)]
            workers.append(Worker(Member(self.command, self.folder, self._stack, self._members, place[i], (i, size)) for i in range(size)))
        for worker in workers:
            for member in worker:
                member.hear("join")
        return workers

    def give(self, workers, step=0, parts=None, restoring=(), until=0, handover=False):
        """Gives them the next world, with ranks in this order. parts: those of the state that some of them load, by their keys. until:
        the step at which all of them park; 0: none. handover: those get it from the others."""
        self.number += 1
        parts = parts or {}
        shares = [parts[key] for key in sorted(parts) if key[0] == "s"]
        described = next((path for key, path in parts.items() if key[0] == "r"), "")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            for number, worker in enumerate(workers):
                for local, member in enumerate(worker):
                    rank, restore = number * len(worker) + local, worker in restoring
                    member.round = self.number
                    message = world(rank, len(workers) * len(worker), round=self.number, fromStep=step, masterPort=self.port)
                    message |= {"localRank": local, "localSize": len(worker), "workerRank": number, "workers": len(workers)}
                    message |= {"restore": restore, "snapshot": described if restore else "", "writer": local == 0}
                    message |= {"shares": shares if restore else [], "handover": handover}
                    member.agent.stop(until)
                    member.agent.give(message, listener=listener if rank == 0 else None)

    def save_all(self, worker, step):
        """Has a worker write the state after a step; its parts by their keys."""
        for member in worker:
            member.agent.say("save", step=step)
        for member in worker:
            while step not in member.parts:
                message = member.hear("snapshot")
                assert "error" not in message, message
        return {key: path for member in worker for key, path in member.parts[step].items()}

    def leave(self, workers):
        """Breaks the world off; the step after which all processes of a worker have the state, of each of them, and -1 where they do not."""
        said = iter(self.abort([member for worker in workers for member in worker]))
        live = []
        for worker in workers:
            left = [next(said) for _ in worker]
            same = {message["step"] for message in left if message["clean"]}
            live.append(same.pop() if len(same) == 1 and all(message["clean"] for message in left) else -1)
        return live

    def go_on(self, survivors, until=0):
        """Breaks the world off, and goes on like an operator after a loss: from the newest state that all processes of a worker have.
        That step, and whether somebody had it live."""
        live = self.leave(survivors)
        newest, parts = max(live), {}
        behind = [worker for worker, step in zip(survivors, live, strict=True) if step != newest]
        if newest < 0:
            newest, parts = self.newest_of(survivors)
        elif behind and newest:
            parts = self.save_all(survivors[live.index(newest)], newest)
        self.give(survivors, newest, parts, behind if max(live) >= 0 else survivors, until)
        return newest, max(live) >= 0

    @staticmethod
    def newest_of(workers):
        """The newest state of which a worker has written all, and its parts; step 0 and none where there is none."""
        for step in sorted({step for worker in workers for member in worker for step in member.parts}, reverse=True):
            for worker in workers:
                if len(parts := worker.parts(step)) == len(worker) + 1:
                    return step, parts
        return 0, {}
