"""The rows of a state in shards go over the links of a world to those who lack them: real processes, with the agents' side played."""

import contextlib
import datetime
import gc
import io
import itertools
import os
import pathlib
import random
import tempfile
import threading
import unittest
import weakref
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from concertina import fsdp, handover, shardhandover, sharded
from concertina.codec import Elsewhere, Local
from concertina.groups import Groups
from concertina.handover import Handover, Part, Piece
from concertina.session import WorldChanged
from concertina.shardhandover import NOTHING, Held, Pace, ShardHandover, hopes_of, key_of, said
from concertina.shards import Cut, Move, Rank, Table, taken
from concertina.snapshot import Image
from concertina.tensors import TensorCodec, memory_of
from concertina.world import Assignment, World
from tests_torch import test_fsdp
from tests_torch.ranks import together

LAYOUT = "0123456789abcdef"
SHAPES = [(11, 5), (3,), (1, 700), (0, 4), (40, 3000), (2, 1), (17, 9), (400, 2001), (5, 0)]
"""Some have fewer rows than there are ranks, some none, and some are sent by themselves."""


def never():
    return False


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
        locals_ = [Local(table, memory_of(tensor)) for table, tensor in zip(cut.tables, own, strict=True)]
        held = Held(Rank(number, was), LAYOUT + ("x" if kind == "layout" and rank == 0 else ""), locals_, never)
        if kind == "touched" and rank == 0:
            own[0].data.mul_(2)
        del locals_
        own.clear()
    if kind == "keys" and rank == 1:
        keys = [key + "x" for key in keys]
        held = held and Held(held.rank, LAYOUT + "x", [], never)
    sent, kept = [], []
    send = dist.isend

    def counted(bytes_, *arguments, **options):
        sent.append(bytes_.numel())
        return send(bytes_, *arguments, **options)

    made = []

    def place(of):
        kept.append(sum(ref() is not None for ref in watched))
        made.append(torch.zeros(cut.tables[of].size(Rank(rank, size)), dtype=torch.uint8, device="cpu"))
        return memory_of(made[-1])

    hopes, store = {number for number in who if number is not None}, dist.distributed_c10d._get_default_store()
    one = ShardHandover(Rank(rank, size), None, lambda: False, held, hopes, store)
    del held
    if kind == "default":
        torch.set_default_device("meta")  # or any other one but processors
    with mock.patch.object(dist, "isend", counted), mock.patch.object(shardhandover, "_TURN", 1 << 20), \
            mock.patch.object(handover, "PIECE", 1 << 20):  # fmt: skip
        there = one.meet(keys, cut)
        if there:
            one.exchange(cut, there, place)
    torch.set_default_device(None)
    right = []
    for table, whole, got in zip(cut.tables, wholes, made, strict=False):
        want, begin = rows_of(whole, table, Rank(rank, size)), table.rows(Rank(rank, size)).start
        got = got.view(torch.float32).view(want.shape)
        for source, start, end in taken(table, was, Rank(rank, size)):
            expected = want[start - begin : end - begin] if source in there else torch.zeros(end - start, *want.shape[1:])
            right.append(torch.equal(got[start - begin : end - begin], expected))
    return {"right": all(right), "sent": sum(sent), "messages": len(sent), "there": there, "kept": kept, "had": had}


def lacked(was, who, kind=""):
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
        cls.cases = [cls.grows, (3, {"was": 2, "who": [None, 0, 1], "kind": "default"}), (4, {"was": 2, "who": [None, 1, None, 0]}), (2, {"was": 3, "who": [2, 0]}), (1, {"was": 2, "who": [1]})]
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


