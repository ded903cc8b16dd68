"""A DataLoader whose workers read ahead, and which still starts again at the right sample."""

import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from concertina import randomness
from concertina.step import Step

_OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


class Loader:
    """A DataLoader over a map-style data set, for job.steps(…): its workers read ahead.

    What they have read and nobody has used is read again in the next world, by whoever trains on it then.
    """

    def __init__(self, data: Dataset, **options: Any):
        """options are those of torch.utils.data.DataLoader, without batch_size, shuffle, sampler, batch_sampler and
        drop_last, which the job decides, and without in_order=False, which would mix up whose samples are whose.
        Raises ValueError for one of these.
        """
        for name in _OURS:
            if name in options:
                raise ValueError(f"Loader(…, {name}=…): the job decides which samples a batch has; see job.steps(…)")
        if options.get("in_order") is False:
            raise ValueError("Loader(…, in_order=False): samples would come for another step than theirs, and be lost in a change")
        self.data = data
        """The data set."""
        self._wanted = _Wanted()
        self._plan = _Plan()
        collate = options.pop("collate_fn", None) or default_collate
        options.setdefault("generator", torch.Generator())  # What it draws for its workers is none of the step's numbers.
        if options.get("num_workers", 0) > 0:
            options.setdefault("persistent_workers", True)
        self._loader = DataLoader(
            _Skipping(data, self._wanted), batch_sampler=self._plan, collate_fn=_Collate(collate), **options
        )
        self._reader: _Reader | None = None

    def __len__(self) -> int:
        return len(self.data)

    def read(self, step: Step, positions: range, ahead: Callable[[], Iterator["Part"]]) -> Any:
        """The batch at these positions of a step's epoch. ahead lists what will be asked for from the first of the
        step on, in this order; of what is left out the batch is thrown away."""
        if self._reader is None or self._reader.world is not step.world or self._reader.epoch != step.epoch:
            generation = self._wanted.next()
            self._plan.ahead = lambda: (_Batch(generation, part) for part in ahead())
            self._reader = _Reader(step, iter(self._loader), ahead())
        return self._reader.read(positions)


class _Wanted:
    """Which lists of samples are still wanted, as all workers see it: those of the newest generation."""

    def __init__(self) -> None:
        # Without a lock, which a worker that is killed would keep: one process writes this word, and others read it.
        self._value = multiprocessing.RawValue("Q", 0)

    def next(self) -> int:
        self._value.value += 1
        return self._value.value

    def __contains__(self, batch: "_Batch") -> bool:
        return batch.generation == self._value.value


class Part(NamedTuple):
    """What a batch is made of."""

    samples: list[int]
    """Their numbers."""
    positions: range
    """Their places in the epoch."""
    seed: int
    """Of what workers draw for it."""


class _Batch(list):
    """The numbers of samples of one batch."""

    def __init__(self, generation: int, part: Part):
        super().__init__(part.samples)
        self.generation, self.seed = generation, part.seed

    def __reduce__(self) -> tuple:
        return _Batch, (self.generation, Part(list(self), range(0), self.seed))


class _Skipping(Dataset):
    """Reads only what is still wanted: workers finish what is queued before they begin with what is new."""

    def __init__(self, data: Dataset, wanted: _Wanted):
        self._data = data
        self._wanted = wanted

    def __len__(self) -> int:
        return len(self._data)

    def __getitems__(self, batch: _Batch) -> list | None:
        if batch not in self._wanted:
            return None
        if get_worker_info():
            randomness.reseed(batch.seed)
            torch.default_generator.manual_seed(batch.seed)
        if hasattr(self._data, "__getitems__"):
            return self._data.__getitems__(list(batch))
        return [self._data[number] for number in batch]


class _Collate:
    def __init__(self, collate: Callable[[list], Any]):
        self._collate = collate

    def __call__(self, found: list | None) -> Any:
        return None if found is None else self._collate(found)


class _Plan:
    """The batch sampler: the workers take from it what they are to read, and run ahead."""

    ahead: Callable[[], Iterator[_Batch]] | None = None

    def __iter__(self) -> Iterator[_Batch]:
        return self.ahead()


class _Reader:
    def __init__(self, step: Step, batches: Iterator, ahead: Iterator[Part]):
        self.world, self.epoch = step.world, step.epoch
        self._batches = batches
        self._ahead = ahead

    def read(self, positions: range) -> Any:
        for coming in self._ahead:
            batch = next(self._batches)
            if coming.positions == positions:
                return batch
        raise RuntimeError("the data set is read in another order than that of the steps")
