"""A training job as its program sees it: a loop over steps, whatever world each of them is made in."""

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from concertina import plan as plans
from concertina import randomness, samples, snapshot
from concertina.agent import numbers
from concertina.gate import Phase
from concertina.member import Guard, Member
from concertina.plan import Plan
from concertina.progress import Progress, progress
from concertina.session import WorldChanged
from concertina.shards import Rank
from concertina.step import Step, Work
from concertina.values import Values
from concertina.worktime import Waited, WorkTime, share_of
from concertina.world import Assignment, Change, World

_Call = TypeVar("_Call", bound=Callable[[Change], object])

_IDENTITY = {"batch": "global_batch", "data": "len(data)", "shards": "shards"}
"""What a snapshot says of its training, by the name that the program knows it under."""


class Job(Member):
    """A training job; made by join().

        job = concertina.join(state={"model": model}, seed=0)
        for step in job.steps(data, global_batch=128, epochs=30):
            with step:
                for batch in step.micro_batches():
                    ...
                step.report(loss=loss)

    Under Concertina the world comes from the agent, and it changes between two steps: the loop just goes on.
    Anywhere else the world comes from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and is a
    world of one when they are not set.

    The same seed gives the same samples in each step, whatever the number of ranks.
    """

    _step_type: type[Step] = Step

    def __init__(self, state: Mapping[str, Any], *, seed: int = 0):
        seed = samples.whole("seed", seed)
        samples.Permutation(seed, 0, 1)  # refuses a seed out of range
        self._seed = seed
        self._plan: Any = None  # a Plan, or that of a stream
        self._load: Callable[[Step, range], Any] | None = None
        self._evaluated = False  # in this world, at this place
        self._reported = 0  # the step after which an evaluation was reported last
        self._passed = False  # the gate before the next step
        self._fresh = True  # until the first step of a world has begun
        self._guard = Guard(self)
        self._work = WorkTime()
        self._present: Step | None = None
        self._looping = self._by_worlds = False
        self._progress: Progress | None = None
        self._on_change: list[Callable[[Change], object]] = []
        self._told: tuple[World | None, int] | None = None  # world and step that the next change is told from
        self.metrics: dict[str, Any] = {}
        """What was reported last, by name."""
        super().__init__(state)

    @property
    def world(self) -> World:
        """Who takes part at present; after the loop, in the last world. Raises RuntimeError before the loop."""
        if self._world is None:
            raise RuntimeError("no world yet: the first one is there in the loop over job.steps(…)")
        return self._world

    @property
    def total_steps(self) -> int:
        """Steps of the whole training; 0 before job.steps(…), and while a stream has not said how long it is."""
        plan, place = self._plan, self._place
        if plan is None:
            return 0
        return plan.total or (place.step if plan.over(place) else 0)

    def values(self, **first: Any) -> Values:
        """Small values that live outside of the state's objects, by name and as they are in the beginning:

            best = job.values(accuracy=0.0)
            best.accuracy = max(best.accuracy, accuracy)

        They are numbers, texts, None, and containers of these; TypeError for others. They are kept in snapshots, and
        put back when a step or an evaluation is made again.
        """
        self._values._begin(first)
        return self._values

    def steps(
        self,
        data: Sequence,
        *,
        global_batch: int,
        micro_batch: int | None = None,
        epochs: int | None = None,
        max_steps: int | None = None,
        evaluate: str | int | None = None,
        collate: Callable[[list], Any] | None = None,
    ) -> Iterator[Step]:
        """The steps of the training that are left. Each is used in a with block; see Step.

        data has a length and is indexed by number; collate makes a batch of a list of samples (default: the list
        itself). global_batch counts the samples of a step over all ranks; micro_batch bounds what one rank computes at
        once (default: its whole part). The training ends after so many epochs or max_steps steps, what comes first.

        evaluate: "epoch" or a number of steps, after which the loop gives an item in which the program evaluates, before
        the next step; and one after the last step. When the world changes before that next step is done, what the
        evaluation changed is put back and it is made again.

        Raises ValueError for a value out of range, data without samples, or a snapshot of another training; TypeError for
        data without a length or samples by number, and for what is no whole number.
        """
        self._refuse_data(data)
        self._start(
            self._planned(
                data, global_batch=global_batch, micro_batch=micro_batch, epochs=epochs, max_steps=max_steps,
                evaluate=evaluate,
            )
        )  # fmt: skip
        self._load = self._loader_of(data, collate)
        return self._loop()

    def worlds(self) -> Iterator[World]:
        """The worlds of the training, one after another, for what has to be built anew in each:

            for world in job.worlds():
                group = make_groups(world)
                for step in job.steps(…):
                    ...

        The loop over steps ends when its world does, and the next time goes on where it was.
        """
        if self._looping or self._by_worlds or self._over:
            raise RuntimeError("job.worlds() goes around the loop over job.steps(…), once")
        self._by_worlds = True
        return self._loop_over_worlds()

    def on_change(self, call: _Call) -> _Call:
        """Has the loop call this in each world from now on, also in the first, before the world's first step: to write down
        how large it is, or to make something fit its size. Returns the function, so that it can stand above one:

            @job.on_change
            def fit(change):
                for group in opt.param_groups:
                    group["lr"] = base * change.world.size

        change.before is the world before, or None; change.world the one that begins; change.lost how many steps are made
        again. See Change.

        All ranks of the world make the call, those that have come new as well, with the state at which the world begins, so
        they may exchange something in it. All wait until each has made it: what it takes is a part of the pause of a change.

        What it changes of the state must be the same on all ranks, so it has to follow from change.world alone: before is
        None on those that have come new, and what is in the state may be of an older world. So `base * change.world.size`
        and not a factor on the rate that is there.

        It is the program's as a step is: what it raises ends the program, unless the world has ended, and then all calls are
        made anew in the next one, which tell the change since the last world in which all of them returned. Several are
        called in the order in which they were named. Raises TypeError for what cannot be called, and for an `async def`.
        """
        if not callable(call):
            raise TypeError(f"on_change() got a {type(call).__name__}: give a function of one argument, the Change")
        if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None)):
            raise TypeError("on_change() got an async def, and nobody awaits it: give a function that is done when it returns")
        self._on_change.append(call)
        return call

    # What a framework adds.

    def _refuse_data(self, data: Any) -> None:
        """Raises TypeError for what the loop cannot read."""
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise TypeError(f"data is a {type(data).__name__}: it must have a length and samples by number")

    def _planned(self, data: Any, **options: Any) -> Plan:
        """The plan of a training on this data."""
        return plans.plan(len(data), **options)

    def _dealt(self) -> Rank:
        """Which one of those that samples are dealt out to this process is."""
        return Rank(self.world.rank, self.world.size)

    def _coming(self) -> plans.Batch:
        """What the next step trains on."""
        return self._plan.batch(self._place)

    def _begin_step(self, step: Step) -> None:
        """A step or an evaluation is about to be given to the program."""

    def _whole(self, step: Step) -> bool:
        """Whether a step that raised nothing has done what it should. Raises RuntimeError where it was used wrongly."""
        return True

    def _waited(self) -> Waited:
        """What this rank has waited for others in the step, beside step.waits()."""
        return 0 if self._work.told else None

    def _reseed(self, seed: int) -> None:
        randomness.reseed(seed)

    def _loader_of(self, data: Sequence, collate: Callable[[list], Any] | None) -> Callable[[Step, range], Any]:
        """What makes the batch of a range of positions of a step's epoch."""
        fetch = self._fetcher(data, collate)
        order = functools.lru_cache(maxsize=1)(lambda epoch: samples.Order(self._seed, epoch, len(data)))
        return lambda step, positions: fetch(order(step.epoch).of(positions))

    def _fetcher(self, data: Sequence, collate: Callable[[list], Any] | None) -> Callable[[list[int]], Any]:
        def fetch(numbers: list[int]) -> Any:
            batch = [data[number] for number in numbers]
            return collate(batch) if collate else batch

        return fetch

    # The loop.

    def _start(self, plan: Plan) -> None:
        if self._over:
            raise RuntimeError("the training of this job is over: join() again for another one")
        if self._looping:
            raise RuntimeError("a loop over job.steps(…) is under way")
        if self._plan not in (None, plan):
            raise ValueError(f"the training was {self._plan}, and is {plan} in this world: ask for the same one in each")
        self._plan = plan
        self._check_loaded()
        self.gate.last_step(plan.total)
        if self._there:
            self._say_unscored()
        if self._there and self._live.clean:
            self._live.settled()  # Now it is known whether an evaluation comes first.

    def _loop(self) -> Iterator[Step]:
        self._looping = True
        try:
            while not self._over:
                if not self._there:
                    if self._by_worlds:
                        return
                    self._enter()
                elif step := self._next():
                    self._present = step
                    yield step
                    self._work.rest()
                    if self._present is step:
                        raise RuntimeError("a step of the loop over job.steps(…) is used in a with block: with step: …")
        except BaseException:
            self._close()
            raise
        finally:
            self._looping = False

    def _loop_over_worlds(self) -> Iterator[World]:
        try:
            while not self._over:
                if self._there or self._enter():
                    world = self.world
                    yield world
                    if self._there and self.world is world and not self._over:
                        raise RuntimeError("a world without its steps: loop over job.steps(…) in it until that ends")
        except BaseException:
            self._close()
            raise

    def _next(self) -> Step | None:
        with self._guard:
            return self._advance()
        return None  # The world has ended.

    def _advance(self) -> Step | None:
        """The next item of the loop; None when training is over, or this process is needed in another world."""
        plan, place = self._plan, self._place
        over = plan.over(place)
        evaluates = self._evaluates_first() and not self._evaluated
        if over and not evaluates:
            self._finish()
            return None
        # The gate comes before an evaluation: who stands there has made none, and who has passed makes it and the step
        # after it. So all do, or nobody, and those who join take part.
        if not over and not self._passed:
            self._pass(place.step + 1)
        dealt = self._dealt()
        if evaluates:
            self.gate.phase(Phase.EVAL)
            batch = plans.Batch(place.epoch, place.cursor, 0, plan.ended(place))
            work = Work(place.step, batch, (), True)
        else:
            batch = self._coming()
            self._work.go()
            self._live.begin()
            self.gate.phase(Phase.STEP)
            work = Work(place.step + 1, batch, plan.part(batch, dealt.of, dealt.number), False)
        self._reseed(randomness.seed_of(self._seed, "evaluation" if evaluates else "step", work.number, dealt.number))
        step = self._step_type(self, work)
        self._begin_step(step)
        if evaluates and self._best:
            self._keeper.evaluated(place.step)
        return step

    def _pass(self, number: int) -> None:
        """The gate before a step."""
        if number > self._keeper.due:
            self._keeper.consider(number - 1)
        if self.gate.enter(number):
            self._halt(number - 1)
        if self._live.doubtful:
            self._stand_still()
            self._live.go_on()
        self._passed = True
        if self._fresh:
            self._fresh = False
            self.gate.begun()

    def _batch(self, step: Step, piece: samples.MicroBatch) -> Any:
        return self._load(step, used_positions(piece, step.batch.first))

    def _enter_world(self, assigned: Assignment) -> None:
        # A world that ends before all calls have returned has told nobody the whole: the next one tells it too.
        self._told = self._told or (self._world, self._place.step)
        super()._enter_world(assigned)
        self._tell_change()

    def _tell_change(self) -> None:
        """Tells the program of the world that has begun, where its state is there."""
        before, done = self._told
        change = Change(before, self.world, max(0, done - self._place.step))
        for call in [*self._on_change]:
            call(change)
        self._told = None

    def _enters(self) -> None:
        self._evaluated = self._passed = False
        self._fresh = True
        self._work.enter()
        self.gate.last_step(self.total_steps)
        self._say_unscored()
        if self._progress is None and self._session.agent is None and not self.world.rank:
            self._progress = progress()

    def _evaluates_first(self) -> bool:
        return self._plan is not None and self._plan.evaluates(self._place)

    # A step's transaction.

    def _open(self, step: Step) -> None:
        if step is not self._present:
            raise RuntimeError("a with block around a step that is over: the loop gives each of them once")

    def _close_step(self, step: Step, error: BaseException | None) -> bool:
        """Ends a step's with block, which raised this error; whether that is to be swallowed."""
        if error is None:
            try:
                self._commit(step)
            except BaseException as own:
                self._present = None
                if self._broken(own):
                    return False
                raise
        self._present = None
        return error is not None and self._broken(error)

    def _commit(self, step: Step) -> None:
        if not self._whole(step):
            raise WorldChanged
        step.committed = True
        first_time = True
        if step.evaluates:
            self._evaluated = True
            first_time = self._reported < step.number
            self._reported = max(self._reported, step.number)
            if not self.world.rank:
                numbers(step.metrics)  # What is no number ends the program here, whether an agent hears of it or not.
            self._say_score(step)
            self.gate.phase(Phase.STEP)
        else:
            self._place = self._plan.after(self._place, step.batch)
            self._passed = self._evaluated = False
            self._live.settled()
            mine = sum(piece.samples for piece in step._pieces)
            self._work.done(self._waited(), share_of(step.samples, self._dealt().of, mine))
            self.gate.done(self._place.step, self._place.samples, self._work.total)
        if first_time:
            self.metrics.update(step.metrics)
            self._report_progress(last=False)

    # The end.

    def _close(self) -> None:
        super()._close()
        if self._progress:
            self._progress.close()
            self._progress = None

    def _check_loaded(self) -> None:
        if self._plan is None:
            return
        for name, what in _IDENTITY.items():
            own = self._plan.identity.get(name, "none")
            if self._loaded.get(name, own) != own:
                raise snapshot.SnapshotError(
                    f"the snapshot is of a training with {what}={self._loaded[name]}, this one has {what}={own}: its next "
                    "samples would not be those that are left"
                )

    def _finish(self) -> None:
        """Ends the training, unless somebody is lost before all have."""
        if self._best and self._evaluated:
            self.gate.phase(Phase.SAVING)  # It takes as long as it takes.
            self._keeper.settle()
        self._take_apart()
        self._report_progress(last=True)
        self.gate.phase(Phase.FINISHED)
        evaluated = self._copy_small() if self._evaluated else []
        self._live.leave()  # For those who may need the state after the last step.
        if self._session.finish(self._place.step, self._live.clean, self._save_left):
            for put_back in evaluated:
                put_back()
            self._close()

    @property
    def _best(self) -> str:
        """The metric by which the job keeps its best checkpoints; empty for none."""
        return self._session.agent.best if self._session.agent else ""

    def _say_score(self, step: Step) -> None:
        """Says what an evaluation has found."""
        name = self._best
        if not name or self.world.rank:
            return
        agent, found = self._session.agent, ", ".join(sorted(step.metrics)) or "nothing"
        if name not in step.metrics:
            agent.score_missing(step.number, f"evaluations report {found}, and spec.checkpoint.storage.best wants {name}")
        elif math.isfinite(value := numbers({name: step.metrics[name]})[name]):
            agent.score(step.number, value)
        else:
            agent.score_missing(step.number, f"an evaluation reports {name}={value}, which is no better or worse than others")

    def _say_unscored(self) -> None:
        """Says that there will be no scores."""
        if self._best and self._plan and self._plan.evaluate is None and not self.world.rank:
            self._session.agent.score_missing(
                self._place.step, f"job.steps() is given no evaluate=, and spec.checkpoint.storage.best wants {self._best} of evaluations"
            )

    def _position(self) -> dict[str, int]:
        known = {name: self._loaded[name] for name in _IDENTITY if name in self._loaded}
        if self._plan:
            known = self._plan.identity
        return self._place.numbers() | {"total": self.total_steps, "seed": self._seed} | known

    def _report_progress(self, last: bool) -> None:
        agent = self._session.agent
        if self.world.rank:
            return
        if self._progress:
            self._progress.show(self._place.step, self.total_steps, self.metrics, last)
        if agent and self.metrics and (last or agent.progress_due()):
            agent.progress(self.total_steps, _finite(self.metrics))


def used_positions(piece: samples.MicroBatch, first: int) -> range:
    """The positions of a piece; a filler uses the first of its step."""
    return range(piece.first, piece.first + piece.samples) if piece.samples else range(first, first + 1)


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics as numbers, without those that are not finite: the agent takes no others, and
    a loss that has become infinite is the program's to judge."""
    found = numbers(metrics)
    return {name: value for name, value in found.items() if math.isfinite(value)}
