"""The run of a training program through its worlds: join, call, report, leave, call again."""

import contextlib
import functools
import hashlib
import math
import random
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from concertina import samples, session, snapshot
from concertina.agent import MAX_METRICS, METRIC_NAME
from concertina.connections import Connections
from concertina.gate import GatePage, NoGatePage, Phase
from concertina.keeper import Keeper
from concertina.live import LiveState
from concertina.session import Alone, Session, WorldChanged
from concertina.world import Assignment, World

_MAX_STEP = 2**62
_OWN = "concertina."


class Step:
    """One optimizer update, as one rank sees it."""

    def __init__(self, run: "Run", number: int, epoch: int, load: Callable, pieces: Sequence, first: int, last: bool):
        self.number = number
        """Which update of the whole training this is, counted from 1."""
        self.epoch = epoch
        """The epoch it belongs to, counted from 0."""
        self.ends_epoch = last
        """Whether it is the last of its epoch."""
        self._run = run
        self._load = load
        self._pieces = pieces
        self._first = first

    def micro_batches(self) -> Iterator[tuple[Any, float]]:
        """This rank's part of the step in pieces: (batch, weight) pairs.

        Multiply the mean loss of a piece with its weight and add up the gradients; averaged over
        ranks they are the gradient of the whole batch. Every rank gets the same number of pieces.
        One that is left over is a single sample with weight 0: compute it like any other, so that
        this rank takes part in whatever the others do together.
        """
        gate = self._run.gate
        for piece in self._pieces:
            gate.phase(Phase.DATA)
            batch = self._load(used_positions(piece, self._first))
            gate.phase(Phase.STEP)
            yield batch, piece.weight

    def begin_update(self) -> None:
        """Says that the program changes its state from here to the end of the step.

        From the first call on it promises to change nothing of Run(state=…) elsewhere in a step; random numbers
        are put back. When a rank is lost, the others then go on with the state that they have, unless they
        were past this point: the step is made again, and none before it. Without such a call everybody goes
        back to a snapshot. What can take long or fail, such as talking to other ranks, comes before it.
        """
        self._run._begin_update()

    def report(self, **metrics: Any) -> None:
        """Shows numbers of this step in the job's status, for example report(loss=loss).

        A number is anything that float() takes; it is read only when a report is due, about once
        a second. Rank 0's numbers are shown. Names: up to 32 letters, digits and `_`, at most 8
        of them in a run; ValueError otherwise.
        """
        self._run.report(**metrics)


