"""A process's way from world to world: what it waits for, and what it tells the agent meanwhile."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from concertina import health
from concertina.agent import Agent, AgentError
from concertina.gate import GatePage, NoGatePage
from concertina.world import Assignment, Staging, assignment, from_environment, staging


class WorldChanged(BaseException):
    """Ends what is done in a world, because that has ended. Like KeyboardInterrupt it is no Exception, so that a program
    that catches those in a step lets it pass."""


class Session:
    """The worlds that an agent gives."""

    def __init__(self, agent: Agent):
        self.agent = agent
        self.gate: GatePage | NoGatePage = agent.gate
        self._joined = False
        self._next: Assignment | None = None

    def next_world(self, save: Callable[[int], None]) -> Assignment:
        """Waits for a world, as long as it takes to form one.

        save is called when the agent wants a snapshot of the state that the last world has left here.
        Raises AgentError when the agent goes away or sends one that is not whole.
        """
        if not self._joined:
            self._joined = True
            health.check_first()
            self.agent.say("join")
        while self._next is None:
            self._hear(save)
        following, self._next = self._next, None
        return following

    def begin(self, number: int, interrupt: Callable[[], None], describe: Callable[[], str] = str) -> None:
        """Enters the world of this round; see Agent.begin. Raises WorldChanged when it has been
        aborted already."""
        self.agent.begin(number, interrupt, describe)
        if self.agent.aborted:
            raise WorldChanged

    def halt(self, done: int, settle: Callable[[], None], save: Callable[[int], None]) -> None:
        """Stands at the barrier for as long as the agent lets nobody go beyond done steps.

        settle is called first, and save when the agent wants a snapshot. Raises WorldChanged when
        the world has ended, AgentError when the agent goes away.
        """
        while not self._leaving() and 0 < self.gate.stop() <= done:
            settle()
            self.agent.say("parked", step=done)
            while self._hear(save) not in ("go", "world", "abort"):
                pass
        if self._leaving():
            raise WorldChanged

    def want(
        self, number: int, keys: Sequence[str], ranges: Sequence[Sequence[tuple[int, int]]]
    ) -> Callable[[], list[str]]:
        """Asks for these shards of the state that the world of this round begins with. It returns what waits until the agent has them, which
        returns their files, and is called before this is once more. ranges: the bytes of each that have to be there, each from a first one to
        before another; none for all. Of no shards it says so: the agent knows then that this process has what it needs. The waiting raises
        WorldChanged when the world has ended, AgentError when the agent goes away or gives others."""
        self.agent.say("want", parts=[*keys], ranges=[[[*each] for each in some] for some in ranges])

        def wait() -> list[str]:
            while not self._leaving():
                message, fds = self.agent.wait()
                self._take(message, fds)
                if message.get("type") == "had" and message.get("round") == number:
                    return _files_of(message.get("parts"), keys)
            raise WorldChanged

        return wait

    def end(self) -> None:
        """Nothing of the world is left that has to be interrupted."""
        self.agent.end()

    def left(self, done: int, clean: bool) -> None:
        """The world is behind this process; clean: its state is the one after done steps. Tells an agent that
        does not know."""
        if self._next is None:
            self.agent.say("aborted", step=done, clean=clean)

    @property
    def following(self) -> Assignment | None:
        """The world that follows; None where that is not known, as after a loss."""
        return self._next

    @property
    def aborted(self) -> bool:
        """Whether the world has been broken off, so that errors in it mean nothing."""
        return self.agent.aborted

    @property
    def alone(self) -> bool:
        """Whether nobody is there who could say whose fault an error is."""
        return self.agent.gone

    def fault(self, done: int, clean: bool, message: str) -> None:
        """Reports an error of the program; clean: the state is the one after done steps."""
        self.agent.fault(done, clean, message)

    def own_fault(self, save: Callable[[int], None]) -> bool:
        """Waits for the verdict about a fault: whether the error is the program's own. If not,
        there is a next world."""
        while self._next is None:
            try:
                if self._hear(save) == "raise":
                    return True
            except AgentError:
                return True
        return False

    def finish(self, done: int, clean: bool, save: Callable[[int], None]) -> bool:
        """Reports that training is over and waits for the others to finish; clean: the state is the one after
        done steps. False: somebody was lost, and this process is needed again in the next world."""
        self.agent.say("finished", step=done, clean=clean)
        while self._next is None:
            try:
                if self._hear(save) == "end":
                    return True
            except AgentError:
                if not self.agent.gone:
                    raise
                return True  # There is nothing left that the agent could ask for.
        return False

    def close(self) -> None:
        """Ends the connection."""
        if self._next and self._next.listener:
            self._next.listener.close()
        self.agent.close()

    def _leaving(self) -> bool:
        return self._next is not None or self.agent.aborted

    def _hear(self, save: Callable[[int], None]) -> str:
        message, fds = self.agent.wait()
        self._take(message, fds)
        if message.get("type") == "save":
            self.agent.asked = self._staging(message)
            save(message.get("step"))
        return message.get("type")

    @staticmethod
    def _staging(message: Mapping) -> Staging | None:
        try:
            return staging(message)
        except ValueError as error:
            raise AgentError(f"save a snapshot: {error}") from error

    def _take(self, message: Mapping, fds: list[int]) -> None:
        """Keeps what a message brings; it may be for later."""
        if message.get("type") != "world":
            for fd in fds:
                os.close(fd)
            return
        listener = socket.socket(fileno=fds[0]) if fds else None
        try:
            following = assignment(message, listener)
        except ValueError as error:
            if listener:
                listener.close()
            raise AgentError(f"join the world: {error}") from error
        if self._next and self._next.listener:
            self._next.listener.close()
        self._next = following


class Alone:
    """The one world of a program that runs without an agent."""

    agent = None
    following = None
    aborted = False
    alone = True

    def __init__(self):
        self.gate: GatePage | NoGatePage = NoGatePage()

    def next_world(self, save: Callable[[int], None]) -> Assignment:
        """The world that the environment describes. Raises ValueError when it describes none."""
        return Assignment(from_environment(), restore=False, snapshot="", writer=False, listener=None)

    def begin(self, number: int, interrupt: Callable[[], None], describe: Callable[[], str] = str) -> None:
        """Nothing breaks this world off."""

    def halt(self, done: int, settle: Callable[[], None], save: Callable[[int], None]) -> None:
        """Nobody lets the program wait."""

    def end(self) -> None:
        """Does nothing."""

    def left(self, done: int, clean: bool) -> None:
        """Does nothing."""

    def fault(self, done: int, clean: bool, message: str) -> None:
        """Nobody wants to know."""

    def own_fault(self, save: Callable[[int], None]) -> bool:
        """There is nobody else's."""
        return True

    def finish(self, done: int, clean: bool, save: Callable[[int], None]) -> bool:
        """There is nobody to wait for."""
        return True

    def close(self) -> None:
        """Does nothing."""


