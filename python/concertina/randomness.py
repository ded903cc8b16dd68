"""Python's and NumPy's random numbers: begun anew for each step, so that nobody has to keep or hand on a state of them."""

import hashlib
import random
import sys


def seed_of(seed: int, what: str, *numbers: int) -> int:
    """The seed, 0 … 2^64-1, of what is drawn for something: of what one rank draws in a step, so that ranks draw different
    numbers, and a step that is made again draws the same ones."""
    name = f"{seed} {numbers} {what}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


def reseed(seed: int) -> None:
    """Begins anew; seed: 0 … 2^64-1."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed((seed ^ seed >> 32) & 0xFFFFFFFF)