class OneRank(unittest.TestCase):
    """What one rank has, alone in a group."""

    def setUp(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        self.mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("ranks",))

    def shard(self, own):
        return DTensor.from_local(own, self.mesh, [Shard(0)], run_check=False)

    def held(self, state):
        found = []
        image = Image(state, {"step": 5}, TensorCodec(), Rank(0, 1), found)
        return Held(Rank(0, 1), image.layout, found, never)

    def trained(self, **options):
        """A parameter, and an optimizer that has made a step."""
        generator = torch.Generator().manual_seed(3)
        parameter = torch.nn.Parameter(self.shard(torch.randn(6, 40, generator=generator, dtype=torch.float64)))
        opt = torch.optim.AdamW([parameter], lr=0.1, **options)
        parameter.grad = torch.ones_like(parameter)
        opt.step()
        return parameter, opt

    def test_whatever_writes_to_it_is_noticed(self):
        def swap(p, _):
            own = p.to_local()
            own[[0, 3]] = own[[3, 0]]

        def one_bit(p, _):
            p.to_local().numpy().view("u1")[5, 17] ^= 1

        def in_inference(p, _):
            with torch.inference_mode():
                p.mul_(0.5)

        ways = {
            "the parameter": lambda p, _: p.mul_(0.5),
            "its data": lambda p, _: p.data.mul_(0.5),
            "its sign": lambda p, _: p.data.neg_(),
            "its own part": lambda p, _: p.to_local().mul_(0.5),
            "a list": lambda p, _: torch._foreach_mul_([p], 0.5),
            "a step": lambda _, opt: opt.step(),
            "moments": lambda p, opt: torch._foreach_mul_([opt.state[p]["exp_avg"]], 0.5),
            "their part": lambda p, opt: opt.state[p]["exp_avg_sq"].to_local().zero_(),
            "two rows": swap,
            "a bit": one_bit,
            "in inference": in_inference,
        }
        for block in 16 << 20, 64:  # In one piece, and by several threads.
            for options in {}, {"foreach": True}, {"fused": True}:
                for name, write in ways.items():
                    parameter, opt = self.trained(**options)
                    with self.subTest(name, block=block, **options), mock.patch.object(shardhandover, "_BLOCK", block):
                        held = self.held({"net": {"p": parameter}, "opt": opt.state_dict()})
                        parameter.sum()
                        self.assertTrue(held.intact(), "nobody has written to it")
                        with torch.no_grad():
                            write(parameter, opt)
                        self.assertFalse(held.intact())

    def test_what_has_changed_is_told_of_and_not_given(self):
        value = self.shard(torch.ones(4, 2))
        cut = Cut(1, (Table("state['p']", "float32", (4, 2), 4),))
        for change, there, told in (lambda: None, {0: 0}, "^$"), (value.to_local().zero_, {}, "^concertina: .* has changed .* snapshot"):
            held = self.held({"p": value})
            change()
            with contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(ShardHandover(Rank(0, 1), None, never, held, {0}, None).meet([held.key], cut), there)
            self.assertRegex(said.getvalue(), told)

    def test_memory_that_was_given_back_is_not_read(self):
        for size in 0, 8, 40 * 8:
            value = self.shard(torch.ones(6, 40, dtype=torch.float64))
            held = self.held({"p": value})
            value.to_local().untyped_storage().resize_(size)
            self.assertFalse(held.intact(), size)

    def test_whoever_reads_it_stops_when_the_world_is_broken_off(self):
        asked = itertools.count()
        local = Local(Table("a", "uint8", (8,), 1), memory_of(torch.zeros(8, dtype=torch.uint8)))
        with mock.patch.object(shardhandover, "_BLOCK", 8), self.assertRaises(WorldChanged):
            Held(Rank(0, 1), LAYOUT, [local] * 5, lambda: next(asked) >= 2)

    def test_what_was_made_for_inference_is_held_like_all_else(self):
        with torch.inference_mode():
            value = self.shard(torch.ones(4, 2))
        held = self.held({"ema": value})
        self.assertTrue(held.intact())
        with torch.inference_mode():
            value.add_(1)
        self.assertFalse(held.intact())

    def test_bytes_that_a_device_has_are_read_from_there(self):
        """Of gloo's tensors as well, which may be anywhere: what is sent is on the processor."""
        away = mock.Mock(spec=torch.Tensor, **{"to.side_effect": lambda device: torch.arange(8, dtype=torch.uint8) if device == "cpu" else None})
        cut = Cut(1, (Table("a", "uint8", (8,), 1),))
        with mock.patch.object(shardhandover, "bytes_in", return_value=away):
            part = Elsewhere(torch.zeros(8, dtype=torch.uint8), 0, 8)
            held = Held(Rank(0, 1), LAYOUT, [Local(cut.tables[0], part)], never)
            one = ShardHandover(Rank(0, 2), None, lambda: False, held, {0}, None)
            self.assertEqual(one._bytes_of(cut, {0: Move(0, 0, 8)}, Piece((Part(0, 0, 8),))).tolist(), [*range(8)])
            self.assertTrue(held.intact())

    def test_rows_without_bytes(self):
        folder, rank = self.enterContext(tempfile.TemporaryDirectory()), Rank(0, 1)

        def make():
            return {"empty": self.shard(torch.zeros(5, 0)), "none": self.shard(torch.zeros(0, 3)), "some": self.shard(torch.ones(2, 2))}

        image = Image(make(), {"step": 5}, TensorCodec(), rank)
        own, shard = image.own(f"{folder}/own", "r0"), image.shard(f"{folder}/shard", "d0")
        for file in own, shard:
            image.write(file)
        for links in None, ShardHandover(rank, None, never, self.held(make()), {0}, None):
            with self.subTest("links" if links else "files"):
                keys = [key_of(rank, image.layout)]
                _, state = sharded.read(own.path, keys, lambda found, _: lambda: [shard.path] * len(found), TensorCodec(), make(), rank, links)
                self.assertEqual({name: tuple(value.shape) for name, value in state.items()}, {"empty": (5, 0), "none": (0, 3), "some": (2, 2)})

    def test_values_whose_keys_have_bytes_of_their_own(self):
        """Such as types: what comes over the links goes where they are, as what comes from files does."""
        keys = [torch.float32, torch.bfloat16, b"raw", torch.Size([3]), ("pair", b"x")]

        def make(begin):
            return {"ema": {key: self.shard(torch.full((4, 2), begin + i)) for i, key in enumerate(keys)}}

        folder = self.enterContext(tempfile.TemporaryDirectory())
        image, rank = Image(make(7.0), {"step": 5}, TensorCodec(), Rank(0, 1)), Rank(0, 1)
        own, shard = image.own(f"{folder}/own", "r0"), image.shard(f"{folder}/shard", "d0")
        for file in own, shard:
            image.write(file)
        for links in None, ShardHandover(rank, None, lambda: False, self.held(make(7.0)), {0}, None):
            with self.subTest("links" if links else "files"):
                into = make(0.0)
                memory = [value.to_local().data_ptr() for value in into["ema"].values()]
                places, place = [], sharded._Rows.place

                def noted(rows, number, places=places, place=place):
                    found = place(rows, number)
                    places.append(torch.frombuffer(found, dtype=torch.uint8).data_ptr())
                    return found

                with mock.patch.object(sharded._Rows, "place", noted):
                    read = sharded.read(own.path, [f"d0.1.{image.layout}"], lambda keys, _: lambda: [shard.path] * len(keys), TensorCodec(), into, rank, links)
                self.assertEqual(places, memory if links else [], "what comes over the links comes there at once")
                found = read[1]["ema"]
                self.assertEqual([*found], keys)
                self.assertEqual([value.to_local().tolist() for value in found.values()], [[[7.0 + i] * 2] * 4 for i in range(len(keys))])
                self.assertEqual([value.to_local().data_ptr() for value in found.values()], memory, "there was a place for it")

    def test_what_has_come_elsewhere_is_put_into_its_place(self):
        """A value that is there has its bytes only where they have come into it."""
        table, codec = Table("a", "float32", (4, 2), 4), TensorCodec()
        there = self.shard(torch.zeros(4, 2))
        self.assertIs(codec.joined(table, torch.ones(4, 2), there), there)
        self.assertEqual(there.to_local().tolist(), [[1.0, 1.0]] * 4)
        self.assertIs(codec.joined(table, codec.own(table, there, Rank(0, 1)), there), there)
        self.assertEqual(there.to_local().tolist(), [[1.0, 1.0]] * 4)


