"""One item of a program's loop."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from concertina import plan, samples
from concertina.agent import MAX_METRICS, METRIC_NAME
from concertina.gate import Phase
from concertina.shards import Rank
from concertina.world import World

if TYPE_CHECKING:
    from concertina.job import Job


class Work(NamedTuple):
    """What one rank does in a step."""

    number: int
    batch: plan.Batch
    pieces: Sequence[samples.MicroBatch]
    evaluates: bool


class Step:
    """One optimizer update as one rank sees it, or an evaluation.

    Use it in a with block, which is a transaction: when a rank is lost meanwhile the block ends early, what it did to
    the state is taken back, and the loop gives the same step again in the next world, or an older one.
    """

    def __init__(self, job: "Job", work: Work):
        self.number = work.number
        """Which update of the whole training this is, counted from 1; of an evaluation, the last one before it."""
        self.epoch = work.batch.epoch
        """The epoch it belongs to, counted from 0."""
        self.ends_epoch = work.batch.ends_epoch
        """Whether it is the last of its epoch."""
        self.evaluates = work.evaluates
        """Whether the program is to evaluate its model: an item of the loop of its own, in which nothing is trained."""
        self.samples = work.batch.samples
        """Samples of the whole step, over all ranks."""
        self.batch = work.batch
        """Where they are in the epoch."""
        self.world: World = job.world
        """Who takes part."""
        self.dealt: Rank = job._dealt()
        """Whose part of data this process takes, as the loop deals samples out: number, 0 … of-1. That is the rank, or the worker where
        its processes compute together: data[step.dealt.number :: step.dealt.of] in an evaluation."""
        self.committed = False
        """Whether it is done for good, once its with block has ended."""
        self.metrics: dict[str, Any] = {}
        """What was reported in it."""
        self._job = job
        self._pieces = work.pieces
        self._read = False

    def __enter__(self) -> "Step":
        self._job._open(self)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        return self._job._close_step(self, error)

    def micro_batches(self) -> Iterator[Any]:
        """This rank's part of the step, in batches of at most micro_batch samples: none, if there are more ranks than
        samples. Can be used once in a step.

        Added up over all batches of all ranks, the sums over samples divided by Step.samples are the mean over the
        whole batch.
        """
        if self.evaluates:
            raise RuntimeError("micro_batches() in an evaluation: it trains on nothing (step.evaluates says so)")
        if self._read:
            raise RuntimeError("micro_batches() can be used once in a step")
        self._read = True
        return self._batches()

    def begin_update(self) -> None:
        """Says that the program changes its state from here to the end of the step.

        From the first call on it promises to change nothing of the state elsewhere in a step; random numbers and
        job.values() are put back. When a rank is lost, the others then go on with the state that they have, unless they
        were past this point: the step is made again, and none before it. Without such a call everybody goes
        back to a snapshot. What can take long or fail, such as talking to other ranks, comes before it.
        """
        self._job._begin_update()

    def waits(self) -> AbstractContextManager[None]:
        """A with block in which the program does nothing but wait for other ranks, or exchange something with them.

        What it takes is left out of the time that this rank works, by which those are found that keep the others
        waiting. With PyTorch the exchange of gradients is known already; a program without it is compared once it has said
        so. All waits must stand in such blocks: one that does not looks like work. So a model that exchanges in its
        forward pass, as SyncBatchNorm does, is not compared usefully.

        It belongs to the thread that trains, and to a step: in another thread and in an evaluation it does nothing. A block
        around the step.backward() that exchanges counts as work but for that exchange. Time is the host's: on a GPU
        synchronise the device before the block, so that its work so far is not in it, and at its end, so that the exchange is.
        """
        return self._job._work.waits()

    def report(self, **metrics: Any) -> None:
        """Shows numbers in the job's status once the step is done, for example report(loss=loss). Those of an evaluation say how good
        the state is, in a job that keeps its best checkpoints (spec.checkpoint.storage.best).

        A number is anything that float() takes; it is read only when a report is due, about once
        a second. Rank 0's numbers are shown. Names: up to 32 letters, digits and `_`, at most 8
        of them in a training; ValueError otherwise.
        """
        if metrics.keys() <= self._job.metrics.keys():
            self.metrics.update(metrics)
            return
        for name in metrics:
            if not METRIC_NAME.fullmatch(name):
                raise ValueError(f"the metric {name!r}: a name has up to 32 letters, digits and _")
        if len(self._job.metrics.keys() | self.metrics.keys() | metrics.keys()) > MAX_METRICS:
            raise ValueError(f"more than {MAX_METRICS} metrics: report fewer, under the same names each time")
        self.metrics.update(metrics)

    def _batches(self) -> Iterator[Any]:
        for piece in self._pieces:
            if piece.samples:
                yield self._load(piece)

    def _load(self, piece: samples.MicroBatch) -> Any:
        gate = self._job.gate
        gate.phase(Phase.DATA)
        batch = self._job._batch(self, piece)
        gate.phase(Phase.STEP)
        return batch
