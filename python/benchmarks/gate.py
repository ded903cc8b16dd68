"""What the SDK costs in each step: python3 benchmarks/gate.py prints nanoseconds, the best of several
runs, so that what else the machine does is not counted.

gate_python_ns is the gate alone. step_python_ns is all that a program pays for an empty step of one
micro-batch: the loop, the transaction, micro_batches(), random numbers begun anew, phases and gate. sample_python_ns is what
each sample adds: its place in the order of the epoch, and being fetched from a list.
"""

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import concertina  # noqa: E402
from tests.fakeagent import FakeAgent, world  # noqa: E402

STEPS, RUNS, BATCH = 20_000, 15, 256


class Samples:
    """So many samples, all the same one."""

    def __init__(self, count: int):
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:
        return 0


def gate_alone() -> float:
    """Nanoseconds of one step's gate: entered, stop and done, over the real shared page."""
    with FakeAgent(world(writer=False)) as agent:
        os.environ["CONCERTINA_SOCKET"] = agent.path
        best = float("inf")
        job = concertina.join({})
        for step in job.steps(Samples(1), global_batch=1, max_steps=1):
            with step:
                for _ in range(RUNS):
                    begin = time.perf_counter_ns()
                    for number in range(1, STEPS + 1):
                        job._pass(number)
                        job.gate.done(number, number)
                    best = min(best, (time.perf_counter_ns() - begin) / STEPS)
        return best


def whole_steps(batch: int, steps: int) -> float:
    """Nanoseconds of a step in which a program does nothing with a batch of this size: the best of RUNS epochs."""
    with FakeAgent(world(writer=False)) as agent:
        os.environ["CONCERTINA_SOCKET"] = agent.path
        best, begin = float("inf"), time.perf_counter_ns()
        for step in concertina.join({}).steps(Samples(batch * steps), global_batch=batch, epochs=RUNS):
            with step:
                for _ in step.micro_batches():
                    pass
            if step.ends_epoch:
                now = time.perf_counter_ns()
                best, begin = min(best, (now - begin) / steps), now
        return best


def main() -> None:
    gate = gate_alone()
    one, many = whole_steps(1, STEPS // 10), whole_steps(BATCH, STEPS // 100)
    print(f"gate_python_ns {gate:.0f} ns")
    print(f"step_python_ns {one:.0f} ns")
    print(f"sample_python_ns {(many - one) / (BATCH - 1):.0f} ns")


main()
