"""The samples of each step, the same for any number of ranks, for loops that belong to somebody else.

A framework that deals out samples by itself does so by the number of ranks, and starts at the front of an epoch. With
Batches the order belongs to the job: which samples step k uses follows from (seed, k) alone, so whoever goes on after
step k, with as many ranks as there are then, uses what is left and nothing twice. It is the order of the loop of concertina.torch.
"""

import os
from collections.abc import Iterator

from concertina.samples import Permutation, steps_per_epoch, whole


class Batches:
    """This rank's part of each step's batch, as lists of the numbers of samples.

    It is a `batch_sampler` of torch.utils.data.DataLoader, and can be iterated by anything else:

        loader = DataLoader(data, batch_sampler=Batches(len(data), 48, done=step))
        for batch in loader: ...        # what is left of the epoch of step + 1; again: the epoch after it

    Do not let a framework deal the batches out a second time: leave the loader out of `accelerator.prepare`, and give
    Lightning `use_distributed_sampler=False`.
    """

    def __init__(
        self,
        samples: int,
        global_batch: int,
        *,
        seed: int = 0,
        done: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        size: int | None = None,
    ):
        """samples: how many there are, 1 … 2^62, by number from 0. global_batch: how many a step uses, over all ranks.

        done: the steps of the whole training that are done; the first batch is that of step done + 1. drop_last: leave
        out the last step of an epoch when it has fewer samples than global_batch. rank, size: this process's place;
        by default what RANK and WORLD_SIZE say, and alone without them.

        With fewer samples than ranks, or a number of them that the ranks do not divide, parts differ by one sample: a
        mean over ranks of their mean losses is then not quite the mean over samples. A global_batch that every number
        of ranks divides (`spec.workers.sizes` names those) keeps it exact.

        Raises TypeError for what is no whole number, ValueError for numbers out of range, and when some rank would get no
        sample in some step.
        """
        self._rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        self._size = int(os.environ.get("WORLD_SIZE", 1)) if size is None else size
        if not 0 <= self._rank < self._size:
            raise ValueError(f"rank {self._rank} of {self._size}: it must be from 0 to size-1")
        samples, global_batch, done = whole("samples", samples), whole("global_batch", global_batch), whole("done", done)
        if samples < 1 or global_batch < 1 or done < 0:
            raise ValueError(f"samples {samples}, global_batch {global_batch}, done {done}: at least 1, 1 and 0 are wanted")
        self._samples, self._batch, self._seed = samples, min(global_batch, samples), seed
        self._steps = samples // self._batch if drop_last else steps_per_epoch(samples, self._batch)
        last = min(self._batch, samples - (self._steps - 1) * self._batch)
        if last < self._size:
            raise ValueError(
                f"the last step of an epoch has {last} samples for {self._size} ranks: choose a larger global_batch, "
                "or drop_last=True"
            )
        Permutation(seed, 0, samples)  # which says what is wrong with the seed
        self._next = done

    def __len__(self) -> int:
        """How many steps a whole epoch has, whatever is left of this one."""
        return self._steps

    @property
    def done(self) -> int:
        """The steps before the one that comes next. Loaders read ahead: it is no count of steps that were made."""
        return self._next

    def __iter__(self) -> Iterator[list[int]]:
        """What is left of the present epoch. An epoch that was iterated to its end makes place for the next."""
        epoch = self._next // self._steps
        order = Permutation(self._seed, epoch, self._samples)
        while self._next // self._steps == epoch:
            first = self._next % self._steps * self._batch
            size = min(self._batch, self._samples - first)
            part = range(first + self._rank * size // self._size, first + (self._rank + 1) * size // self._size)
            self._next += 1
            yield order.of(part)
