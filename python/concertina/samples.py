"""Which rank trains on which sample, as the section "Samples" of docs/program-protocol.md says.

Everything here is a function of its arguments, without I/O. The position of a sample in an
epoch is computed, not looked up, so an epoch of 2^62 samples costs no more memory than one of ten.

The permutation is a Feistel network on the smallest even number of bits that holds every position,
walked until it lands on a position of the epoch. With 64-bit words that wrap around:

    G      = 0x9E3779B97F4A7C15
    mix(z) : z ← (z xor z>>30) · 0xBF58476D1CE4E5B9
             z ← (z xor z>>27) · 0x94D049BB133111EB
             z xor z>>31
    key    = mix(mix(seed + G) + (epoch + 1)·G)
    k[i]   = mix(key + (i + 1)·G)                       i = 0 … 5
    h      = max(1, ceil(bits/2)), bits = number of bits of n-1
    one walk of x:  L, R ← x >> h, x & (2^h - 1)
                    six times:  L, R ← R, L xor (mix(R + k[i]) & (2^h - 1))
                    x ← L << h | R

mix is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
Generators, 2014).
"""

import operator
import sys
from typing import Any, NamedTuple

MAX_SAMPLES = 2**62
"""The largest number of samples in an epoch."""

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 6
_FEW = 32
_AHEAD = 1024


def whole(name: str, value: Any) -> int:
    """A number that a program gives for something of this name. Raises TypeError for what is no whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: it must be a whole number") from None


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _WORD
    return z ^ (z >> 31)


class Permutation:
    """The order of the samples in one epoch: a bijection of the positions 0 … n-1."""

    def __init__(self, seed: int, epoch: int, n: int):
        """seed: 0 … 2^64-1; epoch: from 0; n: samples in the epoch, 1 … 2^62.

        Raises ValueError outside these ranges.
        """
        if not 0 <= seed <= _WORD:
            raise ValueError(f"seed is {seed}: it must be from 0 to 2^64-1")
        if not 0 <= epoch < _WORD:
            raise ValueError(f"epoch is {epoch}: it must be from 0 to 2^64-2")
        if not 1 <= n <= MAX_SAMPLES:
            raise ValueError(f"an epoch of {n} samples: it must have from 1 to 2^62")
        key = _mix((_mix((seed + _GOLDEN) & _WORD) + (epoch + 1) * _GOLDEN) & _WORD)
        self._keys = [_mix((key + (i + 1) * _GOLDEN) & _WORD) for i in range(_ROUNDS)]
        self._half = max(1, -(-(n - 1).bit_length() // 2))
        self._n = n

    def __call__(self, position: int) -> int:
        """The sample at a position. Raises IndexError for a position outside 0 … n-1."""
        if not 0 <= position < self._n:
            raise IndexError(f"position {position} in an epoch of {self._n} samples")
        half, mask = self._half, (1 << self._half) - 1
        x = position
        while True:
            left, right = x >> half, x & mask
            for key in self._keys:
                left, right = right, left ^ (_mix((right + key) & _WORD) & mask)
            x = left << half | right
            if x < self._n:
                return x


    def of(self, positions: range) -> list[int]:
        """The samples at positions, a range with a step of 1. Raises IndexError when one is outside 0 … n-1.

        With NumPy, where the program uses it, many cost little more than one.
        """
        numpy = sys.modules.get("numpy")
        if numpy is None or len(positions) < _FEW:
            return [self(position) for position in positions]
        for end in positions[0], positions[-1]:
            if not 0 <= end < self._n:
                raise IndexError(f"position {end} in an epoch of {self._n} samples")
        found = numpy.arange(positions[0], positions[-1] + 1, dtype=numpy.uint64)
        walks = numpy.arange(len(found))
        while len(walks):
            found[walks] = self._walk(numpy, found[walks])
            walks = walks[found[walks] >= self._n]
        return found.tolist()

    def _walk(self, numpy: Any, x: Any) -> Any:
        """One walk of many at once, as arrays of 64-bit words, which wrap around."""
        word = numpy.uint64
        half, mask = word(self._half), word((1 << self._half) - 1)
        left, right = x >> half, x & mask
        for key in self._keys:
            z = right + word(key)
            z = (z ^ (z >> word(30))) * word(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> word(27))) * word(0x94D049BB133111EB)
            left, right = right, left ^ ((z ^ (z >> word(31))) & mask)
        return left << half | right


class Order:
    """The order of the samples in one epoch, worked out for many positions at a time: the next steps use the next ones."""

    def __init__(self, seed: int, epoch: int, n: int):
        """As for Permutation."""
        self._permutation, self._n = Permutation(seed, epoch, n), n
        self._first = 0
        self._samples: list[int] = []

    def of(self, positions: range) -> list[int]:
        """As Permutation.of()."""
        if not self._first <= positions.start <= positions.stop <= self._first + len(self._samples):
            most = _AHEAD if "numpy" in sys.modules else 0
            end = max(positions.stop, min(positions.start + most, self._n))
            self._samples = self._permutation.of(range(positions.start, end))
            self._first = positions.start
        return self._samples[positions.start - self._first : positions.stop - self._first]


class MicroBatch(NamedTuple):
    """A piece of one rank's part of a step."""

    first: int
    """Position of its first sample in the epoch."""
    samples: int
    """How many samples; 0 for a filler, which exists so that all ranks do the same work."""
    weight: float
    """What its mean loss is multiplied with, so that the average over ranks of the sum over
    micro-batches is the mean over the whole batch."""


def micro_batches(first: int, size: int, world: int, rank: int, most: int) -> list[MicroBatch]:
    """What one rank computes in the step whose batch is the positions first … first+size-1.

    world: ranks; most: samples in a micro-batch at most. Every rank gets the same number of
    pieces, whatever its share.
    """
    start, end = rank * size // world, (rank + 1) * size // world
    pieces = []
    for i in range(-(-(-(-size // world)) // most)):
        low, high = min(start + i * most, end), min(start + (i + 1) * most, end)
        pieces.append(MicroBatch(first + low, high - low, (high - low) * world / size))
    return pieces


def steps_per_epoch(n: int, global_batch: int) -> int:
    """Steps in an epoch of n samples; the last one may be smaller than global_batch."""
    return -(-n // global_batch)
