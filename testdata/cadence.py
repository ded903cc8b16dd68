"""Writes cadence.json, the test vectors of the section "Snapshots" of docs/program-protocol.md: the steps in which a
periodic snapshot is due, and those after which the clock is read.

It is written from that page alone and imports neither SDK, so that the vectors do not come from the code that they
check. Run it in this directory: python3 cadence.py > cadence.json
"""

import json
import random

MS = 10**6
SECOND = 10**9


def stride(interval, mean):
    """The smallest power of two of which so many steps take longer than the interval."""
    j = 0
    while j < 40 and mean * 2**j <= interval:
        j += 1
    return 2**j


def vector(name, interval, held, first, last, pace):
    """pace: (up to which step, nanoseconds of each of them)."""
    auto = max(SECOND, 100 * held) if held else 0
    looks, due, every, mark, now, at = [], [], 1, first, 0, 0
    for step in range(first + 1, last + 1):
        now += next(took for until, took in pace if step <= until)
        if step % every:
            continue
        wanted = stride(auto if interval == 0 else interval, max((now - at) // (step - mark), 1))
        looks.append(step)
        if step % wanted == 0:
            due.append(step)
        every, mark, at = min(wanted, 2 * every), step, now
    return {
        "name": name, "interval": interval, "held": held, "first": first, "last": last,
        "pace": [list(part) for part in pace], "looks": looks, "due": due,
    }  # fmt: skip


def main():
    always = 2**40
    vectors = [
        vector("128 steps of 10 ms are longer than 1 s", SECOND, 0, 0, 400, [(always, 10 * MS)]),
        vector("as long is not longer", 640 * MS, 0, 100, 300, [(always, 10 * MS)]),
        vector("steps longer than the interval", SECOND, 0, 5, 9, [(always, 60 * SECOND)]),
        vector("auto is a hundred times what the last one took", 0, 20 * MS, 0, 13, [(always, 600 * MS)]),
        vector("auto before the first one", 0, 0, 0, 3, [(always, 20 * MS)]),
        vector("auto is not more often than every second", 0, 1000, 0, 200, [(always, 20 * MS)]),
        vector("quick steps, and then slow ones", SECOND, 0, 0, 30, [(10, 1000), (always, 300 * MS)]),
        vector("a slow step, and then quick ones", SECOND, 0, 0, 300, [(1, 60 * SECOND), (always, 10 * MS)]),
    ]
    chance = random.Random(1)
    for number in range(20):
        first = chance.randrange(1000)
        pace = [(first + chance.randint(1, 60) * 2**i, 2 ** chance.randint(10, 32)) for i in range(4)]
        pace = [*sorted(pace), (always, 2 ** chance.randint(20, 32))]
        interval, held = chance.choice([(0, 2 ** chance.randint(10, 28)), (2 ** chance.randint(20, 36) + 1, 0)])
        vectors.append(vector(f"random {number}", interval, held, first, first + 400, pace))
    print("[")
    print(",\n".join(json.dumps(v) for v in vectors))
    print("]")


main()
