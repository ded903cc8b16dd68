import errno
import json
import math
import os
import pathlib
import random
import tempfile
import unittest
from unittest import mock

from concertina import reports, sharded, snapshot
from concertina.agent import AgentError
from concertina.codec import Codec, Local
from concertina.keeper import Keeper
from concertina.session import Session, WorldChanged, start
from concertina.shards import Cut, Gathering, Interval, Move, Rank, Table, by_rows, chunk, given, joined, plan, taken, turns
from concertina.snapshot import Image, SnapshotError
from concertina.world import assignment
from tests.fakeagent import FakeAgent, excerpt, world

VECTORS = json.loads((pathlib.Path(__file__).parents[2] / "testdata" / "shards.json").read_text())


class Plans(unittest.TestCase):
    def test_vectors(self):
        self.assertTrue(VECTORS["plans"])
        for vector in VECTORS["plans"]:
            want, parts = Interval(*vector["want"]), [Interval(*part) for part in vector["parts"]]
            with self.subTest(vector):
                if vector["moves"] is None:
                    self.assertRaises(ValueError, plan, want, parts)
                else:
                    self.assertEqual(plan(want, parts), [Move(*move) for move in vector["moves"]])
        self.assertTrue(VECTORS["joins"])
        for vector in VECTORS["joins"]:
            with self.subTest(vector):
                self.assertEqual(joined(vector["intervals"], vector["most"]), [Interval(*each) for each in vector["joined"]])

    def test_chunks_have_each_row_once(self):
        for rows in range(20):
            for ranks in range(1, 9):
                found = [row for rank in range(ranks) for row in range(*chunk(rows, Rank(rank, ranks)))]
                self.assertEqual(found, [*range(rows)], (rows, ranks))

    def test_a_part_is_put_together_of_what_lies_where(self):
        tables = Table("a", "uint8", (5, 3), 1), Table("b", "uint8", (2,), 8), Table("c", "uint8", (4, 0), 4), Table("d", "uint8", (0,), 1)
        was = Cut(2, tables)
        self.assertEqual(was.offsets(0), [0, 64, 128, 128, 128])  # Rank 0 has 3 rows of 3 bytes, and 1 of 8.
        gathering = Gathering(was, Rank(1, 3))  # It has rows 2 and 3 of the first value, and row 1 of the second.
        self.assertEqual(gathering.sources, [0, 1])
        self.assertEqual(gathering.where(0, 6), [(0, 6, 3), (1, 0, 3)])
        self.assertEqual(gathering.where(1, 4), [(0, 7, 2), (1, 0, 1)])
        self.assertEqual(gathering.where(64, 72), [(1, 64, 8)])

    def test_any_rank_of_any_world_has_its_rows(self):
        seed = random.randrange(2**32)
        draw = random.Random(seed)
        for _ in range(200):
            was, now = draw.randint(1, 128), draw.randint(1, 128)
            tables = tuple(Table(str(i), "uint8", (draw.randint(0, 300), draw.randint(0, 2)), 1) for i in range(draw.randint(1, 5)))
            tables += (Table("whole", "uint8", (1, draw.randint(0, 300)), 1, None),) * draw.randint(0, 2)
            contents = [draw.randbytes(math.prod(table.shape)) for table in tables]

            def rows(cut, rank, contents=contents):
                found = bytearray(cut.offsets(rank)[-1])
                for table, content, at in zip(cut.tables, contents, cut.offsets(rank), strict=False):
                    own = chunk(table.shape[0], Rank(rank, cut.ranks)) if table.dim == 0 else Interval(0, 1)
                    found[at : at + table.size(Rank(rank, cut.ranks))] = content[own.start * table.row : own.end * table.row]
                return found

            before, rank = Cut(was, tables), Rank(draw.randrange(now), now)
            gathering, want = Gathering(before, rank), rows(Cut(now, tables), rank.number)
            for table, at in zip(tables, gathering.now.offsets(rank.number), strict=False):
                got = bytearray()
                for source, offset, size in gathering.where(at, at + table.size(rank)):
                    self.assertIn(source, gathering.sources)
                    got += rows(before, source)[offset : offset + size]
                self.assertEqual(got, want[at : at + table.size(rank)], (seed, was, rank, table))

    def test_who_gives_and_who_takes_say_the_same(self):
        seed = random.randrange(2**32)
        draw = random.Random(seed)
        for _ in range(60):
            was, now = draw.randint(1, 20), draw.randint(1, 20)
            table = Table("a", "uint8", (draw.randint(0, 60), draw.randint(0, 2)), 1)
            if draw.randrange(4) == 0:
                table = Table("whole", "uint8", (1, 5), 1, None)
            takes = [(other, move) for other in range(now) for move in taken(table, was, Rank(other, now))]
            gives = [it for number in range(was) for it in given(table, Rank(number, was), now)]
            self.assertEqual(sorted(gives), sorted(takes), (seed, was, now, table))
            for other in range(now):
                rows = [row for taker, move in takes if taker == other for row in range(move.start, move.end)]
                self.assertEqual(rows, [*range(*table.rows(Rank(other, now)))] if table.row else [], (seed, was, now, table))

    def test_turns_have_each_value_once_in_order_and_no_more_than_there_is_room_for(self):
        seed = random.randrange(2**32)
        draw = random.Random(seed)
        for _ in range(60):
            was, now, most = draw.randint(1, 9), draw.randint(1, 9), draw.randint(1, 900)
            cut = Cut(was, tuple(Table(f"{i}", "uint8", (draw.randint(0, 300), 2), 1) for i in range(draw.randrange(12))))
            found = turns(cut, now, most)
            self.assertEqual([number for turn in found for number in turn], [*range(len(cut.tables))], seed)
            for turn in found:
                for rank in range(max(was, now)):
                    some = [cut.tables[i].size(Rank(rank, of)) for i in turn for of in (was, now) if rank < of]
                    self.assertTrue(len(turn) == 1 or sum(some) <= most, seed)
            sizes = [sum(cut.tables[i].size(Rank(0, of)) for i in turn for of in (was, now)) for turn in found]
            for one, other in zip(found, found[1:], strict=False):
                first = sum(cut.tables[other[0]].size(Rank(0, of)) for of in (was, now))
                self.assertGreater(sizes[found.index(one)] + first, most, (seed, "it had room for one more"))

    def test_rows_along_any_dimension(self):
        for shape in (5,), (5, 3), (2, 3, 4):
            for dim in (None, *range(len(shape))):
                rows = by_rows(shape, dim)
                self.assertEqual(rows[0], 1 if dim is None else shape[dim])
                self.assertEqual(Table("a", "uint8", rows, 1, dim).whole, shape)
        self.assertEqual(by_rows((2, 3, 4), 1), (3, 2, 4))
        self.assertEqual(Table("a", "float64", by_rows((), None), 8, None).size(Rank(1, 2)), 8)

    def test_descriptions_that_make_no_sense(self):
        good = Cut(3, (Table("a", "uint8", (5, 3), 1), Table("b", "uint8", (5, 3), 1, 1), Table("c", "uint8", (1, 3), 1, None))).described()
        self.assertEqual(Cut.of(good).described(), good)
        self.assertEqual(good["tables"][0], ["a", "uint8", [5, 3], 1], "as those that know of no other dimension have it")
        table = good["tables"][0]
        for bad in (
            {}, good | {"ranks": 0}, good | {"ranks": 129}, good | {"ranks": True}, good | {"ranks": "3"}, good | {"tables": 3},
            good | {"tables": [table[:3]]}, good | {"tables": [[*table[:2], [], 1]]}, good | {"tables": [[*table[:2], [-1], 1]]},
            good | {"tables": [[*table[:2], [1.5], 1]]}, good | {"tables": [[*table[:2], [2**40, 2**40], 1]]},
            good | {"tables": [[*table[:2], [3], 0]]}, good | {"tables": [[*table, 2]]}, good | {"tables": [[*table, -1]]},
            good | {"tables": [[*table, True]]}, good | {"tables": [[*table, None]]}, good | {"tables": [[*table, 0, 0]]},
        ):  # fmt: skip
            with self.subTest(bad), self.assertRaises((ValueError, TypeError, LookupError)):
                Cut.of(bad)


