"""A folder of checkpoints that a program writes itself, of which one that was cut off is never taken for whole.

Where a program is started anew in each world it goes on from a checkpoint of its own. The folder is on a volume that
every worker sees. What is in it under its final name is complete:

    checkpoints = Checkpoints("/checkpoints")
    step, path = checkpoints.newest()              # (0, None) at the very beginning
    ...
    with checkpoints.saving(step, barrier=accelerator.wait_for_everyone) as path:
        accelerator.save_state(path)               # all ranks write below path, or rank 0 alone

A program that stays in its process from world to world gives its rank of now: Checkpoints(folder, rank=step.world.rank).

The best ones by a number stay as well, for whoever evaluates the model:

    checkpoints = Checkpoints("/best", keep=1, best=3, lowest=True)     # of losses; without lowest the highest
    with checkpoints.saving(step, barrier, score=loss) as path:
        ...
    step, path = Checkpoints("/best", lowest=True).best()
"""

import contextlib
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from concertina.samples import whole

_MAX_STEP = 10**18
_NAME = re.compile(r"step-(0|[1-9]\d{0,17})")
_SCORE = re.compile(_NAME.pattern + r"\.score")
_LEFT = re.compile(_NAME.pattern + r"(\.score)?\.(part|old)")  # What was cut off while it was made, or removed.
_ORDERS = {1: "highest", -1: "lowest"}


class Checkpoints:
    """Checkpoints of one job, by the number of steps done."""

    def __init__(
        self, folder: str | os.PathLike, *, keep: int = 2, best: int = 0, lowest: bool = False, rank: int | None = None
    ):
        """folder: made when it is not there. keep: how many complete ones stay, at least 1, the newest. best: how many stay
        because they are the best, those with the highest scores, of which the newest may be one; lowest: those with the lowest,
        as of a loss. With best=0 no scores are written, and what has one already stays. rank: of this process, by default
        what RANK says, or 0 outside of a job. Raises TypeError for numbers that are not whole; ValueError for keep below 1, best
        below 0, no rank where the agent gives none (a worker that has joined a running job), and scores in the folder that
        were written with another lowest; OSError when the folder cannot be made."""
        if whole("keep", keep) < 1:
            raise ValueError(f"keep is {keep}: at least one checkpoint must stay")
        if whole("best", best) < 0:
            raise ValueError(f"best is {best}: it is how many of the best checkpoints stay, 0 for none")
        if rank is None and "RANK" not in os.environ and "CONCERTINA_SOCKET" in os.environ:
            raise ValueError("RANK is not set, as this worker has joined a running job: give Checkpoints(rank=step.world.rank)")
        self.folder, self._keep, self._best, self._sign = Path(folder), keep, best, -1 if lowest else 1
        self._rank = int(os.environ.get("RANK", 0)) if rank is None else whole("rank", rank)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._scored()

    def newest(self) -> tuple[int, str | None]:
        """The steps done in the newest complete checkpoint, and its path; (0, None) when there is none."""
        steps = self._complete()
        return (steps[-1], str(self._path(steps[-1]))) if steps else (0, None)

    def best(self) -> tuple[int, str | None]:
        """The steps done in the complete checkpoint with the best score, and its path; (0, None) when none has one. Of
        several the newest. Raises ValueError where scores were written with another lowest."""
        scored = self._scored()
        return (scored[-1], str(self._path(scored[-1]))) if scored else (0, None)

    @contextlib.contextmanager
    def saving(
        self, step: int, barrier: Callable[[], object] = lambda: None, *, score: float | None = None
    ) -> Iterator[str]:
        """A path for a checkpoint after so many steps, which gets its name when the body has ended on every rank.

        The path does not exist; the body makes a file or a folder of it. barrier returns once all ranks have called it:
        torch.distributed.barrier or its like, and nothing in a program of one rank. Every rank calls saving, whether it
        writes or not. When the body raises nothing is kept. What is saved now stays, even below the newest: a program that goes
        back to an older one removes those after it first, which newest() names else.

        score: how good it is, for best(); that of rank 0 counts. None, and what is not finite, is no score.

        Raises TypeError or ValueError for a step that is no number from 0, or a score that is no number; FileNotFoundError on
        rank 0 when nothing is there once the body has ended, and OSError on rank 0, as when the volume is full: the others
        stand in the barrier then until rank 0 has ended.
        """
        if not 0 <= whole("step", step) < _MAX_STEP:
            raise ValueError(f"saving({step}): a step is a number from 0 to 10^18-1")
        score = _number(score)
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
            self._set_aside(self._path(step))
            self._note(step, score)
            os.replace(part, self._path(step))
            _sync(self.folder)
            self._tidy(step)
        barrier()

    def _note(self, step: int, score: float) -> None:
        """Writes down the score of a checkpoint that has no name yet: one that has a name has its score."""
        path = self._score_path(step)
        path.unlink(missing_ok=True)
        if not self._best or not math.isfinite(score):
            return
        part = path.with_name(path.name + ".part")
        part.write_text(f"{score!r} {_ORDERS[self._sign]}", encoding="ascii")
        _sync(part)
        os.replace(part, path)

    def _tidy(self, saved: int) -> None:
        """Removes what is neither new nor good, scores of what is not there, and what was left when a program was cut off."""
        complete, scored = self._complete(), self._scored()
        stay = {saved, *complete[-self._keep :], *scored[max(0, len(scored) - self._best) if self._best else 0 :]}
        for old in complete:
            if old not in stay:
                self._set_aside(self._path(old))
        for name in os.listdir(self.folder):
            score = _SCORE.fullmatch(name)
            if score and int(score[1]) not in stay or _LEFT.fullmatch(name):
                _remove(self.folder / name)

    def _set_aside(self, path: Path) -> None:
        """Takes a checkpoint its name, before it is removed: one of which a part is gone has none."""
        aside = path.with_name(path.name + ".old")
        _remove(aside)
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, aside)

    def _scored(self) -> list[int]:
        """The complete checkpoints that have a score, the best one last."""
        found = []
        for step in self._complete():
            try:
                said, _, order = self._score_path(step).read_text(encoding="ascii").partition(" ")
                score = float(said)
            except (OSError, ValueError):
                continue
            if order in _ORDERS.values() and order != _ORDERS[self._sign]:
                raise ValueError(
                    f"the {order} scores in {self.folder} are the best: give lowest={order == 'lowest'} to Checkpoints"
                )
            if math.isfinite(score):
                found.append((self._sign * score, step))
        return [step for _, step in sorted(found)]

    def _score_path(self, step: int) -> Path:
        return self.folder / f"step-{step}.score"

    def _complete(self) -> list[int]:
        found = (_NAME.fullmatch(name) for name in os.listdir(self.folder))
        return sorted(int(match[1]) for match in found if match)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step}"


def _number(score: float | None) -> float:
    """A score; what is none is not finite."""
    if isinstance(score, str | bytes):
        raise TypeError(f"score is {score!r}: it must be a number")
    try:
        return math.nan if score is None else float(score)
    except OverflowError:
        raise ValueError(f"score is {score!r}: it must be a number that a float can hold") from None


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
