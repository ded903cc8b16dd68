"""What a training program imports to train under the Concertina operator.

`join()` is the smallest form, for any framework: a program that is started anew in each world, and is told when to save.
`join(state=…)` gives a loop over steps that goes on from world to world in the same process. This module knows no framework, and
leaves the exchange of gradients to the program; `concertina.torch` is the same for PyTorch, and exchanges them. Programs
that only read RANK and its companions need none of these.
"""

from collections.abc import Mapping
from typing import Any, overload

from concertina import stopping
from concertina.agent import AgentError
from concertina.job import Job
from concertina.step import Step
from concertina.world import Change, World

__all__ = ["AgentError", "Change", "Job", "Step", "World", "join"]


@overload
def join(*, total_steps: int = 0, env: Mapping[str, str] = ...) -> stopping.Job: ...


@overload
def join(state: Mapping[str, Any], *, seed: int = 0) -> Job: ...


def join(state: Mapping[str, Any] | None = None, *, seed: int = 0, **options: Any) -> Job | stopping.Job:
    """Greets the agent, if there is one, and returns the job: without a state one that says when to stop, see
    concertina.stopping.join(); with a state the one whose steps this program makes, see Job.

    state: what training changes, by name: objects with state_dict() and load_state_dict(). A state_dict() may hold
    numbers, texts, containers, bytes and NumPy arrays. seed: 0 … 2^64-1, of the order of the samples and of random
    numbers: those of Python and NumPy begin anew in each step, different ones on each rank.

    Raises AgentError when the agent cannot be talked to or is of another version, TypeError for an object without those
    methods, ValueError for a seed out of range.
    """
    if state is None:
        if seed:
            raise TypeError("join(seed=…) without a state: name what training changes, join(state={…}, seed=…)")
        return stopping.join(**options)
    if options:
        raise TypeError(
            f"join(state=…, {next(iter(options))}=…): with a state it takes seed only; job.steps(max_steps=…) says when training ends, and "
            "backend is an option of concertina.torch.join"
        )
    return Job(state, seed=seed)
