"""Concertina for the Trainer of Hugging Face's transformers: one callback.

    from concertina.transformers import ElasticCallback, newest

    trainer = Trainer(model, args, train_dataset=data, callbacks=[ElasticCallback()])
    trainer.train(resume_from_checkpoint=newest(args.output_dir))

A planned change of the world stops all ranks after the same step; the Trainer saves its checkpoint, and the program is
started anew in the next world. docs/frameworks.md says what becomes of samples, and how to keep the batch constant.
"""

import json
import os
import re

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from concertina.stopping import Job, join

__all__ = ["ElasticCallback", "newest"]

_NAME = re.compile(r"checkpoint-(\d{1,18})")
_WRITTEN_LAST = "trainer_state.json"


class ElasticCallback(TrainerCallback):
    """Stops the Trainer for a planned change, with a checkpoint; ends the program then, with code 0."""

    def __init__(self, job: Job | None = None):
        """job: what concertina.join() gave, where the program has called that already; otherwise the callback calls it
        when training begins."""
        self._job = job
        self._stopping = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Raises ValueError for settings with which a restart would not go on where training was, and what
        concertina.join() raises."""
        for name, harm in (
            ("save_only_model", "its checkpoints have no optimizer"),
            ("ignore_data_skip", "an epoch begins anew after each restart"),
        ):
            if getattr(args, name):
                raise ValueError(f"{name} is set, so {harm}: leave it out in a job whose world changes")
        self._job = self._job or join(total_steps=state.max_steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Asks whether to stop, after each update of the optimizer. After the last nothing stops it."""
        if self._job.should_stop(state.global_step):
            control.should_save = control.should_training_stop = self._stopping = True

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict, **_: object) -> None:
        """Shows the losses and the learning rate that the Trainer logs in the job's status."""
        shown = {name: logs[name] for name in ("loss", "eval_loss", "grad_norm", "learning_rate") if name in logs}
        self._job.report(**shown)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Ends the program when it was stopped: what follows trainer.train() belongs to the end of the training. At the
        end it says so, and no world changes any more."""
        if self._stopping:
            self._job.exit()
        self._job.finished()


def newest(output_dir: str | os.PathLike) -> str | None:
    """The newest checkpoint of a Trainer that is whole, for resume_from_checkpoint; None when there is none.

    A Trainer that was ended while it saved leaves a part of one, without what it writes last.
    """
    if not os.path.isdir(output_dir):
        return None
    found = filter(None, (_NAME.fullmatch(name) for name in os.listdir(output_dir)))
    for match in sorted(found, key=lambda match: int(match[1]), reverse=True):
        path = os.path.join(output_dir, match[0])
        if _is_whole(path):
            return path
    return None


def _is_whole(checkpoint: str) -> bool:
    try:
        with open(os.path.join(checkpoint, _WRITTEN_LAST), encoding="utf-8") as file:
            json.load(file)
    except (OSError, ValueError):
        return False
    return True
