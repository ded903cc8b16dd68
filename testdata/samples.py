"""Writes samples.json, the test vectors of the section "Samples" of docs/program-protocol.md.

It is written from that page alone and imports neither SDK, so that the vectors do not come from
the code that they check. Run it in this directory: python3 samples.py > samples.json
"""

import json

WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & WORD
    return z ^ (z >> 31)


def permute(seed, epoch, n, x):
    key = mix((mix((seed + GOLDEN) & WORD) + (epoch + 1) * GOLDEN) & WORD)
    keys = [mix((key + (i + 1) * GOLDEN) & WORD) for i in range(6)]
    half = max(1, -(-(n - 1).bit_length() // 2))
    mask = 2**half - 1
    while True:
        left, right = x >> half, x & mask
        for k in keys:
            left, right = right, left ^ (mix((right + k) & WORD) & mask)
        x = left << half | right
        if x < n:
            return x


def permutation(seed, epoch, n, positions=None):
    positions = list(range(n)) if positions is None else positions
    samples = [permute(seed, epoch, n, x) for x in positions]
    return {"seed": seed, "epoch": epoch, "n": n, "positions": positions, "samples": samples}


def rank_part(first, size, world, rank, micro):
    start, end = rank * size // world, (rank + 1) * size // world
    count = -(-(-(-size // world)) // micro)
    pieces = []
    for i in range(count):
        lo, hi = min(start + i * micro, end), min(start + (i + 1) * micro, end)
        pieces.append({"first": first + lo, "samples": hi - lo, "weight": (hi - lo) * world / size})
    return {"first": first + start, "samples": end - start, "microBatches": pieces}


def plan(n, batch, world, micro):
    steps = []
    for cursor in range(0, n, batch):
        size = min(batch, n - cursor)
        ranks = [rank_part(cursor, size, world, r, micro) for r in range(world)]
        steps.append({"first": cursor, "samples": size, "ranks": ranks})
    return {"n": n, "globalBatch": batch, "world": world, "microBatch": micro, "steps": steps}


def main():
    permutations = [
        permutation(seed, epoch, n)
        for n in (1, 2, 3, 4, 5, 17, 100)
        for seed, epoch in ((0, 0), (0, 1), (1, 0), (WORD, 3))
    ]
    for n in (1438, 2**20, 2**32 + 15, 2**53 + 1, 2**62 - 57, 2**62):
        ends = [0, 1, 2, 3, n // 3, n // 2, n - 2, n - 1]
        for seed, epoch in ((0, 0), (42, 7), (2**63 + 11, 2**32 + 1)):
            permutations.append(permutation(seed, epoch, n, ends))
    plans = [
        plan(*shape)
        for shape in (
            (1, 1, 1, 1),
            (10, 4, 1, 4),
            (10, 4, 2, 2),
            (10, 4, 3, 1),
            (10, 4, 3, 2),
            (10, 10, 4, 2),
            (2, 8, 5, 3),  # fewer samples than ranks: some of them run fillers only
            (100, 32, 6, 4),
            (100, 32, 7, 32),
            (257, 128, 4, 64),
        )
    ]
    lines = ['{"permutations": [']
    lines.append(",\n".join(json.dumps(p) for p in permutations))
    lines.append('], "plans": [')
    lines.append(",\n".join(json.dumps(p) for p in plans))
    lines.append("]}")
    print("\n".join(lines))


main()
