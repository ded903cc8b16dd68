"""Writes shards.json, the test vectors of how a state in shards is put together anew: which part each piece of an interval is taken
from, and what is asked for of a part.

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


def joined(intervals, most):
    """What lies in the intervals, as at most so many of them: the narrowest hole is filled as long as there are too many."""
    covered = {at for interval in intervals for at in range(*interval)}
    while True:
        found = []
        for at in sorted(covered):
            if found and found[-1][1] == at:
                found[-1][1] = at + 1
            else:
                found.append([at, at + 1])
        if len(found) <= most:
            return found
        holes = [(after[0] - before[1], before[1], after[0]) for before, after in zip(found, found[1:])]
        _, start, end = min(holes)
        covered |= {*range(start, end)}


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
    joins = []
    for _ in range(100):
        intervals = [sorted(draw.choices(range(40), k=2)) for _ in range(draw.randrange(9))]
        most = draw.randrange(1, 6)
        joins.append({"intervals": intervals, "most": most, "joined": joined(intervals, most)})
    print(json.dumps({"plans": [{"want": want, "parts": parts, "moves": plan(want, parts)} for want, parts in plans], "joins": joins}))


if __name__ == "__main__":
    main()
