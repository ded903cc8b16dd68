"""The smallest form: a program that is started anew in each world, and loses nothing in a planned change.

    import concertina

    job = concertina.join()
    for step, batch in ...:            # from where its own checkpoint is
        train(batch)
        if job.should_stop(step):      # the same answer on every rank, for the same step
            save()
            job.exit()

It suits any framework, since it is all that the program adds: ranks and the master's address are in the
environment, and the checkpoint is the program's own. The job has `resize.strategy: Restart`. docs/program-protocol.md
says what is told to the agent meanwhile.
"""

import math
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from concertina import health
from concertina.agent import MAX_METRICS, METRIC_NAME, Agent, AgentError, numbers
from concertina.gate import Phase
from concertina.samples import whole

_MAX_STEP = 2**62


class Job:
    """This process's part in a job whose programs are started anew in each world. It is for one thread."""

    def __init__(self, agent: Agent | None, total_steps: int, size: str = ""):
        """size: what WORLD_SIZE says."""
        self._agent = agent
        self._size = size
        self._step = -1
        self._leaving = False
        self._finished = False
        self._total_steps = total_steps
        self._metrics: dict[str, float] = {}
        if agent and total_steps:
            agent.gate.last_step(total_steps)

    def should_stop(self, step: int) -> bool:
        """Whether the program is to save its state, and to call exit(), since the world is about to change.

        Every rank calls it after each optimizer update, with the number of that update: from 0 or 1, one more each
        time, and after a restart one more than in the checkpoint. All ranks get the same answer for the same step.
        While they wait for each other, and for the operator's word, the call does not return; that can take as long
        as spec.checkpoint.timeout, and ends with False when the change is called off. Otherwise it costs about a
        microsecond.

        It may be called after every k-th update only: the world then changes after one of those, and the call takes
        no longer. All ranks have to call it after the same ones. After the last update, which total_steps names, it returns
        False, and the job's status shows that step.

        Raises ValueError for a step that is not more than the one before, or is not within 0 … 2^62-1; AgentError
        when the agent goes away while the program waits for its word; RuntimeError, the first time, where each rank trains by
        itself, since PyTorch's processes were to meet by MPI. Without an agent it returns False.
        """
        step = whole("step", step)
        if not self._step < step < _MAX_STEP:
            raise ValueError(
                f"should_stop({step}) after should_stop({self._step}): it is called once after each update, with its number"
                if step <= self._step and self._step >= 0
                else f"should_stop({step}): a step is a number from 0 to 2^62-1"
            )
        first, self._step = self._step < 0, step
        agent = self._agent
        if agent is None or self._finished or agent.gone:
            return self._leaving
        if first:
            _refuse_lonely(self._size)
        gate = agent.gate
        gate.done(step, 0)
        if first:
            gate.begun()
        if step == self._total_steps:
            return False  # What follows it begins no step, and nothing is left to go on with in another world.
        stop = gate.enter(step + 1)
        while agent.leaves and not self._leaving and 0 < stop <= step:
            self._stand(agent, step)
            stop = gate.stop()
        return self._leaving

    def exit(self) -> NoReturn:
        """Ends the process with code 0, by SystemExit. After should_stop() has returned True it says that the state is
        saved: the program is then started anew in the next world. Otherwise it is an end like any other, by which
        training is over once every rank has ended.
        """
        if self._agent and self._leaving:
            self._agent.say("left", step=self._step)
        self.close()
        sys.exit(0)

    def finished(self) -> None:
        """Says that training is over: no world changes any more, and should_stop() returns False. What follows, such as
        a test of the model, ends undisturbed. A program that just ends with code 0 need not call it."""
        if self._agent and not self._finished and not self._leaving:
            self._agent.gate.phase(Phase.FINISHED)
            self._agent.say("finished", step=max(self._step, 0))
        self._finished = True

    def report(self, **metrics: Any) -> None:
        """Shows numbers in the job's status, for example report(loss=loss).

        A number is anything that float() takes; it is read only when a report is due, about once a second. Rank 0's
        numbers are shown. ValueError for a name that is not up to 32 letters, digits and `_`, or more than 8 of them.
        """
        for name in metrics:
            if not METRIC_NAME.fullmatch(name):
                raise ValueError(f"the metric {name!r}: a name has up to 32 letters, digits and _")
        if len(self._metrics.keys() | metrics.keys()) > MAX_METRICS:
            raise ValueError(f"more than {MAX_METRICS} metrics: report fewer, under the same names each time")
        self._metrics.update(metrics)
        if self._agent and self._agent.progress_due():
            finite = {name: value for name, value in numbers(self._metrics).items() if math.isfinite(value)}
            self._agent.progress(self._total_steps, finite)

    def close(self) -> None:
        """Ends the connection to the agent: the world changes as if the program had never called join(). A second call
        does nothing. It is not needed before the program ends."""
        if self._agent:
            self._agent.close()
            self._agent = None

    def _stand(self, agent: Agent, step: int) -> None:
        """Stands at the barrier until the agent says something about it."""
        agent.say("parked", step=step)
        while True:
            message, fds = agent.wait()
            for fd in fds:
                os.close(fd)
            if message.get("type") == "leave":
                self._leaving = True
            if message.get("type") in ("leave", "go"):
                return


def join(*, total_steps: int = 0, env: Mapping[str, str] = os.environ) -> Job:
    """Says to the worker's agent that this process can be told to stop. Call it once in each process, before training.

    total_steps is the number of the last step, shown in the job's status; 0 when it is not known. Without
    CONCERTINA_SOCKET in the environment, outside Concertina, there is no agent, and nothing ever stops the program.

    Raises AgentError when the agent cannot be talked to or refuses, as in a job with resize.strategy InPlace, where
    another process of the worker has the same LOCAL_RANK, or was joined twice; ValueError when LOCAL_RANK is no number,
    or total_steps not within 0 … 2^62-1.
    """
    total_steps = whole("total_steps", total_steps)
    if not 0 <= total_steps < _MAX_STEP:
        raise ValueError(f"total_steps is {total_steps}: it must be from 0 to 2^62-1")
    path = env.get("CONCERTINA_SOCKET")
    if not path:
        return Job(None, total_steps)
    text = env.get("LOCAL_RANK", "0")
    try:
        local_rank = int(text)
    except ValueError:
        raise ValueError(f"LOCAL_RANK is {text!r}: it must be a number") from None
    health.check_first()
    return Job(Agent(path, local_rank, leaves=True), total_steps, env.get("WORLD_SIZE", ""))


def _refuse_lonely(size: str) -> None:
    """Raises RuntimeError for a world of PyTorch's that was formed by MPI without mpirun: each process is in one of its own then, and
    trains as if nothing were wrong."""
    group = getattr(sys.modules.get("torch"), "distributed", None)
    if group is None or not group.is_available() or not group.is_initialized() or not size.isdecimal():
        return
    if group.get_backend() == "mpi" and group.get_world_size() == 1 < int(size):
        raise RuntimeError(
            f"each of the {size} ranks trains alone: PyTorch's processes were to meet by MPI, and no mpirun has started them. Accelerate and "
            'the Trainer take it on processors where PyTorch has it: name gloo, by Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")]), '
            'TrainingArguments(ddp_backend="gloo") or init_process_group("gloo")'
        )


__all__ = ["AgentError", "Job", "join"]
