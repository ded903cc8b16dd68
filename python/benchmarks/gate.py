"""What the SDK costs in each step: python3 benchmarks/gate.py prints nanoseconds, the best of several
runs, so that what else the machine does is not counted.

gate_python_ns is the gate alone. step_python_ns is all that a program pays for an empty step of one
micro-batch: steps(), micro_batches(), phases and gate. sample_python_ns is what each sample adds: its
place in the order of the epoch, and being fetched from a list.
"""

import os
import pathlib
import sys
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from concertina.run import Run  # noqa: E402
from tests.fakeagent import FakeAgent, world  # noqa: E402

STEPS, RUNS, BATCH = 20_000, 15, 256


def measure(run: Run) -> float:
    """Nanoseconds of one step's gate: entered, stop and done, over the real shared page."""
    begin = time.perf_counter_ns()
    for number in range(1, STEPS + 1):
        run._pass(number)
        run.gate.done(number, number)
    return (time.perf_counter_ns() - begin) / STEPS


class Samples:
    """So many samples, all the same one."""

    def __init__(self, count: int):
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:
        return 0


def whole_steps(batch: int, steps: int) -> float:
    """Nanoseconds of a step in which a program does nothing with a batch of this size."""

    def train(_):
        best = float("inf")
        for _ in run.epochs():
            begin = time.perf_counter_ns()
            for step in run.steps(data):
                for _ in step.micro_batches():
                    pass
            best = min(best, (time.perf_counter_ns() - begin) / steps)
        return best

    data = Samples(batch * steps)
    run = Run(epochs=RUNS, global_batch=batch)
    return under_agent(run, train)


def under_agent(run: Run, train: Callable) -> float:
    with FakeAgent(world(writer=False)) as agent:
        os.environ["CONCERTINA_SOCKET"] = agent.path
        return run(train)


def main() -> None:
    run = Run(epochs=1, global_batch=1)
    gate = under_agent(run, lambda _: min(measure(run) for _ in range(RUNS)))
    one, many = whole_steps(1, STEPS // 10), whole_steps(BATCH, STEPS // 100)
    print(f"gate_python_ns {gate:.0f} ns")
    print(f"step_python_ns {one:.0f} ns")
    print(f"sample_python_ns {(many - one) / (BATCH - 1):.0f} ns")


main()
