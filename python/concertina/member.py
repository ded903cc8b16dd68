"""One process of a job, with its state, on its way from world to world."""

import socket
import traceback
from collections.abc import Callable, Mapping
from copy import deepcopy
from types import TracebackType
from typing import Any

from concertina import health, session, snapshot
from concertina.connections import Connections
from concertina.gate import GatePage, NoGatePage, Phase
from concertina.keeper import Keeper
from concertina.live import LiveState
from concertina.plan import Place
from concertina.session import Alone, Session, WorldChanged
from concertina.shards import Rank
from concertina.values import Values
from concertina.world import Assignment, World

_OWN = "concertina."
_BREAK_OFF = 5.0  # A GPU that hangs may let nothing end, and that is to be reported as well.


class Member:
    """What a job does between its worlds: it enters them, leaves them, and brings its state to where the next one begins."""

    _sharded = False
    """Whether each process has its own shard of the state."""
    _local: Rank | None = None
    """Which one of its worker's processes this is, where all workers have the same state, of which each process has the shards of its local
    rank."""

    def __init__(self, state: Mapping[str, Any]):
        self._state = checked(state)
        self._values = Values()
        self._keeper = Keeper(self._kept(), self._make_codec(), self._position, sharded=self._sharded, local=self._local)
        self._live = LiveState(self._copy_aside)
        self._connections = Connections()
        self._place = Place()
        self._loaded: Mapping[str, int] = {}
        self._world: World | None = None
        self._there = self._over = False
        self._session: Session | Alone = session.start(
            sharded=self._sharded, local=self._local is not None, handover=self._hands_over()
        )
        self.gate: GatePage | NoGatePage = self._session.gate
        """Where program and agent tell each other how far they are."""

    # What a job adds.

    def _position(self) -> dict[str, int]:
        """Where training is, as a snapshot has it."""
        raise NotImplementedError

    def _check_loaded(self) -> None:
        """Refuses the snapshot of another training."""

    def _evaluates_first(self) -> bool:
        """Whether an evaluation comes before the next step."""
        return False

    def _enters(self) -> None:
        """A world begins; the state is the one after its step."""

    # What a framework adds.

    def _form(self, world: World, listener: socket.socket | None) -> None:
        """Connects the ranks of the world; listener is the master port's socket on rank 0."""
        if listener:
            listener.close()

    def _hands_over(self) -> bool:
        """Whether it can give its state to others over the links of their world, and get it so."""
        return False

    def _give_state(self) -> None:
        """Gives the state to those of the world that lack it; of a state that workers have alike this process gives what it has of it."""
        raise NotImplementedError

    def _get_state(self) -> Mapping[str, int]:
        """Gets the state from those of the world that have it; returns its position. Until something of it comes, the state that there is
        stays what it is, if it is an older one: others may be lost, and it be the newest that is left."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Takes apart what _form built, or as much of it as is there."""

    def _break_off(self, limit: float | None = None) -> None:
        """Ends what a world that has failed here still exchanges, so that nothing waits for it. Takes so many seconds at most."""

    def _settle(self) -> None:
        """Waits for what the steps so far have left to other devices."""

    def _interrupt(self) -> None:
        """Frees a program that waits for its peers. Called in another thread."""
        self._connections.shut_down()

    def _describe(self) -> str:
        """What the log should have of a program that hangs, beside its stacks. Called in another thread."""
        return ""

    def _make_codec(self) -> snapshot.Codec:
        return snapshot.Codec()

    def _begin_update(self) -> None:
        """The state is about to change."""
        self._live.write()

    def _copies(self) -> list[Callable[[], None]]:
        """Copies of what a step changes before its update; each puts back what it is of."""
        return []

    def _copy_of(self, thing: Any) -> Callable[[], None] | None:
        """Copies what a program may change of a thing of its state in an evaluation, and returns what puts it
        back; None for what is large."""
        state = thing.state_dict()
        return copy_whole(thing, state) if snapshot.plain(state) else None

    def _forget_step(self) -> None:
        """Drops what an unfinished step has left beside the state."""

    def _adapted(self, thing: Any) -> Any:
        """A thing of the state as the keeper is to see it."""
        return thing

    # The way in.

    def _enter(self) -> bool:
        """Enters the next world, as long as it takes to form one; False when that has ended before it began."""
        assigned = self._session.next_world(self._save_left)
        with Guard(self):
            self._enter_world(assigned)
            return True
        return False

    def _enter_world(self, assigned: Assignment) -> None:
        world = self._world = assigned.world
        self._there = True
        self.gate.phase(Phase.FORMING)
        self._connections.begin()
        gets = assigned.handover and assigned.restore
        if gets and self._place.step >= world.from_step:
            self._live.doubt()  # Nobody could tell it by its number from the one that is to come.
        try:
            self._session.begin(world.round, self._interrupt, self._describe)
            self._adopt(assigned)
        except BaseException:
            if assigned.listener:
                assigned.listener.close()
            raise
        if not gets:
            self._enters()
            self._live.settled()
        self._form(world, assigned.listener)
        if gets:
            self._brought(assigned, self._get_state())
            self._enters()
            self._live.settled()
        elif assigned.handover:
            self._give_state()
        self._keeper.begin(self._session.agent, self._place.step, assigned)

    def _adopt(self, assigned: Assignment) -> None:
        """Brings the state to the step after which the world begins."""
        world, done = assigned.world, self._place.step
        if not assigned.restore:
            if world.from_step != done or not self._live.clean:
                half = "" if self._live.clean else ", and a part of the next"
                raise RuntimeError(f"the world goes on after step {world.from_step}, this process has done {done}{half}")
            return
        if assigned.handover:
            return  # It comes once the world is formed.
        if self._local is not None:
            self._bring(assigned, lambda: self._keeper.load_local(assigned, self._kept()))
        else:
            self._bring(assigned, lambda: self._keeper.load(assigned.snapshot, assigned.shares))

    def _bring(self, assigned: Assignment, load: Callable[[], Mapping[str, int]]) -> None:
        """Brings the state to what it loads, which returns the position."""
        self._live.doubt()
        self._brought(assigned, load())

    def _brought(self, assigned: Assignment, at: Mapping[str, int]) -> None:
        """The state was loaded that is at this position."""
        world = assigned.world
        self._loaded = at
        if at.get("step", 0) != world.from_step:
            raise RuntimeError(f"the world goes on after step {world.from_step}, and what it begins with is the state after {at.get('step', 0)}")
        self._check_loaded()
        self._place = Place.of(at)
        self.gate.restart(self._place.step, self._place.samples)

    def _kept(self) -> dict[str, Any]:
        """The state as it is kept in snapshots."""
        return {name: self._adapted(thing) for name, thing in self._state.items()} | {_OWN + "values": self._values}

    # At the barrier.

    def _halt(self, done: int) -> None:
        self._session.halt(done, self._stand_still, self._keeper.save)
        self._live.go_on()

    def _stand_still(self) -> None:
        """At the barrier: waits for what the steps so far have left to other devices."""
        self._settle()
        if not self._session.aborted:
            self._live.stand()

    # The way out.

    def _broken(self, error: BaseException) -> bool:
        """Leaves the world because of an error. True: the error is a trace of the world's end, and the next world may
        come. False: it is the program's own."""
        if not isinstance(error, Exception | SystemExit | WorldChanged):
            return False
        if not isinstance(error, WorldChanged) and not self._session.aborted:
            return self._judge(error)
        _forget_frames(error)
        if self._there and self._session.aborted:
            self._break_off()  # The thread that does so may be later than this one.
        self._take_apart()
        self._go_back()
        if following := self._session.following:
            self._keep_for(following)
        self._session.left(self._place.step, self._live.clean)
        return True

    def _judge(self, error: BaseException) -> bool:
        """Reports an error, and waits for the verdict: whether it comes from the world."""
        if isinstance(error, SystemExit):
            if error.code in (None, 0):
                return False
            text = f"SystemExit: {error.code}"
        else:
            text = "".join(traceback.format_exception(error))
        if not self._session.alone and (told := health.watch.suspect(error)):
            text += f"\n{told}"  # Hints follow it in the error, and the end is what is shown.
        if self._there:
            self._break_off(_BREAK_OFF)
        self._go_back()
        self._session.fault(self._place.step, self._live.clean, text)
        if not self._session.alone:
            _forget_frames(error)
            self._take_apart()
        if not self._session.own_fault(self._save_left):
            self._take_apart()
            health.watch.forget()
            return True
        self._close()
        return False

    def _go_back(self) -> None:
        """Goes back to the state after the last step, where that can be done."""
        self._forget_step()
        self._live.leave()

    def _keep_for(self, following: Assignment) -> None:
        """The world has ended as it was planned, and this one follows: the program goes on, and may do anything with what there is. Raises
        nothing."""

    def _save_left(self, step: int) -> None:
        """Writes a snapshot of the state that the last world has left here, for those that do not have it."""
        if self._live.clean:
            self._keeper.save(step)
        else:
            self._session.agent.snapshot_failed(step, "this process was in the middle of a step")

    def _take_apart(self) -> None:
        self._there = False
        self._keeper.forget()
        try:
            self._leave()
        finally:
            self._session.end()

    def _close(self) -> None:
        """Ends the job's part in this program. A second call does nothing."""
        if self._over:
            return
        self._over = True
        try:
            if self._there:
                self._take_apart()
        finally:
            self._keeper.close()
            self._session.close()
            self.gate = NoGatePage()

    def _copy_aside(self) -> Callable[[], None]:
        """Copies what an evaluation and a step change before the update, and returns what puts it back."""
        if self._session.agent is None:
            return lambda: None
        copies = self._copies()
        copies += self._copy_small() if self._evaluates_first() else [self._values._copy()]

        def put_back() -> None:
            for copy in copies:
                copy()

        return put_back

    def _copy_small(self) -> list[Callable[[], None]]:
        """Copies the small things of the state."""
        copies = [self._copy_of(thing) for thing in self._state.values()]
        return [put_back for put_back in copies if put_back] + [self._values._copy()]


