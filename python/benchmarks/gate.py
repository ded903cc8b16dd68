"""What the gate costs in each step: python3 benchmarks/gate.py prints nanoseconds, the best of
several runs, so that what else the machine does is not counted."""

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from concertina.run import Run  # noqa: E402
from tests.fakeagent import FakeAgent, world  # noqa: E402

STEPS, RUNS = 20_000, 15


def measure(run: Run) -> float:
    """Nanoseconds of one step's gate: entered, stop and done, over the real shared page."""
    begin = time.perf_counter_ns()
    for number in range(1, STEPS + 1):
        run._pass(number)
        run.gate.done(number, number)
    return (time.perf_counter_ns() - begin) / STEPS


def main() -> None:
    with FakeAgent(world(writer=False)) as agent:
        os.environ["CONCERTINA_SOCKET"] = agent.path
        run = Run(epochs=1, global_batch=1)
        best = run(lambda _: min(measure(run) for _ in range(RUNS)))
    print(f"gate_python_ns {best:.0f} ns")


main()
