import json
import pathlib
import unittest

from concertina.cadence import Cadence

VECTORS = json.loads((pathlib.Path(__file__).parents[2] / "testdata" / "cadence.json").read_text())


class Vectors(unittest.TestCase):
    def test_when_a_snapshot_is_due(self):
        for vector in VECTORS:
            with self.subTest(vector["name"]):
                cadence = Cadence()
                cadence.interval, cadence.held = vector["interval"] or None, vector["held"]
                now, look, looks, due = 0, vector["first"] + 1, [], []
                cadence.start(vector["first"], now)
                for step in range(vector["first"] + 1, vector["last"] + 1):
                    now += next(took for until, took in vector["pace"] if step <= until)
                    if step < look:
                        continue
                    looks.append(step)
                    if cadence.due(step, now):
                        due.append(step)
                    look = cadence.next(step)
                self.assertEqual((looks, due), (vector["looks"], vector["due"]))

    def test_no_interval_is_every_step(self):
        cadence = Cadence()
        cadence.interval, cadence.held = 0, 10**9
        cadence.start(0, 0)
        self.assertTrue(all(cadence.due(step, step) and cadence.next(step) == step + 1 for step in range(1, 20)))


if __name__ == "__main__":
    unittest.main()