class Keeping(unittest.TestCase):
    """When the rows of the last world are kept for the next one."""

    def calls(self, error, following=None, aborted=False, backend="gloo"):
        """What a job does that leaves its world with an error: the parts that matter."""
        job, done = fsdp.join(seed=5), mock.Mock(**{"shards.return_value": (LAYOUT, [])})
        self.addCleanup(job._close)
        job._session = mock.Mock(aborted=aborted, alone=False, following=following, **{"own_fault.return_value": False})
        job._world, job._there = World(1, 4, 0, 1, 3, 0, 1, 1, 3, "127.0.0.1", 1), True
        job._live.settled()
        job._groups.backend = backend
        job._groups.leave, job._keeper.shards, job._session.fault, job._session.left = done.leave, done.shards, done.fault, done.left
        self.assertTrue(job._broken(error))
        return list(dict.fromkeys(call[0] for call in done.mock_calls)), job

    def assigned(self, from_step=0, restore=False, shards=("d0.1.x",)):
        return Assignment(World(1, 5, from_step, 0, 1, 0, 1, 0, 1, "127.0.0.1", 1), restore, "/f", True, None, shards=shards)

    def test_at_a_planned_change_alone(self):
        calls, job = self.calls(WorldChanged(), self.assigned())
        self.assertEqual((calls, job._held.key), (["leave", "shards", "left"], f"d1.3.{LAYOUT}"))
        calls, _ = self.calls(RuntimeError("connection closed by peer"), aborted=True)
        self.assertEqual(calls, ["leave", "left"], "after a loss all is read from a snapshot")
        calls, _ = self.calls(RuntimeError("a bug"))
        self.assertEqual(calls, ["fault", "leave"], "nothing comes before that is told")
        for following in self.assigned(7), self.assigned(restore=True), self.assigned(shards=()):
            calls, job = self.calls(WorldChanged(), following)
            self.assertEqual((calls, job._held), (["leave", "left"], None), following)

    def test_what_cannot_be_kept_is_no_fault(self):
        with mock.patch.object(fsdp, "Held", side_effect=RuntimeError("can't start new thread")) as made, \
                contextlib.redirect_stderr(io.StringIO()) as said:  # fmt: skip
            _, job = self.calls(WorldChanged(), self.assigned())
        made.assert_called_once()
        self.assertIsNone(job._held)
        self.assertRegex(said.getvalue(), "^concertina: .* snapshot: .*start new thread")

    def test_over_gloo_alone(self):
        for backend in "gloo", "cpu:gloo,cuda:gloo", "cpu:gloo":
            self.assertIn("shards", self.calls(WorldChanged(), self.assigned(), backend=backend)[0], backend)
        for backend in "mpi", "ucc", "cpu:mpi,cuda:gloo":
            self.assertNotIn("shards", self.calls(WorldChanged(), self.assigned(), backend=backend)[0], backend)
        for backend in "nccl", "cpu:gloo,cuda:nccl":
            self.assertFalse(Groups(backend).by_gloo)

    def test_what_ranks_say_when_a_world_forms(self):
        held = Held(Rank(2, 3), LAYOUT, [], never)
        self.assertEqual({*hopes_of([said(held), said(None), "0"])}, {0, 2})
        for heard in None, [said(None)] * 3, [said(held), NOTHING, "1"]:
            self.assertFalse(hopes_of(heard), heard)


