"""What the examples of this folder train on: points of which a small network learns the sign of a sum."""

import argparse
import json
import os

import numpy

SAMPLES = 480
GLOBAL_BATCH = 48  # 1, 2, 3 and 4 ranks divide it, and it divides SAMPLES
EPOCHS = 3
STEPS = EPOCHS * SAMPLES // GLOBAL_BATCH
FEATURES = 5

_random = numpy.random.default_rng(1)
X = _random.standard_normal((SAMPLES, FEATURES), dtype=numpy.float32)
Y = (X.sum(axis=1) > 0).astype(numpy.int64)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", default="checkpoints", help="a folder that every worker sees")
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="least time of a step")
    return parser.parse_args()


def tell(step: int, loss: float, samples: object) -> None:
    """Prints what a step of this rank was made of."""
    names = ("CONCERTINA_ROUND", 0), ("RANK", 0), ("WORLD_SIZE", 1)
    world, rank, size = (int(os.environ.get(name, default)) for name, default in names)
    numbers, loss = [int(sample) for sample in samples], getattr(loss, "item", lambda: loss)()
    line = {"step": step, "round": world, "rank": rank, "size": size, "loss": loss, "samples": numbers}
    print(json.dumps(line), flush=True)
