"""The rows of a state in shards go over the links of a world to those who lack them: real processes, with the agents' side played."""

import itertools
import pathlib
import random
import unittest
import weakref
from unittest import mock

import torch

from concertina import handover, shardhandover
from concertina.codec import Local
from concertina.shardhandover import Held, ShardHandover
from concertina.shards import Cut, Rank, Table, taken
from concertina.tensors import memory_of
from tests_torch import test_fsdp
from tests_torch.ranks import together

LAYOUT = "0123456789abcdef"
SHAPES = [(11, 5), (3,), (1, 700), (0, 4), (40, 3000), (2, 1), (17, 9), (400, 2001), (5, 0)]
"""Some have fewer rows than there are ranks, some none, and some are sent by themselves."""


def tables():
    return tuple(Table(f"state['{number}']", "float32", shape, 4) for number, shape in enumerate(SHAPES))


def contents():
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(*shape, generator=generator) for shape in SHAPES]


def rows_of(whole, table, rank):
    rows = table.rows(rank)
    return whole[rows.start : rows.end].clone()


def run(rank, size, was, who, kind=""):
    """What a rank of so many has in the end, how many bytes it has sent, and which ranks had anything. who: which rank each had among those
    that were; None for one that had none."""
    cut, wholes, number, had = Cut(was, tables()), contents(), who[rank], 0
    keys = [f"d{i}.{was}.{LAYOUT}" for i in range(was)]
    own, held, watched = [], None, []
    if number is not None:
        own = [rows_of(whole, table, Rank(number, was)) for whole, table in zip(wholes, cut.tables, strict=True)]
        watched, had = [weakref.ref(tensor) for tensor in own], sum(tensor.numel() > 0 for tensor in own)
        locals_ = [Local(table, memory_of(tensor), lambda it=tensor: it._version) for table, tensor in zip(cut.tables, own, strict=True)]
        held = Held(Rank(number, was), 3, LAYOUT + ("x" if kind == "layout" and rank == 0 else ""), locals_)
        if kind == "touched" and rank == 0:
            own[0].zero_()
        del locals_
        own.clear()
    if kind == "keys" and rank == 1:
        keys = [key + "x" for key in keys]
        held = held and Held(held.rank, 3, LAYOUT + "x", [])
    sent, kept = [], []
    send = torch.distributed.isend

    def counted(bytes_, *arguments, **options):
        sent.append(bytes_.numel())
        return send(bytes_, *arguments, **options)

    made = []

    def place(of):
        kept.append(sum(ref() is not None for ref in watched))
        made.append(torch.zeros(cut.tables[of].size(Rank(rank, size)), dtype=torch.uint8))
        return memory_of(made[-1])

    one = ShardHandover(Rank(rank, size), None, lambda: False, held)
    del held
    with mock.patch.object(torch.distributed, "isend", counted), mock.patch.object(shardhandover, "_TURN", 1 << 20), \
            mock.patch.object(handover, "PIECE", 1 << 20):  # fmt: skip
        there = one.meet(keys, cut)
        if there:
            one.exchange(cut, there, place)
    right = []
    for table, whole, got in zip(cut.tables, wholes, made, strict=False):
        want, begin = rows_of(whole, table, Rank(rank, size)), table.rows(Rank(rank, size)).start
        got = got.view(torch.float32).view(want.shape)
        for source, start, end in taken(table, was, Rank(rank, size)):
            expected = want[start - begin : end - begin] if source in there else torch.zeros(end - start, *want.shape[1:])
            right.append(torch.equal(got[start - begin : end - begin], expected))
    return {"right": all(right), "sent": sum(sent), "messages": len(sent), "there": there, "kept": kept, "had": had}


def lacked(was, who):
    """How many bytes each rank has to get from others."""
    found = []
    for rank, number in enumerate(who):
        moves = [(table, move) for table in tables() for move in taken(table, was, Rank(rank, len(who)))]
        found.append(sum((move.end - move.start) * table.row for table, move in moves if move.part != number and move.part in who))
    return found