class Paces(unittest.TestCase):
    def setUp(self):
        self.store = mock.Mock()
        self.enterContext(mock.patch.object(dist, "PrefixStore", side_effect=lambda _, store: store))
        for module in handover, shardhandover:
            self.enterContext(mock.patch.object(module, "LIMIT", 7.0))
        self.pace = Pace(Rank(0, 4), self.store)

    def test_who_is_busy_with_others_is_waited_for_as_long_as_anything_moves(self):
        late = dist.DistStoreError("wait timeout after 7000ms")
        self.store.wait.side_effect = [late] * 5 + [None]
        self.store.add.side_effect = [3, 4, 9, 10, 11]
        self.pace.wait_for({2, 1}, 6)
        self.assertEqual(self.store.wait.call_args.args, (["1-6", "2-6"], datetime.timedelta(seconds=7)))
        self.store.wait.side_effect, self.store.add.side_effect = [late] * 3, [3, 4, 4]
        self.store.check.side_effect = lambda keys: keys == ["1-6"]
        with self.assertRaisesRegex(RuntimeError, r"could not be had from peers: nothing has moved for 7 s, and ranks have not come to turn 6: 2$"):
            self.pace.wait_for({2, 1}, 6)

    def test_a_piece_is_waited_for_once_the_other_rank_has_come_to_its_turn(self):
        done = mock.Mock()
        self.store.set, self.store.wait = done.set, done.wait
        cut = Cut(1, tuple(Table(name, "uint8", (4, 50), 1) for name in "ab"))
        one = ShardHandover(Rank(0, 2), None, lambda: False, None, {0}, self.store)
        with mock.patch.object(dist, "irecv", return_value=mock.Mock(wait=done.comes)), mock.patch.object(shardhandover, "_TURN", 1):
            one.exchange(cut, {0: 1}, lambda number: memoryview(bytearray(100)))
        limit = datetime.timedelta(seconds=7)
        turns = [[mock.call.set(f"0-{i}", ""), mock.call.wait([f"1-{i}"], limit), mock.call.comes(limit)] for i in range(2)]
        self.assertEqual(done.mock_calls, [*itertools.chain(*turns)])

    def test_what_gloo_ends_for_nobody_ends_with_the_world(self):
        """A message of which half is there when its connection ends."""
        over, aborted = threading.Event(), []
        self.addCleanup(over.set)

        def wait(limit):
            aborted.append(limit)
            over.wait()

        for one in ShardHandover(Rank(0, 2), None, lambda: bool(aborted), None, {0}, self.store), Handover(0, 2, None, None, lambda: bool(aborted)):
            aborted.clear()
            with self.assertRaises(WorldChanged):
                one._await(mock.Mock(wait=wait))
            self.assertEqual(aborted, [datetime.timedelta(seconds=7)])

    def test_what_is_waited_for_no_more_is_let_go_of_once_it_ends(self):
        over, gone = threading.Event(), threading.Event()

        class Work:
            def wait(self, _):
                over.wait()
                raise RuntimeError("Connection closed by peer")

        work = Work()
        weakref.finalize(work, gone.set)
        gc.disable()
        self.addCleanup(gc.enable)
        with self.assertRaises(WorldChanged):
            handover.await_(work, lambda: True)
        del work
        over.set()
        self.assertTrue(gone.wait(60), "though no garbage is collected")

    def test_who_can_start_no_thread_waits_itself(self):
        work = mock.Mock()
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            handover.await_(work, never)
            work.wait.side_effect = RuntimeError("Connection closed by peer")
            with self.assertRaisesRegex(RuntimeError, "^the state could not be had from peers: Connection closed by peer$"):
                handover.await_(work, never)

    def test_a_store_that_answers_nothing_is_not_waited_for_for_ever(self):
        """PyTorch bounds the time that a store may take to find something, and not that of an answer."""
        answers = threading.Event()
        self.addCleanup(answers.set)
        for call in self.store.wait, self.store.add, self.store.set:
            call.side_effect = lambda *_: answers.wait()
        with mock.patch.object(shardhandover, "LIMIT", 0.05):
            for call in lambda: self.pace.wait_for({2}, 0), self.pace.moves, lambda: self.pace.comes_to(3):
                with self.assertRaisesRegex(RuntimeError, "^the state could not be had from peers: the store of .* rank 0 .* for 0.1 s$"):
                    call()

    def test_a_store_that_is_gone_is_the_fault_of_no_program(self):
        gone = dist.DistNetworkError("Connection reset by peer")
        self.store.wait.side_effect = self.store.add.side_effect = self.store.set.side_effect = gone
        for call in lambda: self.pace.wait_for({2}, 0), self.pace.moves, lambda: self.pace.comes_to(3):
            with self.assertRaisesRegex(RuntimeError, "could not be had from peers: Connection reset"):
                call()

    def test_it_is_not_told_of_every_piece(self):
        for _ in range(1000):
            self.pace.moves()
        self.assertLess(self.store.add.call_count, 100)
        Pace(Rank(0, 1), None).wait_for({3}, 1)  # a world of one, which has no store


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

    def test_a_program_that_has_no_room_for_what_was(self):
        """The last state is let go of where it is not to be given, and is there otherwise."""
        for odd, kept, wants in ("frugal", False, {"d0", "d1"}), ("", True, set()):
            with self.subTest(odd):
                c = self.coordinator(odd)
                three = c.start(3)
                step, parts, was = self.begin(c, three[:2])
                c.shards_world(three, step, parts, stay=three[:2])
                self.assertEqual({*itertools.chain(*self.wanted(three))}, wants)
                self.assertEqual(self.begun(three, step), was)
                for member in three[:2]:
                    self.assertEqual([line["left"] for line in member.told if "left" in line], [kept])
                c.end(three)
                self.assert_undisturbed(*three)

    def test_gloo_that_connects_ranks_late(self):
        with mock.patch.dict(os.environ, TORCH_GLOO_LAZY_INIT="1"):
            c = self.coordinator()
            three = c.start(3)
        step, parts, was = self.begin(c, three[:2])
        c.shards_world(three, step, parts, stay=three[:2])
        self.assertEqual(self.wanted(three), [[], [], []])
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
        told = len(newcomer.told)
        c.shards_world([first, newcomer], step, parts)
        self.assertEqual({*itertools.chain(*self.wanted([first, newcomer]))}, {"d0", "d1"})
        self.assertEqual(self.begun([first, newcomer], step), was)
        newcomer.wait_for(step=step + 2)
        self.assertFalse([line for line in newcomer.told[told:] if "meeting" in line], "nobody has anything to give, so nobody is waited for")
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

    def test_a_rank_that_is_stopped_with_the_store_of_all_is_not_waited_for_for_ever(self):
        c = self.coordinator()
        pathlib.Path(c.folder, "impatient").touch()
        stopped, first, newcomer = three = c.start(3)
        step, parts, was = self.begin(c, three[:2])
        first.wait_for(size=2)
        stop = pathlib.Path(c.folder, "stop-turn-0")
        stop.touch()
        c.shards_world(three, step, parts, stay=three[:2])
        for member in first, newcomer:
            self.assertIn("the state could not be had from peers: ", self.fault(member).splitlines()[-1])
        stopped.kill()
        stop.unlink()
        c.shards_world([first, newcomer], step, parts)
        self.assertEqual(self.begun([first, newcomer], step), was)
        c.end([first, newcomer])
        self.assert_undisturbed(*three)


if __name__ == "__main__":
    unittest.main()
