"""The run of a training program through its world: join, call, report, finish."""

import contextlib
import math
import os
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from concertina import samples
from concertina.agent import MAX_METRICS, METRIC_NAME, Agent
from concertina.gate import GatePage, NoGatePage, Phase
from concertina.world import World, from_environment

_MAX_STEP = 2**62


class Step:
    """One optimizer update, as one rank sees it."""

    def __init__(self, run: "Run", number: int, epoch: int, load: Callable, pieces: Sequence, first: int):
        self.number = number
        """Which update of the whole training this is, counted from 1."""
        self.epoch = epoch
        """The epoch it belongs to, counted from 0."""
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
            if piece.samples:
                batch = self._load(range(piece.first, piece.first + piece.samples))
            else:
                batch = self._load(range(self._first, self._first + 1))
            gate.phase(Phase.STEP)
            yield batch, piece.weight

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

        run = Run(epochs=30, global_batch=128, seed=0)

        def train(world):
            for epoch in run.epochs():
                for step in run.steps(data):
                    for batch, weight in step.micro_batches():
                        ...
                    step.report(loss=loss)

        run(train)

    Under Concertina the world comes from the agent. Anywhere else it comes from RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT, and is a world of one when they are not set.

    The same seed gives the same samples in each step, whatever the number of ranks.
    """

    def __init__(self, *, epochs: int, global_batch: int, micro_batch: int | None = None, seed: int = 0):
        """epochs and global_batch: at least 1. global_batch counts the samples of a step over all
        ranks; micro_batch bounds what one rank computes at once (default: its whole part). seed:
        0 … 2^64-1. Raises ValueError for a value out of range.
        """
        for name, value in ("epochs", epochs), ("global_batch", global_batch), ("micro_batch", micro_batch):
            if value is not None and not 1 <= value < _MAX_STEP:
                raise ValueError(f"{name} is {value}: it must be at least 1")
        samples.Permutation(seed, 0, 1)  # refuses a seed out of range
        self._epochs = epochs
        self._global_batch = global_batch
        self._micro_batch = micro_batch or global_batch
        self._seed = seed
        self._epoch: int | None = None
        self._entered = 0
        self._samples = 0
        self._total_steps = 0
        self._metrics: dict[str, Any] = {}
        self._world: World | None = None
        self._agent: Agent | None = None
        self.gate: GatePage | NoGatePage = NoGatePage()

    def __call__(self, train: Callable[[World], Any]) -> Any:
        """Joins the world, calls train with it, and reports how that ended.

        Returns what train returns. An exception of train is reported as the reason why the
        program failed, and raised again. Raises AgentError when the agent cannot be talked to,
        ValueError when RANK and its companions describe no world.
        """
        if self._world is not None:
            raise RuntimeError("this Run has trained already: make another one")
        try:
            with self._faults_reported():
                self._world = self._join()
                result = train(self._world)
                self._leave()
            self._finish()
            return result
        finally:
            if self._agent:
                self._agent.close()
                self._agent, self.gate = None, NoGatePage()

    def epochs(self) -> Iterator[int]:
        """The numbers of the epochs to train, from 0."""
        self._need_world("epochs()")
        for epoch in range(self._epochs):
            self._epoch = epoch
            yield epoch
        self._epoch = None

    def steps(self, data: Sequence, collate: Callable[[list], Any] | None = None) -> Iterator[Step]:
        """The steps of the present epoch over data, which has a length and is indexed by number.

        collate makes a batch of a list of samples (default: the list itself). A step counts as
        done when the next one is asked for. Raises ValueError for data without a sample, or with
        another length than in the epoch before.
        """
        self._need_world("steps()")
        if self._epoch is None:
            raise RuntimeError("steps() outside an epoch: call it in a loop over epochs()")
        n = len(data)
        self._plan(n)
        order = samples.Permutation(self._seed, self._epoch, n)
        fetch = self._fetcher(data, collate)

        def load(positions: range) -> Any:
            return fetch([order(position) for position in positions])

        for first in range(0, n, self._global_batch):
            size = min(self._global_batch, n - first)
            self._entered = number = self._entered + 1
            self.gate.entered(number)
            self.gate.phase(Phase.STEP)
            pieces = samples.micro_batches(first, size, self._world.size, self._world.rank, self._micro_batch)
            yield self._make_step(number, self._epoch, load, pieces, first)
            self._samples += size
            self.gate.done(number, self._samples)

    @property
    def total_steps(self) -> int:
        """Steps of the whole training; 0 before the first call of steps()."""
        return self._total_steps

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Says for the time of a with block that the program evaluates its model."""
        self.gate.phase(Phase.EVAL)
        yield
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
        """Takes apart what _form built, after training has gone well."""

    def _fetcher(self, data: Sequence, collate: Callable[[list], Any] | None) -> Callable[[list[int]], Any]:
        def fetch(numbers: list[int]) -> Any:
            batch = [data[number] for number in numbers]
            return collate(batch) if collate else batch

        return fetch

    def _make_step(self, *args: Any) -> Step:
        return Step(self, *args)

    # The rest of a run's life.

    def _join(self) -> World:
        path = os.environ.get("CONCERTINA_SOCKET")
        if not path:
            world, listener = from_environment(), None
        else:
            self._agent = Agent(path, _local_rank(os.environ))
            self.gate = self._agent.gate
            self.gate.phase(Phase.FORMING)
            world, listener = self._agent.join()
            if world.from_step:
                raise RuntimeError(f"the world goes on from step {world.from_step}, and this SDK starts at 0 only")
        self._form(world, listener)
        return world

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

    def _report_progress(self, last: bool) -> None:
        if not self._agent or self._world.rank or not self._metrics:
            return
        if last or self._agent.progress_due():
            self._agent.progress(self._total_steps, _finite(self._metrics))

    @contextlib.contextmanager
    def _faults_reported(self) -> Iterator[None]:
        try:
            yield
        except SystemExit as error:
            if self._agent and error.code not in (None, 0):
                self._agent.fault(self._entered, f"SystemExit: {error.code}")
            raise
        except Exception as error:
            if self._agent:
                self._agent.fault(self._entered, "".join(traceback.format_exception(error)))
            raise

    def _finish(self) -> None:
        self._report_progress(last=True)
        self.gate.phase(Phase.FINISHED)
        if self._agent:
            self._agent.finished()

    def _need_world(self, what: str) -> None:
        if self._world is None:
            raise RuntimeError(f"{what} outside the training function: call it in the function given to run(…)")


def _local_rank(env: Mapping[str, str]) -> int:
    text = env.get("LOCAL_RANK", "0")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"LOCAL_RANK is {text!r}: it must be a number") from None


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics as numbers, without those that are not finite: the agent takes no others, and
    a loss that has become infinite is the program's to judge."""
    numbers = {name: float(value) for name, value in metrics.items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
