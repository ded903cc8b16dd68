"""A DataLoader whose workers read ahead, and which still starts again at the right sample."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

from concertina import samples


class Loader:
    """Batches of a data set in the order in which a Run uses them; made by Run.loader()."""

    def __init__(self, data: Dataset, options: dict[str, Any]):
        self.data = data
        """The data set."""
        self._plan = _Plan()
        if options.get("num_workers", 0) > 0:
            options = {"persistent_workers": True} | options
        self._loader = DataLoader(data, batch_sampler=self._plan, **options)

    def __len__(self) -> int:
        return len(self.data)

    def batches(self, ahead: Callable[[], Iterator[range]], order: samples.Permutation) -> Callable[[range], Any]:
        """What gives the batch of a range of positions. ahead lists the ranges that will be asked
        for, in this order; of those that are left out the batch is thrown away."""
        self._plan.ahead = lambda: (order.of(positions) for positions in ahead())
        return _Reader(self._loader, ahead()).read


class _Plan:
    """The batch sampler: the workers take from it what they are to read, and run ahead."""

    ahead: Callable[[], Iterator[list[int]]] | None = None

    def __iter__(self) -> Iterator[list[int]]:
        return self.ahead()


class _Reader:
    def __init__(self, loader: DataLoader, ahead: Iterator[range]):
        self._loader = loader
        self._ahead = ahead
        self._batches: Iterator | None = None

    def read(self, positions: range) -> Any:
        if self._batches is None:
            self._batches = iter(self._loader)
        for coming in self._ahead:
            batch = next(self._batches)
            if coming == positions:
                return batch
        raise RuntimeError("micro_batches() can be used once in a step")
