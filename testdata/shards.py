"""Writes shards.json, the test vectors of how a state in shards is put together anew: which part each piece of an interval is taken
from.

It goes from number to number and imports neither SDK, so that the vectors do not come from the code that they check. Run it in
this directory: python3 shards.py > shards.json
"""

import json
import random


def plan(want, parts):
    """The moves, of which each is the number of a part and an interval; None where some of it is in no part."""
    moves, serving = [], None
    for at in range(*want):
        if serving is None or at >= parts[serving][1]:
            serving = None
            for i, (start, end) in enumerate(parts):
                if start <= at < end and (serving is None or end > parts[serving][1]):
                    serving = i
            if serving is None:
                return None
            moves.append([serving, at, at])
        moves[-1][2] = at + 1
    return moves


def even(length, ranks):
    return [[r * length // ranks, (r + 1) * length // ranks] for r in range(ranks)]


def chunks(length, ranks):
    size = -(-length // ranks)
    return [[min(length, r * size), min(length, (r + 1) * size)] for r in range(ranks)]


def main():
    plans = []
    for cut in even, chunks:
        for length in 0, 1, 5, 13:
            for before, after in (4, 2), (4, 3), (4, 8), (3, 6), (1, 3), (3, 1):
                plans += [(want, cut(length, before)) for want in cut(length, after)]
    draw = random.Random(1)
    for _ in range(100):  # as parts may be that several have, or nobody
        parts = [sorted(draw.choices(range(20), k=2)) for _ in range(draw.randrange(1, 8))]
        plans.append((sorted(draw.choices(range(20), k=2)), parts))
    print(json.dumps({"plans": [{"want": want, "parts": parts, "moves": plan(want, parts)} for want, parts in plans]}))


if __name__ == "__main__":
    main()
