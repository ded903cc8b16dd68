"""Ranks of groups, each in a process of its own."""

import contextlib
import importlib
import pickle
import sys
import tempfile

import torch
import torch.distributed as dist

from concertina.groups import Groups
from tests_torch import forkserver


def together(module, *cases):
    """What run(rank, size, **options) of a module returns in each rank, for each of the cases, which are a size and options. Raises
    AssertionError where one fails."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/asked", "wb") as asked:
            pickle.dump((module, cases), asked)
        most, ranks = max(size for size, _ in cases), []
        with contextlib.ExitStack() as stack:
            errors = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(most)]
            for rank in range(most):
                ranks.append(forkserver.start([__file__, folder, rank], {"PYTHONPATH": ":".join(sys.path)}, stderr=errors[rank]))
                stack.callback(ranks[-1].wait)
                stack.callback(ranks[-1].kill)
            for rank in ranks:
                rank.wait(300)
            assert not any(rank.returncode for rank in ranks), "\n".join(map(_text, errors))
        found = []
        for rank in range(most):
            with open(f"{folder}/{rank}", "rb") as answer:
                found.append(pickle.load(answer))
        return [[found[rank][number] for rank in range(size)] for number, (size, _) in enumerate(cases)]


def _text(file):
    file.seek(0)
    return file.read()


def main(folder, rank):
    torch.set_num_threads(1)
    with open(f"{folder}/asked", "rb") as asked:
        module, cases = pickle.load(asked)
    run, answers = importlib.import_module(module).run, []
    for number, (size, options) in enumerate(cases):
        answer = None
        if rank < size:
            dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{number}", rank=rank, world_size=size)
            answer = run(rank, size, **options)
            dist.barrier()  # Others may still get something from it.
            Groups("gloo").leave()  # which waits for no thread that waits for the interpreter's lock
        answers.append(answer)
    with open(f"{folder}/{rank}", "wb") as file:
        pickle.dump(answers, file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