class Guard:
    """What the loop does for a job between two items: errors count like those of a step."""

    def __init__(self, member: Member):
        self._member = member

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        return error is not None and self._member._broken(error)


def copy_whole(thing: Any, state: Any) -> Callable[[], None]:
    """Copies the state of a thing, and returns what puts it back."""
    kept = deepcopy(state)
    return lambda: thing.load_state_dict(deepcopy(kept))


def checked(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state that a program names. Raises TypeError or ValueError for what can be none."""
    if not isinstance(state, Mapping):
        raise TypeError(f'state is a {type(state).__name__}: name what training changes, such as {{"net": net, "opt": opt}}')
    for name, thing in state.items():
        if type(name) is not str or name.startswith(_OWN):
            raise ValueError(f"state[{name!r}]: a name is a text that does not start with {_OWN}")
        for method in "state_dict", "load_state_dict":
            if not callable(getattr(thing, method, None)):
                raise TypeError(f"state[{name!r}] is a {type(thing).__name__}, which has no {method}()")
    return dict(state)


def _forget_frames(error: BaseException | None, seen: frozenset[int] = frozenset()) -> None:
    """Lets go of what the functions that an error came through held in their variables, such as connections of a world
    that is over."""
    if error is None or id(error) in seen:
        return
    seen |= {id(error)}
    traceback.clear_frames(error.__traceback__)
    for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
        _forget_frames(other, seen)