class Run:
    """A training run: so many epochs over a data set, in steps of a fixed global batch.

    Call it with a function of one argument, the world; the function trains and returns:

        run = Run(state={"model": model}, epochs=30, global_batch=128, seed=0)

        def train(world):
            for epoch in run.epochs():
                for step in run.steps(data):
                    for batch, weight in step.micro_batches():
                        ...
                    step.report(loss=loss)

        run(train)

    Under Concertina the world comes from the agent, and when it changes the function is called
    again, in the next one: epochs() and steps() go on where the state is. What happens outside of
    a step may happen twice then. What follows the last step of an epoch, such as an evaluation, is
    made anew when the world changes before the next step is done; what it has changed of the small
    things in the state, such as a scheduler's numbers, is put back before. Anything else that
    changes the state belongs inside of a step (Step.ends_epoch tells the last of an epoch).

    Anywhere else the world comes from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and is a
    world of one when they are not set.

    The same seed gives the same samples in each step, whatever the number of ranks.
    """

    def __init__(
        self,
        *,
        epochs: int,
        global_batch: int,
        state: Mapping[str, Any] | None = None,
        micro_batch: int | None = None,
        seed: int = 0,
    ):
        """epochs and global_batch: at least 1. global_batch counts the samples of a step over all
        ranks; micro_batch bounds what one rank computes at once (default: its whole part). seed:
        0 … 2^64-1.

        state: what training changes, by name: objects with state_dict() and load_state_dict(). A
        state_dict() may hold numbers, texts, containers, bytes and NumPy arrays. Python's and
        NumPy's random numbers are kept with it; of several ranks, each that loads them draws others
        from then on, so that no two drop the same of what they train on. Without a state the world can become smaller, but
        nobody can join it and nothing can be gone back to.

        Raises ValueError for a value out of range, TypeError for an object without those methods.
        """
        for name, value in ("epochs", epochs), ("global_batch", global_batch), ("micro_batch", micro_batch):
            if value is not None and not 1 <= value < _MAX_STEP:
                raise ValueError(f"{name} is {value}: it must be at least 1")
        samples.Permutation(seed, 0, 1)  # refuses a seed out of range
        self._epochs = epochs
        self._global_batch = global_batch
        self._micro_batch = micro_batch or global_batch
        self._seed = seed
        self._state = _checked(state)
        self._codec = self._make_codec()
        whole = None if self._state is None else self._state | self._random_state()
        self._keeper = Keeper(whole, self._codec, self._position)
        self._live = LiveState(self._copy_aside)
        self._after_epoch: list[Callable[[], None]] = []
        self._connections = Connections()
        self._epoch: int | None = None
        self._entered = 0
        self._fresh = True  # until the first step of a world has begun
        self._done = 0
        self._samples = 0
        self._total_steps = 0
        self._place = 0, 0
        self._metrics: dict[str, Any] = {}
        self._world: World | None = None
        self._session: Session | Alone | None = None
        self.gate: GatePage | NoGatePage = NoGatePage()

    def __call__(self, train: Callable[[World], Any]) -> Any:
        """Joins the world, calls train with it, again in each world that follows, and reports how
        it ended.

        Returns what the last call of train returns. An exception of train is reported: it is
        raised here when it turns out to be the program's own and not the trace of a lost peer.
        Raises AgentError when the agent cannot be talked to, ValueError when RANK and its
        companions describe no world.
        """
        if self._session is not None:
            raise RuntimeError("this Run has trained already: make another one")
        self._session = session.start()
        self.gate = self._session.gate
        try:
            while True:
                finished, result = self._one_world(self._session.next_world(self._save_left), train)
                if finished and self._session.finish(self._done, self._live.clean, self._save_left):
                    return result
        finally:
            self._keeper.forget()
            self._session.close()
            self._world, self.gate = None, NoGatePage()

    def epochs(self) -> Iterator[int]:
        """The numbers of the epochs to train, from 0; in a later world from the one in which the
        last step was made."""
        self._need_world("epochs()")
        for epoch in range(self._place[0], self._epochs):
            self._epoch = epoch
            yield epoch
        self._epoch = None

    def steps(self, data: Sequence, collate: Callable[[list], Any] | None = None) -> Iterator[Step]:
        """The steps of the present epoch over data, which has a length and is indexed by number,
        without those that are done.

        collate makes a batch of a list of samples (default: the list itself). A step counts as
        done when the next one is asked for. Raises ValueError for data without a sample, or with
        another length than in the epoch before.
        """
        self._need_world("steps()")
        if self._epoch is None:
            raise RuntimeError("steps() outside an epoch: call it in a loop over epochs()")
        n, epoch = len(data), self._epoch
        self._plan(n)
        load = self._loader_of(data, collate)
        for first in range(self._cursor(), n, self._global_batch):
            number = self._done + 1
            self._pass(number)
            self.gate.phase(Phase.STEP)
            size, pieces = self._part(first, n)
            yield self._make_step(number, epoch, load, pieces, first, first + size == n)
            self._done = number
            self._samples += size
            self._place = epoch, first + size
            self._live.settled()
            self._after_epoch = self._copy_small() if first + size == n else []
            self.gate.done(number, self._samples)

    def poll(self) -> None:
        """Lets a change of the world through, where no steps are made for a while: call it now and
        then while evaluating, loading or saving. It may not return then; the training function is
        called again in the next world."""
        self._need_world("poll()")
        if self.gate.stop():
            self._halt(self._done)

    @property
    def total_steps(self) -> int:
        """Steps of the whole training; 0 before the first call of steps()."""
        return self._total_steps

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Says for the time of a with block that the program evaluates its model."""
        self.gate.phase(Phase.EVAL)
        try:
            self.poll()
            yield
        finally:
            self.gate.phase(Phase.STEP)

    def report(self, **metrics: Any) -> None:
        """Shows numbers in the job's status that belong to no single step, such as a test
        accuracy; see Step.report."""
        self._need_world("report()")
        for name in metrics:
            if not METRIC_NAME.fullmatch(name):
                raise ValueError(f"the metric {name!r}: a name has up to 32 letters, digits and _")
        if len(self._metrics.keys() | metrics.keys()) > MAX_METRICS:
            raise ValueError(f"more than {MAX_METRICS} metrics: report fewer, under the same names each time")
        self._metrics.update(metrics)
        self._report_progress(last=False)

    # What a framework adds.

    def _form(self, world: World, listener: socket.socket | None) -> None:
        """Connects the ranks of the world; listener is the master port's socket on rank 0."""
        if listener:
            listener.close()

    def _leave(self) -> None:
        """Takes apart what _form built, or as much of it as is there."""

    def _settle(self) -> None:
        """Waits for what the steps so far have left to other devices."""

    def _interrupt(self) -> None:
        """Frees a training function that waits for its peers. Called in another thread."""
        self._connections.shut_down()

    def _make_codec(self) -> snapshot.Codec:
        return snapshot.Codec()

    def _begin_update(self) -> None:
        """The state is about to change."""
        self._live.write()

    def _copy_aside(self) -> Callable[[], None]:
        """Copies what a step changes before its update, and returns what puts it back."""
        if self._session is None or self._session.agent is None:
            return lambda: None
        copies = self._copies()

        def put_back() -> None:
            for copy in copies:
                copy()

        return put_back

    def _copies(self) -> list[Callable[[], None]]:
        """Copies of what a step changes before its update; each puts back what it is of."""
        numbers = self._random_state().values()
        return [functools.partial(source.load_state_dict, source.state_dict()) for source in numbers]

    def _copy_of(self, thing: Any) -> Callable[[], None] | None:
        """Copies what a program may change of a thing of its state between two epochs, and returns what puts it
        back; None for what is large."""
        state = thing.state_dict()
        return copy_whole(thing, state) if snapshot.plain(state) else None

    def _forget_step(self) -> None:
        """Drops what an unfinished step has left beside the state."""

    def _random_state(self) -> dict[str, Any]:
        """The sources of random numbers, as objects like those of the state."""
        return {_OWN + "random": _Random()}

    def _loader_of(self, data: Sequence, collate: Callable[[list], Any] | None) -> Callable[[range], Any]:
        """What makes the batch of a range of positions in the present epoch."""
        order = self._order(len(data))
        fetch = self._fetcher(data, collate)
        return lambda positions: fetch(order.of(positions))

    def _fetcher(self, data: Sequence, collate: Callable[[list], Any] | None) -> Callable[[list[int]], Any]:
        def fetch(numbers: list[int]) -> Any:
            batch = [data[number] for number in numbers]
            return collate(batch) if collate else batch

        return fetch

    def _make_step(self, *args: Any) -> Step:
        return Step(self, *args)

    # One world.

    def _one_world(self, assigned: Assignment, train: Callable[[World], Any]) -> tuple[bool, Any]:
        """Trains in a world until that ends; whether training is over, and the result."""
        try:
            self._enter(assigned)
            result = train(assigned.world)
            if not self._session.aborted or 0 < self._total_steps == self._done:
                self._take_apart()
                self._report_progress(last=True)
                self.gate.phase(Phase.FINISHED)
                return True, result
        except WorldChanged as change:
            _forget_frames(change)
        except (Exception, SystemExit) as error:
            if not self._session.aborted:
                self._judge(error)
                return False, None
            _forget_frames(error)
        result = None
        self._take_apart()
        self._go_back()
        self._session.left(self._done, self._live.clean)
        return False, None

    def _enter(self, assigned: Assignment) -> None:
        world = self._world = assigned.world
        self._epoch = None
        self.gate.phase(Phase.FORMING)
        self._connections.begin()
        try:
            self._session.begin(world.round, self._interrupt)
            self._adopt(assigned)
        except BaseException:
            if assigned.listener:
                assigned.listener.close()
            raise
        self._live.settled()
        self._after_epoch = self._copy_small()
        self._form(world, assigned.listener)
        self._keeper.begin(self._session.agent, self._done, assigned.writer)

    def _adopt(self, assigned: Assignment) -> None:
        """Brings the state to the step after which the world begins."""
        world = assigned.world
        self._fresh = True
        if not assigned.restore:
            self._put_back()  # What follows the last step is made anew.
            if world.from_step != self._done or not self._live.clean:
                half = "" if self._live.clean else ", and a part of the next"
                raise RuntimeError(
                    f"the world goes on after step {world.from_step}, this process has done {self._done}{half}"
                )
            return
        self._live.doubt()
        if self._state is None:
            if world.from_step or self._entered:
                raise RuntimeError(
                    f"the world goes on after step {world.from_step}, and this program cannot go there: "
                    "give Run(state=…) what training changes"
                )
            return
        at = self._keeper.load(assigned.snapshot)
        if assigned.snapshot and world.size > 1:
            self._draw_apart(world)
        if at.get("step", 0) != world.from_step:
            raise RuntimeError(f"the world goes on after step {world.from_step}, the snapshot is of {at.get('step', 0)}")
        self._done = self._entered = world.from_step
        self._samples = at.get("samples", 0)
        self._place = at.get("epoch", 0), at.get("cursor", 0)
        self._total_steps = at.get("total", self._total_steps)
        self.gate.restart(self._done, self._samples)
        self.gate.last_step(self._total_steps)

    def _draw_apart(self, world: World) -> None:
        """Gives this rank random numbers of its own: those of the snapshot are of the rank that wrote it. The same
        job that goes through the same worlds gets the same ones."""
        name = f"{self._seed} {world.from_step} {world.round} {world.rank}"
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
        for source in self._random_state().values():
            source.seed(seed)

    def _judge(self, error: BaseException) -> None:
        """Reports an error. Returns when it comes from the world; raises it when it is its own."""
        if isinstance(error, SystemExit):
            if error.code in (None, 0):
                raise error
            text = f"SystemExit: {error.code}"
        else:
            text = "".join(traceback.format_exception(error))
        self._go_back()
        self._session.fault(self._done, self._live.clean, text)
        if not self._session.alone:
            _forget_frames(error)
            self._take_apart()
        if self._session.own_fault(self._save_left):
            raise error

    def _go_back(self) -> None:
        """Goes back to the state after the last step, where that can be done."""
        self._forget_step()
        self._live.leave()

    def _halt(self, done: int) -> None:
        self._session.halt(done, self._stand_still, self._save)
        self._live.go_on()

    def _stand_still(self) -> None:
        """At the barrier: waits for what the steps so far have left to other devices."""
        self._settle()
        if not self._session.aborted:
            self._live.stand()

    def _save_left(self, step: int) -> None:
        """Writes a snapshot of the state that the last world has left here, for those that do not have it."""
        if self._live.clean:
            self._save(step)
        else:
            self._session.agent.snapshot_failed(step, "this process was in the middle of a step")

    def _save(self, step: int) -> None:
        with self._right_after_step():
            self._keeper.save(step)

    def _copy_small(self) -> list[Callable[[], None]]:
        """Copies the small things of the state, which a program may change before the next step."""
        if self._state is None or self._session.agent is None:
            return []
        copies = [self._copy_of(thing) for thing in self._state.values()]
        return [put_back for put_back in copies if put_back]

    def _put_back(self) -> None:
        for put_back in self._after_epoch:
            put_back()

    @contextlib.contextmanager
    def _right_after_step(self) -> Iterator[None]:
        """Makes the state the one right after the last step, for the time of a with block: who loads it does again
        what has come since."""
        now = self._copy_small() if self._after_epoch else []
        self._put_back()
        try:
            yield
        finally:
            for put_back in now:
                put_back()

    def _take_apart(self) -> None:
        self._keeper.forget()
        try:
            self._leave()
        finally:
            self._session.end()

    # A step.

    def _pass(self, number: int) -> None:
        """The gate before a step."""
        if number > self._keeper.due:
            with self._right_after_step():
                self._keeper.consider(number - 1)
        self._entered = number
        if self.gate.enter(number):
            self._halt(number - 1)
        if self._live.doubtful:
            self._stand_still()
            self._live.go_on()
        self._live.begin()
        if self._fresh:
            self._fresh = False
            self.gate.begun()

    def _part(self, first: int, n: int) -> tuple[int, list[samples.MicroBatch]]:
        """The samples of the step that begins at a position, and this rank's part of them."""
        size = min(self._global_batch, n - first)
        return size, samples.micro_batches(first, size, self._world.size, self._world.rank, self._micro_batch)

    def _ahead(self, n: int) -> Iterator[range]:
        """The positions of all micro-batches of this rank that are left in the epoch."""
        for first in range(self._cursor(), n, self._global_batch):
            for piece in self._part(first, n)[1]:
                yield used_positions(piece, first)

    def _cursor(self) -> int:
        epoch, cursor = self._place
        return cursor if self._epoch == epoch else 0

    def _order(self, n: int) -> samples.Permutation:
        return samples.Permutation(self._seed, self._epoch, n)

    def _plan(self, n: int) -> None:
        if n < 1:
            raise ValueError("the data set is empty")
        total = self._epochs * samples.steps_per_epoch(n, self._global_batch)
        if self._total_steps not in (0, total):
            raise ValueError(
                f"this epoch has {n} samples and makes {total} steps in all, an earlier one made "
                f"{self._total_steps}: train on data of one length"
            )
        self._total_steps = total
        self.gate.last_step(total)

    def _position(self) -> dict[str, int]:
        epoch, cursor = self._place
        return {
            "step": self._done, "samples": self._samples, "epoch": epoch, "cursor": cursor, "total": self._total_steps,
            "seed": self._seed, "batch": self._global_batch,
        }  # fmt: skip

    def _report_progress(self, last: bool) -> None:
        agent = self._session.agent
        if not agent or self._world.rank or not self._metrics:
            return
        if last or agent.progress_due():
            agent.progress(self._total_steps, _finite(self._metrics))

    def _need_world(self, what: str) -> None:
        if self._world is None:
            raise RuntimeError(f"{what} outside the training function: call it in the function given to run(…)")


