import collections
import ctypes
import gc
import json
import math
import os
import pathlib
import random
import tempfile
import unittest

from concertina import snapshot
from concertina.codec import Room
from concertina.snapshot import Codec, Image, SnapshotError, read


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.path = os.path.join(self.folder, "a.part")

    def through_a_file(self, state, keep=False):
        image = Image(state, {"step": 3}, Codec())
        if keep:
            image.keep(memoryview(bytearray(image.bytes + 5)))
        self.assertEqual(image.write(image.whole(self.path)), os.stat(self.path).st_size)
        position, found = read(self.path, Codec())
        os.unlink(self.path)
        self.assertEqual(position, {"step": 3})
        return found


class Rooms(unittest.TestCase):
    """Memory for copies."""

    @staticmethod
    def mapped(address):
        """Whether such memory is there, and not something else that has come to its place."""
        with open("/proc/self/maps") as maps:
            for line in maps:
                low, high = (int(text, 16) for text in line.split()[0].split("-"))
                if low <= address < high:
                    return "/dev/zero" in line
        return False

    def test_a_process_that_is_forked_has_none_of_it(self):
        room = Room(1 << 20)
        let_go, told = os.pipe()
        room.let_go = lambda: os.write(told, b"let go")
        start = ctypes.addressof(ctypes.c_char.from_buffer(room))
        gc.collect()
        self.assertTrue(self.mapped(start))
        child = os.fork()
        if not child:
            try:
                del room
                gc.collect()
                os._exit(10 + self.mapped(start))
            finally:
                os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 10)
        os.close(told)
        self.addCleanup(os.close, let_go)
        room.let_go = None
        self.assertEqual(os.read(let_go, 10), b"")


class Layouts(Case):
    """Ranks whose layouts are the same write shares that are read together."""

    values = {name: name.encode() * 100_000 for name in "abc"}

    def test_values_in_another_order_are_not_mixed_up(self):
        first, second = (Image({name: self.values[name] for name in order}, {"step": 3}, Codec()) for order in ("abc", "cab"))
        if first.layout == second.layout:
            first.write(first.own(self.path, "r0"))
            second.write(second.shares(self.path + "0", "s0", 0, 1))
            found = read(self.path, Codec(), None, [self.path + "0"])[1]
            self.assertTrue(found == self.values, "values are mixed up")

    def test_other_values_of_the_same_sizes_have_another_one(self):
        layouts = {Image({"net": {name: self.values[name] for name in names}}, {"step": 3}, Codec()).layout for names in ("ab", "ac", "bc")}
        self.assertEqual(len(layouts), 3)

    def test_values_that_are_one_on_some_ranks_only_have_another_one(self):
        one, same = self.values["a"], bytes(bytearray(self.values["a"]))
        tied, apart = (Image({"a": one, "b": other}, {"step": 3}, Codec()).layout for other in (one, same))
        self.assertNotEqual(tied, apart)


class Whole(Case):
    def test_values_come_back_as_they_were(self):
        shared = b"twice" * 20
        state = {
            "plain": [None, True, 0, -(2**70), 1.5, math.inf, "ü"],
            7: {("a", 1): (1, [2, (3,)])},
            "kinds": [{1, 2}, frozenset({3}), collections.deque([4]), collections.Counter("aab")],
            "ordered": collections.OrderedDict(b=1, a=2),
            "bytes": [b"", bytearray(b"xyz"), shared, shared],
            "looks like a tag": {"at": 1, "length": 2, "tensor": "x"},
            "random": random.Random(4).getstate(),
        }
        for keep in False, True:
            found = self.through_a_file(state, keep)
            self.assertEqual(found, state)
            self.assertEqual([type(kind) for kind in found["kinds"]], [type(kind) for kind in state["kinds"]])
            self.assertIs(type(found["ordered"]), collections.OrderedDict)
            self.assertIs(type(found["bytes"][1]), bytearray)
        self.assertTrue(math.isnan(self.through_a_file([math.nan])[0]))

    def test_a_bounded_deque_stays_bounded(self):
        found = self.through_a_file({"losses": collections.deque([1.5, {"a": 2}], maxlen=3), "none": collections.deque(maxlen=0)})
        self.assertEqual(found, {"losses": collections.deque([1.5, {"a": 2}]), "none": collections.deque()})
        self.assertEqual([found["losses"].maxlen, found["none"].maxlen], [3, 0])

    def test_a_copy_does_not_change_any_more(self):
        value = bytearray(b"before")
        image = Image([value], {}, Codec())
        image.keep(memoryview(bytearray(64)))
        value[:] = b"after!"
        image.write(image.whole(self.path))
        self.assertEqual(read(self.path, Codec())[1], [b"before"])
        self.assertEqual(image.values(), [b"before"])

    def test_large_values(self):
        state = {str(i): random.Random(i).randbytes(i * 1000) for i in range(40)}
        self.assertEqual(self.through_a_file(state), state)

    def test_the_same_value_is_kept_once(self):
        value = bytes(1000)
        self.assertEqual(Image([value, value], {}, Codec()).bytes, 1000)


class Bad(Case):
    def test_what_cannot_be_kept_is_named(self):
        with self.assertRaisesRegex(SnapshotError, r"state\['opt'\]\[1\] is a builtins.function"):
            Image({"opt": [0, lambda: 0].copy()}, {}, Codec())

    def test_files_that_are_no_snapshots(self):
        image = Image({"a": bytes(100), "b": [1, {"c": 2.0}]}, {"step": 1}, Codec())
        image.write(image.whole(self.path))
        good = pathlib.Path(self.path).read_bytes()
        seed = random.SystemRandom().randrange(2**32)
        chance = random.Random(seed)
        bad = [b"", b"x" * 200, good[:15], good[:40], good[:-1], good + b"x"]
        for _ in range(500):
            place = chance.randrange(len(good) - 100)
            bad.append(good[:place] + bytes([good[place] ^ (1 << chance.randrange(8))]) + good[place + 1 :])
        for data in bad:
            pathlib.Path(self.path).write_bytes(data)
            try:
                read(self.path, Codec())
            except SnapshotError:
                continue
            self.assertEqual(len(data), len(good), f"seed {seed}: {data!r} was read")

    def test_descriptions_that_make_no_sense(self):
        for value in [
            {"bytes": "bytes", "at": 90, "length": 20}, {"bytes": "bytes", "at": -1, "length": 1},
            {"bytes": "bytes", "at": "0", "length": 1}, {"strange": 1, "at": 0, "length": 1}, {"strange": 1},
            {"dict": [[1]]}, {"dict": 5}, {"tuple": 3}, {"dict": [], "tuple": []}, {}, {"float": []},
            {"bounded": 5}, {"bounded": ["x", []]}, {"bounded": [-1, []]}, {"bounded": [1]},
        ]:  # fmt: skip
            text = json.dumps({"position": {}, "bytes": 100, "state": value}).encode()
            head = snapshot._HEAD.pack(b"CNCTSNP1", len(text)) + text
            pathlib.Path(self.path).write_bytes(head + bytes(-len(head) % 64) + bytes(100))
            with self.subTest(value), self.assertRaises(SnapshotError):
                read(self.path, Codec())


if __name__ == "__main__":
    unittest.main()
