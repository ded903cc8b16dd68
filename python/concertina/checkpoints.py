"""A folder of checkpoints that a program writes itself, of which one that was cut off is never taken for whole.

Where a program is started anew in each world it goes on from a checkpoint of its own. The folder is on a volume that
every worker sees. What is in it under its final name is complete:

    checkpoints = Checkpoints("/checkpoints")
    step, path = checkpoints.newest()              # (0, None) at the very beginning
    ...
    with checkpoints.saving(step, barrier=accelerator.wait_for_everyone) as path:
        accelerator.save_state(path)               # all ranks write below path, or rank 0 alone
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from concertina.samples import whole

_MAX_STEP = 10**18
_NAME = re.compile(r"step-(\d{1,18})")


class Checkpoints:
    """Checkpoints of one job, by the number of steps done."""

    def __init__(self, folder: str | os.PathLike, *, keep: int = 2, rank: int | None = None):
        """folder: made when it is not there. keep: how many complete ones stay, at least 1. rank: of this process,
        by default what RANK says, or 0. Raises ValueError for keep below 1, OSError when the folder cannot be made."""
        if keep < 1:
            raise ValueError(f"keep is {keep}: at least one checkpoint must stay")
        self.folder, self._keep = Path(folder), keep
        self._rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        self.folder.mkdir(parents=True, exist_ok=True)

    def newest(self) -> tuple[int, str | None]:
        """The steps done in the newest complete checkpoint, and its path; (0, None) when there is none."""
        steps = self._complete()
        return (steps[-1], str(self._path(steps[-1]))) if steps else (0, None)

    @contextlib.contextmanager
    def saving(self, step: int, barrier: Callable[[], object] = lambda: None) -> Iterator[str]:
        """A path for a checkpoint after so many steps, which gets its name when the body has ended on every rank.

        The path does not exist; the body makes a file or a folder of it. barrier returns once all ranks have called it:
        torch.distributed.barrier or its like, and nothing in a program of one rank. Every rank calls saving, whether it
        writes or not. When the body raises nothing is kept.

        Raises TypeError or ValueError for a step that is no number from 0, FileNotFoundError on rank 0 when nothing is there
        once the body has ended.
        """
        if not 0 <= whole("step", step) < _MAX_STEP:
            raise ValueError(f"saving({step}): a step is a number from 0 to 10^18-1")
        part = self.folder / f"step-{step}.part"
        if self._rank == 0:
            _remove(part)
        barrier()
        yield str(part)
        barrier()
        if self._rank == 0:
            if not part.exists():
                raise FileNotFoundError(
                    f"nothing was saved at {part}: the body writes to the path that it is given, on a volume that rank 0 sees"
                )
            _settle(part)
            _remove(self._path(step))
            os.replace(part, self._path(step))
            _sync(self.folder)
            for old in self._complete()[: -self._keep]:
                _remove(self._path(old))
        barrier()

    def _complete(self) -> list[int]:
        found = (_NAME.fullmatch(name) for name in os.listdir(self.folder))
        return sorted(int(match[1]) for match in found if match)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step}"


def _settle(path: Path) -> None:
    """Has what lies under path written out, so that a machine that is lost right after its renaming takes nothing."""
    for folder, _, files in os.walk(path):
        for name in files:
            _sync(Path(folder, name))
        _sync(Path(folder))
    if path.is_file():
        _sync(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
