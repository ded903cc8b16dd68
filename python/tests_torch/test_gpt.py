"""A GPT that is resized and killed at random ends like one that nobody disturbed."""

import os
import pathlib
import random
import unittest

from tests_torch.coordinator import Coordinator, losses

PROGRAM = pathlib.Path(__file__).with_name("gpt.py")
HISTORIES = int(os.environ.get("GPT_HISTORIES", 0))
SEED = os.environ.get("GPT_SEED", "")
SIZE = tuple(map(int, os.environ.get("GPT_SIZE", "60,256,4").split(",")))
"""Steps, width and layers: 3.2 million parameters."""
CLOSE = 1e-3
LARGEST = 3
GUARD = 3
"""How many steps nobody goes beyond that in which one is killed."""


@unittest.skipUnless(HISTORIES or SEED, "takes minutes: GPT_HISTORIES=n says how many histories, GPT_SEED=n which one")
class Gpt(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.steps = SIZE[0]
        with Coordinator(command=(PROGRAM, *SIZE)) as c:
            members = c.start(1)
            c.first_world(members)
            c.end(members)
            cls.undisturbed, cls.last = losses(*members), members[0].told[-1]

    def test_random_histories(self):
        print(f"{self.last['parameters']} parameters, undisturbed: {self.undisturbed[1]:.4f} to {self.undisturbed[self.steps]:.6f}", flush=True)
        for seed in [int(SEED)] if SEED else random.sample(range(1 << 32), HISTORIES):
            with self.subTest(f"GPT_SEED={seed} GPT_SIZE={','.join(map(str, SIZE))}"):
                self.live_through(random.Random(seed), seed)

    def live_through(self, chance: random.Random, seed: int) -> None:
        c = self.enterContext(Coordinator(command=(PROGRAM, *SIZE)))
        members, done, told = c.start(chance.randint(1, LARGEST), interval=0.5), 0, []
        everybody, restoring, path = members, members, ""
        while (at := done + chance.randint(2, 12)) < self.steps - GUARD:
            newcomers = c.start(chance.randint(0, LARGEST - len(members)), interval=0.5)
            everybody = everybody + newcomers
            kills, leaves = len(members) > 1 and chance.random() < 0.5, len(members) > 1 and chance.random() < 0.3
            # Whoever is killed is somewhere in the steps after this one.
            c.world(members, done, restoring, path, until=at + GUARD if kills else at)
            lost = chance.choice(members) if kills or leaves else None
            stay = [member for member in members if member is not lost]
            if kills:
                lost.wait_for(step=at)
                lost.kill()
                done, restoring, path = c.newest(stay, c.abort(stay), newcomers)
            else:
                for member in members:
                    self.assertEqual(member.hear("parked")["step"], at)
                done, restoring, path = at, newcomers, c.save(members[0], at) if newcomers else ""
            members = [*stay, *newcomers]
            told.append(f"{'killed' if kills else 'planned'} after {at}, {len(members)} ranks go on after {done}")
        c.world(members, done, restoring, path)
        c.end(members)
        found = losses(*everybody)
        self.assertEqual(sorted(found), list(range(1, self.steps + 1)), f"{told}")
        worst = max(found, key=lambda step: abs(found[step] / self.undisturbed[step] - 1))
        unseen = members[0].told[-1]["unseen"] / self.last["unseen"] - 1
        print(
            f"seed {seed}: {'; '.join(told)}: loss {found[self.steps] / self.undisturbed[self.steps] - 1:+.1e}, "
            f"of unseen texts {unseen:+.1e}, largest {found[worst] / self.undisturbed[worst] - 1:+.1e} in step {worst}", flush=True,
        )  # fmt: skip
        self.assertAlmostEqual(found[self.steps] / self.undisturbed[self.steps], 1, delta=CLOSE)
        self.assertAlmostEqual(unseen, 0, delta=CLOSE)


if __name__ == "__main__":
    unittest.main()