def _files_of(parts: Any, keys: Sequence[str]) -> list[str]:
    """The files that the agent has named for these parts. Raises AgentError where it has not."""
    given = [part if isinstance(part, dict) else {} for part in parts] if isinstance(parts, list) else []
    files = [part.get("file") for part in given]
    if [part.get("key") for part in given] != [*keys] or not all(type(file) is str and file for file in files):
        raise AgentError(f"the agent was asked for the shards {', '.join(keys)}, and has given {parts!r:.300}")
    return files


def start(
    env: Mapping[str, str] = os.environ, *, sharded: bool = False, local: bool = False, handover: bool = False
) -> Session | Alone:
    """The session with the agent that the environment names, if it does. sharded: each process has its own shard of the state.
    local: it has the share of its local rank, and all workers have the same. handover: it can give its state to others in a world, and get
    it so.

    Raises AgentError when that cannot be talked to, ValueError when LOCAL_RANK is no number.
    """
    path = env.get("CONCERTINA_SOCKET")
    if not path:
        return Alone()
    text = env.get("LOCAL_RANK", "0")
    try:
        local_rank = int(text)
    except ValueError:
        raise ValueError(f"LOCAL_RANK is {text!r}: it must be a number") from None
    return Session(Agent(path, local_rank, sharded=sharded, local=local, handover=handover))