class _Random:
    """The random numbers of Python, and of NumPy where it is used, in the form that a state's
    objects have."""

    def state_dict(self) -> dict[str, Any]:
        state = {"python": random.getstate()}
        if numpy := sys.modules.get("numpy"):
            state["numpy"] = numpy.random.get_state()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        random.setstate(state["python"])
        if "numpy" in state:
            import numpy

            numpy.random.set_state(state["numpy"])

    def seed(self, seed: int) -> None:
        """Begins anew; seed: 0 … 2^64-1."""
        random.seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed([seed >> 32, seed & 0xFFFFFFFF])


def copy_whole(thing: Any, state: Any) -> Callable[[], None]:
    """Copies the state of a thing, and returns what puts it back."""
    kept = deepcopy(state)
    return lambda: thing.load_state_dict(deepcopy(kept))


def used_positions(piece: samples.MicroBatch, first: int) -> range:
    """The positions of a piece; a filler uses the first of its step."""
    return range(piece.first, piece.first + piece.samples) if piece.samples else range(first, first + 1)


def _checked(state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if state is None:
        return None
    for name, thing in state.items():
        if type(name) is not str or name.startswith(_OWN):
            raise ValueError(f"state[{name!r}]: a name is a text that does not start with {_OWN}")
        for method in "state_dict", "load_state_dict":
            if not callable(getattr(thing, method, None)):
                raise TypeError(f"state[{name!r}] is a {type(thing).__name__}, which has no {method}()")
    return dict(state)


def _forget_frames(error: BaseException | None, seen: frozenset[int] = frozenset()) -> None:
    """Lets go of what the functions that an error came through held in their variables: models
    wrapped for a world that is over, and with them its connections."""
    if error is None or id(error) in seen:
        return
    seen |= {id(error)}
    traceback.clear_frames(error.__traceback__)
    for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
        _forget_frames(other, seen)


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics as numbers, without those that are not finite: the agent takes no others, and
    a loss that has become infinite is the program's to judge."""
    numbers = {name: float(value) for name, value in metrics.items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