class Exchanges(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.seed = random.SystemRandom().randrange(2**32)
        draw = random.Random(cls.seed)
        cls.grows = 3, {"was": 2, "who": [0, 1, None]}
        cls.cases = [cls.grows, (4, {"was": 2, "who": [None, 1, None, 0]}), (2, {"was": 3, "who": [2, 0]}), (1, {"was": 2, "who": [1]})]
        for _ in range(8):
            was, now = draw.randrange(1, 6), draw.randrange(1, 5)
            had = draw.sample(range(was), draw.randrange(1, min(was, now) + 1))
            who = had + [None] * (now - len(had))
            draw.shuffle(who)
            cls.cases.append((now, {"was": was, "who": who}))
        odd = [(3, {"was": 2, "who": [0, 1, None], "kind": kind}) for kind in ("layout", "touched", "keys")] + [(2, {"was": 2, "who": [0, 0]})]
        found = together("tests_torch.test_shardhandover", *cls.cases, *odd)
        cls.found, cls.odd = found[: len(cls.cases)], found[len(cls.cases) :]

    def test_every_rank_gets_what_it_lacks_and_nothing_else(self):
        for (size, options), found in zip(self.cases, self.found, strict=True):
            there = {number: rank for rank, number in enumerate(options["who"]) if number is not None}
            with self.subTest(seed=self.seed, size=size, **options):
                for one in found:
                    self.assertTrue(one["right"])
                    self.assertEqual(one["there"], there)
                self.assertEqual(sum(one["sent"] for one in found), sum(lacked(**options)))

    def test_what_was_given_is_let_go_before_the_next_values_are_made(self):
        for one in self.found[0][:2]:
            self.assertEqual(one["kept"], [one["had"]] * (len(SHAPES) - 2) + [1, 0], "of the two turns of the last values")

    def test_who_cannot_give_and_views_that_differ(self):
        layout, touched, keys, twice = self.odd
        for found in layout, touched:
            self.assertEqual([one["there"] for one in found], [{1: 1}] * 3)
            self.assertTrue(all(one["right"] for one in found))
        for found in keys, twice:
            self.assertEqual([one["there"] for one in found], [{}] * len(found))
            self.assertEqual(sum(one["sent"] for one in found), 0)


class Worlds(test_fsdp.Worlds):
    def begin(self, c, members):
        """Trains in a first world, and stops; the step, its parts, and the state."""
        c.first_world(members)
        members[0].wait_for(step=3)
        return self.stop(c, members)

    def stop(self, c, members):
        step = c.barrier(members)
        parts = c.save_shards(members, step)
        return step, parts, next(line["state"] for line in members[0].told if line.get("step") == step)

    def wanted(self, members):
        """From whose files they take something, as they have said in this world."""
        found = []
        for member in members:
            while True:
                message = member.message("what it wants")
                member._keep(message)
                if message["type"] == "want":
                    break
            found.append(sorted(key.split(".")[0] for key in message["parts"]))
        return found

    def test_grown_and_shrunk(self):
        c = self.coordinator()
        first, second, third, fourth = c.start(4)
        two, three = [first, second], [third, first, second]
        step, parts, was = self.begin(c, two)
        c.shards_world(three, step, parts, stay=two)
        self.assertEqual(self.wanted(three), [[], [], []], "something was read from a file")
        self.assertEqual(self.begun(three, step), was)
        third.wait_for(step=step + 2)
        # A newcomer is a rank like the others then, and one of them leaves while another one comes.
        step, parts, was = self.stop(c, three)
        following = [second, fourth, third]
        c.shards_world(following, step, parts, stay=[second, third])
        self.assertEqual({*itertools.chain(*self.wanted(following))}, {"d1"}, "whoever left had rank 1")
        self.assertEqual(self.begun(following, step), was)
        second.wait_for(step=step + 2)
        # As where one of them was in the middle of a step: nobody gets anything of it.
        step, parts, was = self.stop(c, following)
        c.shards_world(following, step, parts, stay=[fourth, third])
        self.assertEqual({*itertools.chain(*self.wanted(following))}, {"d0"})
        self.assertEqual(self.begun(following, step), was)
        second.wait_for(step=step + 2)
        step, parts, was = self.stop(c, following)
        c.shards_world([third], step, parts, stay=[third])
        self.assertEqual(self.wanted([third]), [["d0", "d1"]])
        self.assertEqual(self.begun([third], step), was)
        c.end([third])
        self.assert_undisturbed(first, second, third, fourth)

    def test_who_has_changed_what_it_had_gives_nothing(self):
        """Such as a program that uses the memory of its last model for the next one."""
        c = self.coordinator("reused")
        three = c.start(3)
        step, parts, was = self.begin(c, three[:2])
        c.shards_world(three, step, parts, stay=three[:2])
        self.assertEqual({*itertools.chain(*self.wanted(three))}, {"d0", "d1"})
        self.assertEqual(self.begun(three, step), was)
        c.end(three)
        self.assert_undisturbed(*three)

    def test_a_rank_that_knows_nothing_of_it(self):
        c = self.coordinator()
        two = c.start(2)
        c.command = (test_fsdp.MEMBER, "older")
        three = [*two, *c.start(1)]
        step, parts, was = self.begin(c, two)
        c.shards_world(three, step, parts, stay=two)
        self.assertEqual({*itertools.chain(*self.wanted(three))}, {"d0", "d1"})
        self.assertEqual(self.begun(three, step), was)
        c.end(three)
        self.assert_undisturbed(*three)

    def test_a_rank_is_killed_in_the_middle(self):
        c = self.coordinator()
        newcomer, first, killed = three = c.start(3)  # so that the second one has something to get of the third
        step, parts, was = self.begin(c, three[1:])
        stop = pathlib.Path(c.folder, "stop-handover-2")
        stop.touch()
        c.shards_world(three, step, parts, stay=three[1:])
        killed.wait_for(handing=True)
        for member in first, newcomer:
            member.wait_for(meeting=True)
        killed.kill()
        stop.unlink()
        left, _ = c.abort([first, newcomer])  # The newcomer lacks nothing that the one has that is gone.
        self.assertFalse(left["clean"], "it has neither what it had nor what it is to have")
        # Who has left so gives nothing: an operator does not say that it has the state.
        c.shards_world([first, newcomer], step, parts)
        self.assertEqual({*itertools.chain(*self.wanted([first, newcomer]))}, {"d0", "d1"})
        self.assertEqual(self.begun([first, newcomer], step), was)
        newcomer.wait_for(step=step + 2)
        # And handovers serve again.
        step, parts, was = self.stop(c, [first, newcomer])
        (last,) = c.start(1)
        following = [first, newcomer, last]
        c.shards_world(following, step, parts, stay=[first, newcomer])
        self.assertEqual(self.wanted(following), [[], [], []])
        self.assertEqual(self.begun(following, step), was)
        c.end(following)
        self.assert_undisturbed(*three, last)

    def test_a_world_that_ends_before_they_meet(self):
        """What was held for it is not for the next one, whatever that is told."""
        c = self.coordinator()
        first, killed, newcomer = three = c.start(3)
        step, parts, was = self.begin(c, three[:2])
        stop = pathlib.Path(c.folder, "stop-meeting-1")
        stop.touch()
        c.shards_world(three, step, parts, stay=three[:2])
        killed.wait_for(meeting=True)
        killed.kill()
        stop.unlink()
        left = c.abort([first, newcomer])
        self.assertEqual([message["clean"] for message in left], [False, False])
        c.shards_world([first, newcomer], step, parts, stay=[first])
        self.assertEqual({*itertools.chain(*self.wanted([first, newcomer]))}, {"d0", "d1"})
        self.assertEqual(self.begun([first, newcomer], step), was)
        c.end([first, newcomer])
        self.assert_undisturbed(*three)

    def test_a_rank_that_hangs_is_not_waited_for_for_ever(self):
        c = self.coordinator()
        pathlib.Path(c.folder, "impatient").touch()
        first, hangs, newcomer = three = c.start(3)
        step, parts, was = self.begin(c, three[:2])
        stop = pathlib.Path(c.folder, "stop-handover-1")
        stop.touch()
        c.shards_world(three, step, parts, stay=three[:2])
        fault = self.fault(newcomer)
        self.assertIn("the state could not be had from peers", fault.splitlines()[-1])
        hangs.kill()
        stop.unlink()
        c.abort([first])
        c.shards_world([first, newcomer], step, parts)
        self.assertEqual(self.begun([first, newcomer], step), was)
        c.end([first, newcomer])
        self.assert_undisturbed(*three)


if __name__ == "__main__":
    unittest.main()