class Rows:
    """What a rank has of a value in shards, as a framework's codec may see it."""

    def __init__(self, shape, rank, content=None):
        rows = chunk(shape[0], rank)
        row = math.prod(shape[1:])
        self.shape = shape
        self.own = bytearray((rows.end - rows.start) * row) if content is None else bytearray(content[rows.start * row : rows.end * row])


class RowsCodec(Codec):
    def __init__(self, rank):
        self.rank = rank

    def shard(self, value, where, rank):
        return Local(Table(where, "uint8", value.shape, 1), memoryview(value.own)) if isinstance(value, Rows) else None

    def own(self, table, existing, rank):
        return existing.own if isinstance(existing, Rows) else super().own(table, existing, rank)

    def joined(self, table, own, existing):
        return existing

    def prepare(self, tag, size, existing):
        if "tensor" in tag:
            return memoryview(existing), lambda: existing
        return super().prepare(tag, size, existing)


class Thing:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


class Links:
    """What gives a rank the rows of those that are there, and nonsense for those that are not."""

    def __init__(self, test, there, rank, hopes):
        self.test, self.there, self.rank, self.places, self.hopes = test, there, rank, [], hopes

    def meet(self, keys, cut):
        self.test.assertEqual((keys, cut.ranks), (self.test.keys, len(keys)))
        self.test.order.append("meets")
        return self.there

    def exchange(self, cut, there, place):
        self.test.order.append("exchanges")
        for number, table in enumerate(cut.tables):
            self.places.append(number)
            memory, begin = place(number), table.rows(self.rank).start
            content = next(self.test.contents[name] for name in self.test.contents if f"['{name}']" in table.name)
            for source, low, high in taken(table, cut.ranks, self.rank):
                its = content[low * table.row : high * table.row] if source in there else b"\xdd" * (high - low) * table.row
                memory[(low - begin) * table.row : (high - begin) * table.row] = its


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.shapes = {"weight": (11, 7), "bias": (3,), "empty": (0, 2), "large": (100_003, 5)}
        draw = random.Random(1)
        self.contents = {name: draw.randbytes(math.prod(shape)) for name, shape in self.shapes.items()}
        self.wanted, self.order = [], []

    def state(self, rank, blank=False):
        values = {name: Rows(shape, rank, None if blank else self.contents[name]) for name, shape in self.shapes.items()}
        return {"net": values, "rate": 0.5, "note": b"" if blank else b"of rank %d" % rank.number}

    def save(self, ranks, worker=0):
        """Each rank's file, and that of what is in no shards of one."""
        self.paths, self.keys, folder = {}, [], tempfile.mkdtemp(dir=self.folder)
        for number in range(ranks):
            rank = Rank(number, ranks)
            image = Image(self.state(rank), {"step": 7}, RowsCodec(rank), rank)
            path = os.path.join(folder, f"{number}")
            self.keys.append(f"d{number}.{ranks}.{image.layout}")
            self.paths[self.keys[-1]] = path
            image.write(image.shard(path, self.keys[-1]))
            if number == worker:
                self.whole = path + "r"
                image.write(image.own(self.whole, f"r{number}"))
        self.assertEqual(len({key.split(".")[2] for key in self.keys}), 1)

    def fetch(self, keys, ranges):
        self.wanted = keys
        self.asked = sum(end - start for some in ranges for start, end in some)
        numbers = [self.keys.index(key) for key in keys]
        self.order.append(("asks for", *numbers))

        def wait():
            self.order.append(("has", *numbers))
            return [excerpt(self.paths[key], some) for key, some in zip(keys, ranges, strict=True)]

        return wait

    def load(self, rank):
        return sharded.read(self.whole, self.keys, self.fetch, RowsCodec(rank), self.state(rank, blank=True), rank)

    def test_saved_at_any_size_and_read_at_any_other(self):
        for before in 1, 2, 4, 5, 8:
            self.save(before)
            for after in 1, 2, 3, 4, 6, 8, 128:
                for number in {0, 1, after // 2, after - 1} & {*range(after)}:
                    rank = Rank(number, after)
                    with self.subTest(before=before, rank=rank):
                        position, state = self.load(rank)
                        self.assertEqual(position, {"step": 7})
                        self.assertEqual((state["rate"], state["note"]), (0.5, b"of rank 0"))
                        want = self.state(rank)["net"]
                        for name, value in state["net"].items():
                            self.assertEqual(value.own, want[name].own, name)

    def test_what_ranks_of_the_world_have_is_not_asked_for(self):
        self.save(3)
        for rank, there, wanted in (Rank(1, 4), {0: 2, 1: 1, 2: 0}, []), (Rank(0, 2), {1: 0}, [0]), (Rank(1, 2), {0: 1}, [1, 2]), (Rank(0, 2), {}, [0, 1]):
            with self.subTest(rank=rank, there=there):
                links, want = Links(self, there, rank, {0, 1, 2}), self.state(rank)["net"]
                _, state = sharded.read(self.whole, self.keys, self.fetch, RowsCodec(rank), self.state(rank, blank=True), rank, links)
                for name, value in state["net"].items():
                    self.assertEqual(value.own, want[name].own, name)
                self.assertEqual(self.wanted, [self.keys[number] for number in wanted])
                self.assertEqual(links.places, [*range(4)] if there else [])

    def test_what_nobody_can_give_is_asked_for_before_others_are_waited_for(self):
        """By then those may be gone who have left the world."""
        self.save(3)
        rank, meets = Rank(0, 1), ["meets", "exchanges"]
        for hopes, there, order in [
            ({0, 1}, {0: 0, 1: 1}, [("asks for", 2), *meets, ("has", 2)]),
            ({0, 1}, {0: 0}, [("asks for", 2), *meets, ("has", 2), ("asks for", 1), ("has", 1)]),
            ({0}, {}, [("asks for", 1, 2), "meets", ("has", 1, 2), ("asks for", 0), ("has", 0)]),
            ({0, 1, 2}, {0: 0, 1: 1, 2: 2}, [*meets, ("asks for",), ("has",)]),
        ]:
            with self.subTest(hopes=hopes, there=there):
                self.order = []
                links, want = Links(self, there, rank, hopes), self.state(rank)["net"]
                _, state = sharded.read(self.whole, self.keys, self.fetch, RowsCodec(rank), self.state(rank, blank=True), rank, links)
                self.assertEqual(self.order, order)
                for name, value in state["net"].items():
                    self.assertEqual(value.own, want[name].own, name)

    def test_another_shape_is_refused_before_anybody_meets(self):
        self.save(2)
        links = mock.Mock()
        with self.assertRaisesRegex(SnapshotError, "is in shards in the snapshot, and not in this job"):
            sharded.read(self.whole, self.keys, self.fetch, RowsCodec(Rank(0, 2)), {}, Rank(0, 2), links)
        links.meet.assert_not_called()

    def test_a_process_of_a_worker_loads_those_of_any_number_of_them(self):
        self.save(3)
        rank = Rank(1, 2)  # of its worker's; in the world it is another one
        things = {name: Thing(value) for name, value in self.state(rank, blank=True).items()}
        keeper = Keeper(things, RowsCodec(rank), lambda: {"step": 0})
        told = world(5, 6, localRank=1, localSize=2, workerRank=2, workers=3, restore=True, snapshot=self.whole)
        shares = [self.paths[key] for key in self.keys]
        self.assertEqual(keeper.load_local(assignment(told | {"shares": shares}, None), things), {"step": 7})
        self.assertEqual(things["rate"].state, 0.5)
        for name, want in self.state(rank)["net"].items():
            self.assertEqual(things["net"].state[name].own, want.own, name)
        with self.assertRaisesRegex(SnapshotError, "3 ranks, and 2 are there"):
            keeper.load_local(assignment(told | {"shares": shares[:2]}, None), things)
        with self.assertRaisesRegex(SnapshotError, "which concertina.fsdp reads"):
            keeper.load_local(assignment(told | {"shards": self.keys}, None), things)

    def test_nothing_is_asked_for_that_is_not_needed(self):
        self.shapes = {"large": (100_003, 5)}
        self.save(4)
        self.load(Rank(0, 8))
        self.assertEqual(self.wanted, self.keys[:1])
        self.assertEqual(self.asked, 5 * 12_501)
        self.load(Rank(1, 3))
        self.assertEqual(self.wanted, self.keys[1:3])
        self.assertEqual(self.asked, 5 * 33_335)

    def test_the_layout_is_that_of_shapes_and_ranks(self):
        self.save(4)
        before = self.keys[0].split(".")[2]
        self.contents["bias"] = b"abc"
        self.save(4)
        self.assertEqual(self.keys[0].split(".")[2], before)
        self.save(5)
        self.assertNotEqual(self.keys[0].split(".")[2], before)
        self.shapes["bias"] = (2,)
        self.save(4)
        self.assertNotEqual(self.keys[0].split(".")[2], before)

    def test_what_is_told_of_its_size(self):
        self.save(4)
        rank = Rank(1, 4)
        image = Image(self.state(rank), {"step": 7}, RowsCodec(rank), rank)
        shard, own = image.shard("d", "d"), image.own("r", "r")
        for periodic in False, True:
            both = reports.measured(image, [shard, own], periodic)["size"]
            self.assertEqual(both, {"state": own.size + 4 * shard.size, "own": own.size, "shards": 4 * shard.size, "written": both["written"]})
            self.assertGreaterEqual(both["written"], own.size + shard.size)
            other = reports.measured(image, [shard], periodic)["size"]  # of a worker with several processes
            self.assertEqual((other["state"], other["own"], other["shards"]), (4 * shard.size, 0, 4 * shard.size))

    def test_what_is_told_where_there_is_no_room(self):
        self.save(4)
        rank = Rank(1, 4)
        image = Image(self.state(rank), {"step": 7}, RowsCodec(rank), rank)
        files = [image.shard("/f/d.part", "d1.4.x")]
        text = reports.told_of(OSError(errno.ENOSPC, "no space left on device"), files, 0, image.bytes)
        self.assertRegex(text, "no space left on device: /f/d.part: the job's condition SnapshotsFit says .*; suspend the job")

    def refused(self, text, rank=Rank(0, 2)):
        with self.assertRaisesRegex(SnapshotError, text):
            self.load(rank)

    def test_what_is_not_whole_is_refused(self):
        self.save(3)
        with open(self.paths[self.keys[1]], "ab") as file:
            file.write(b"x")
        self.refused("the shard of rank 1 has")
        os.truncate(self.paths[self.keys[1]], 10)
        self.refused("has 10 bytes")
        os.unlink(self.paths[self.keys[1]])
        with self.assertRaises(FileNotFoundError):
            self.load(Rank(0, 2))
        self.save(3)
        del self.keys[2]
        self.refused("the shards of 3 ranks, and 2 are there")
        os.truncate(self.whole, 100)
        self.refused("is cut off")

    def test_states_that_do_not_fit(self):
        self.save(2)
        with self.assertRaisesRegex(SnapshotError, "concertina.fsdp reads"):
            snapshot.read(self.whole, Codec())
        rank = Rank(0, 2)
        with self.assertRaisesRegex(SnapshotError, r"state\['net'\]\['weight'\] is in shards in the snapshot, and not in this job"):
            sharded.read(self.whole, self.keys, self.fetch, RowsCodec(rank), {}, rank)
        image = Image({"note": b"whole"}, {"step": 7}, Codec())
        self.whole = os.path.join(self.folder, "whole")
        image.write(image.whole(self.whole))
        self.refused("is of a state that is in no shards")


class Asking(unittest.TestCase):
    def session(self, **settings) -> Session:
        self.agent = self.enterContext(FakeAgent(world(), **settings))
        session = start({"CONCERTINA_SOCKET": self.agent.path}, sharded=True)
        self.addCleanup(session.close)
        self.assertIs(self.agent.hear("hello")["sharded"], True)
        session.next_world(self.fail)
        session.begin(1, lambda: None)
        self.agent.hear("join")
        return session

    def had(self, number, *parts):
        self.agent.say("had", round=number, parts=[{"key": key, "file": file, "bytes": 1} for key, file in parts])

    def test_what_the_agent_has_got(self):
        session = self.session()
        self.had(0, ("d0.2.x", "/old"))
        self.had(1, ("d1.2.x", "/b"), ("d0.2.x", "/a"))
        self.assertEqual(session.want(1, ["d1.2.x", "d0.2.x"], [[Interval(0, 3), Interval(5, 7)], []])(), ["/b", "/a"])
        said = self.agent.hear("want")
        self.assertEqual((said["parts"], said["ranges"]), (["d1.2.x", "d0.2.x"], [[[0, 3], [5, 7]], []]))

    def test_what_is_asked_for_comes_while_something_else_is_done(self):
        session = self.session()
        wait = session.want(1, ["d0.2.x"], [[]])
        self.assertEqual(self.agent.hear("want")["parts"], ["d0.2.x"])
        self.had(1, ("d0.2.x", "/a"))
        self.assertEqual(wait(), ["/a"])

    def test_who_needs_nothing_says_so_and_is_told(self):
        session = self.session()
        self.had(1)
        self.assertEqual(session.want(1, [], [])(), [])
        self.assertEqual(self.agent.hear("want")["parts"], [])

    def test_another_part_than_was_asked_for(self):
        for parts in [("d1.2.x", "/b")], [("d0.2.x", "")], [], [("d0.2.x", "/a"), ("d1.2.x", "/b")]:
            with self.subTest(parts):
                session = self.session()
                self.had(1, *parts)
                with self.assertRaisesRegex(AgentError, "was asked for the shards d0.2.x"):
                    session.want(1, ["d0.2.x"], [[]])()

    def test_the_world_ends_meanwhile(self):
        session = self.session()
        self.agent.say("abort", round=1, reason="a peer was lost")
        with self.assertRaises(WorldChanged):
            session.want(1, ["d0.2.x"], [[]])()

    def test_an_agent_that_knows_none(self):
        agent = self.enterContext(FakeAgent(world()))
        agent.sharded = False
        with self.assertRaisesRegex(AgentError, "knows no state in shards"):
            start({"CONCERTINA_SOCKET": agent.path}, sharded=True)
