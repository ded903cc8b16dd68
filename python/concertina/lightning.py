"""Concertina for Lightning's Trainer: one callback.

    from concertina.lightning import ElasticCallback

    elastic = ElasticCallback("/checkpoints", every=50)
    trainer = Trainer(max_epochs=10, callbacks=[elastic])
    trainer.fit(net, ckpt_path=elastic.newest())

A planned change of the world stops all ranks after the same step; a checkpoint is saved, and the program is started
anew in the next world. Lightning begins an epoch's data from its front after that, whatever it has used: with
concertina.Batches the order belongs to the job instead (docs/frameworks.md).
"""

import math
import os
from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    from pytorch_lightning import Callback, LightningModule, Trainer

from concertina.checkpoints import Checkpoints
from concertina.stopping import Job, join

__all__ = ["ElasticCallback"]


class ElasticCallback(Callback):
    """Saves every so many steps and before a planned change; ends the program then, with code 0."""

    def __init__(self, folder: str | os.PathLike, every: int = 0, keep: int = 2, job: Job | None = None):
        """folder: of checkpoints, on a volume that every worker sees. every: how many steps lie between two of them, for
        the loss of a worker; 0 for none but those before planned changes. keep: how many stay. job: what
        concertina.join() gave, where the program has called that already; otherwise the callback calls it when
        training begins.

        Raises ValueError for negative numbers, OSError when the folder cannot be made.
        """
        if every < 0:
            raise ValueError(f"every is {every}: a number of steps is wanted, or 0")
        self._checkpoints, self._every = Checkpoints(folder, keep=keep), every
        self._job = job
        self._step = 0

    def newest(self) -> str | None:
        """The newest checkpoint that is whole, for ckpt_path; None when there is none."""
        return self._checkpoints.newest()[1]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes note of the steps that a checkpoint has brought. Raises what concertina.join() raises."""
        self._step = trainer.global_step
        last = trainer.estimated_stepping_batches
        self._job = self._job or join(total_steps=int(last) if math.isfinite(last) else 0)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        """Asks whether to stop, after each update of the optimizer. After the last nothing stops it, and nothing is saved."""
        step = trainer.global_step
        if step == self._step:
            return  # a batch whose gradients are accumulated is no step
        self._step = step
        stop = self._job.should_stop(step)
        last = step >= trainer.estimated_stepping_batches
        if stop or (self._every and step % self._every == 0 and not last):
            with self._checkpoints.saving(step, trainer.strategy.barrier) as path:
                trainer.save_checkpoint(path)
        if stop:
            self._job.exit()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says that no world changes any more."""
        self._job.finished()
