"""The state of a world goes over its links to those who lack it."""

import datetime
import pathlib
import random
import unittest
from unittest import mock

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import concertina.torch as elastic
from concertina import handover, snapshot, tensors
from concertina.codec import Elsewhere
from concertina.handover import PIECE, ways
from concertina.shards import Rank
from concertina.snapshot import LEAST_SHARED
from concertina.tensors import InPlace, TensorCodec, own_part
from tests_torch.ranks import together
from tests_torch.test_elastic import Case

MIB = 1 << 20


class Plans(unittest.TestCase):
    def test_pieces_are_all_of_each_value_once(self):
        for seed in range(200):
            draw = random.Random(seed)
            values, at = {}, 0
            for _ in range(draw.randrange(12)):
                values[at] = draw.choice([0, 1, 70_000, MIB - 1, MIB, PIECE, PIECE + 1, draw.randrange(5 * PIECE)])
                at += values[at] + draw.randrange(1, 64)
            seen = {}
            for piece in handover.pieces_of(values):
                self.assertTrue(0 < piece.size <= PIECE, seed)
                for part in piece.parts:
                    self.assertEqual(seen.get(part.at, 0), part.low, seed)
                    seen[part.at] = part.high
            self.assertEqual(seen, {at: size for at, size in values.items() if size}, seed)

    def test_everybody_gets_each_piece_once_and_nobody_gives_much_more_than_that(self):
        for seed in range(40):
            draw = random.Random(seed)
            ranks = draw.sample(range(100), draw.randrange(2, 24))
            few = draw.randrange(1, len(ranks))
            givers, lackers = ranks[:few], ranks[few:]
            count = len(givers) * len(lackers)
            gave = dict.fromkeys(ranks, 0)
            for number in range(count):
                found = ways(number, givers, lackers)
                giver = givers[number % len(givers)]
                self.assertEqual(found.keys(), {giver, *lackers}, seed)
                got = [target for rank, way in found.items() for target in way.targets]
                self.assertEqual(sorted(got), sorted(lackers), seed)
                for rank, way in found.items():
                    gave[rank] += len(way.targets)
                    self.assertTrue(rank == giver or rank in found[way.source].targets, seed)
                # From each of them on it comes to an end.
                depth = max(self.depth(found, giver, rank) for rank in lackers)
                self.assertLessEqual(depth, max(8, -(-len(lackers) // len(givers))), seed)
            self.assertLessEqual(max(gave.values()), count, seed)

    def test_bytes_of_values_that_are_in_another_order(self):
        """Each piece copies its own bytes only, once: a device may have no room for a second one of the whole value."""
        seed = random.SystemRandom().randrange(2**32)
        draw = random.Random(seed)
        for number in range(60):
            shape = [draw.randrange(1, 6) for _ in range(draw.randrange(1, 5))]
            whole = torch.randn(*shape, dtype=draw.choice([torch.float32, torch.complex64]))
            value = whole.permute(draw.sample(range(len(shape)), len(shape)))[:: draw.randrange(1, 3)]
            value = value.conj() if draw.randrange(2) else value
            want = bytes(torch.tensor(value.tolist(), dtype=value.dtype).view(-1).view(torch.uint8).tolist())
            part, low = Elsewhere(value, 0, len(want)), 0
            while low < len(want):
                high = min(len(want), low + value.element_size() * draw.randrange(1, 9))
                got = handover.bytes_in(part, handover.Part(0, low, high))
                self.assertEqual(bytes(got.tolist()), want[low:high], f"seed {seed}, {number}: {low} to {high} of {value.shape}, {value.stride()}")
                low = high

    def test_what_is_copied_of_values_that_are_in_another_order(self):
        for shape in (3000, 4000), (4000, 3000), (3, 4_000_000), (4_000_000, 3), (3, 2000, 2000):
            value = torch.zeros(*shape).transpose(0, -1)
            parts, made = {0: Elsewhere(value, 0, value.nbytes)}, []
            pieces = handover.pieces_of({0: value.nbytes})
            outgoing = handover._Outgoing(parts, pieces, torch.device("cpu"))
            with Made(made):
                for number in range(len(pieces)):
                    self.assertEqual(outgoing[number].nbytes, pieces[number].size)
            self.assertLessEqual(max(made), PIECE, shape)
            self.assertLessEqual(sum(made), 2 * value.nbytes + PIECE, shape)  # what is put together of several rows is copied twice

    def test_a_lack_of_memory_is_no_fault_of_a_program(self):
        one = handover.Handover(0, 2, None, None, lambda: False)
        for error in MemoryError(), OSError("a device fails"), torch.cuda.OutOfMemoryError("no room"), RuntimeError("can't allocate memory"):
            with mock.patch.object(one, "_meet", side_effect=error):
                for ask in lambda: one.give(None), lambda: one.get(TensorCodec(), {}, lambda: None):
                    with self.subTest(repr(error)), self.assertRaisesRegex(RuntimeError, "^the state could not be had from peers: .*$"):
                        ask()

    def test_a_lack_of_memory_in_the_programs_own_methods_is_no_fault_of_it(self):
        """What a state_dict() copies, or a load_state_dict(), may be more than there is room for. What else they raise is the program's."""
        lacks = [MemoryError(), torch.cuda.OutOfMemoryError("no room"), RuntimeError("DefaultCPUAllocator: can't allocate memory"),
                 RuntimeError("CUDA error: out of memory"), RuntimeError("std::bad_alloc")]  # fmt: skip
        for method in "state_dict", "load_state_dict":
            for error in *lacks, RuntimeError("size mismatch"), ValueError("no number"), OSError("no such file"):
                with self.subTest(method, error=repr(error)):
                    job, thing, one = self.job()
                    setattr(thing, method, mock.Mock(side_effect=error))
                    with mock.patch.object(job, "_handover", return_value=one), self.assertRaises(type(error) if error not in lacks else RuntimeError) as told:
                        job._get_state()
                    if error in lacks:
                        self.assertRegex(str(told.exception), "^the state could not be had from peers: this rank has no memory for it .*$")
                    else:
                        self.assertIs(told.exception, error)
                    self.assertEqual(one.began, method == "load_state_dict")

    def test_who_has_no_memory_to_give_its_state_says_so(self):
        for error in MemoryError(), torch.cuda.OutOfMemoryError("no room"), RuntimeError("DefaultCPUAllocator: can't allocate memory"):
            with self.subTest(repr(error)):
                job, thing, one = self.job()
                thing.state_dict = mock.Mock(side_effect=error)
                with mock.patch.object(job, "_handover", return_value=one):
                    job._give_state()
                image, why = one.given
                self.assertIsNone(image)
                self.assertRegex(repr(why), "the state could not be had from peers: this rank has no memory for it")
        job, thing, one = self.job()
        thing.state_dict = mock.Mock(side_effect=ValueError("no number"))
        with mock.patch.object(job, "_handover", return_value=one), self.assertRaisesRegex(ValueError, "no number"):
            job._give_state()

    def job(self):
        """A job, a thing of its state, and what stands for its part in a handover."""
        thing = Plain(few=1)
        job = elastic.join({"thing": thing}, backend="gloo")
        self.addCleanup(job._close)
        return job, thing, Exchange(job)

    def depth(self, found, giver, rank):
        steps = 0
        while rank != giver:
            rank, steps = found[rank].source, steps + 1
        return steps


class Made(TorchDispatchMode):
    """Notes of how many bytes the tensors are that are made."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        there = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in there:
            self.sizes.append(result.nbytes)
        return result


class Exchange:
    """A handover in which others have the state of a job."""

    def __init__(self, job):
        self.state = {name: thing.state_dict() for name, thing in job._kept().items()}
        self.began, self.given = False, None

    def get(self, codec, existing, begins):
        begins()
        self.began = True
        return {"step": 3}, self.state

    def give(self, image, why=None):
        self.given = image, why


class Net(torch.nn.Module):
    """Large and small values, tied ones, a view that is not contiguous, and buffers."""

    def __init__(self, seed, small):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.large = torch.nn.Parameter(torch.randn(100_000 if small else 3 * PIECE // 8 + 5, generator=generator))
        self.middle = torch.nn.ParameterList([torch.randn(100, 300, generator=generator) for _ in range(20)])
        self.turned = torch.nn.Parameter(torch.randn(500, 400, generator=generator).t())
        self.tied = self.middle[0]
        self.halves = torch.nn.Parameter(torch.randn(1000, 700, generator=generator).to(torch.bfloat16))
        self.small = torch.nn.Parameter(torch.randn(3, generator=generator))
        self.register_buffer("mean", torch.randn(40_000, generator=generator))
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("wide", torch.zeros(PIECE // 4 + 7) + seed)


class Extra:
    """What no module is."""

    def __init__(self, seed):
        self.seed = seed
        self.state = {}
        self.fill = seed > 0

    def state_dict(self):
        if not self.fill:
            return {"seed": self.seed}
        values = torch.arange(100_000, dtype=torch.float64)
        return {"seed": self.seed, "bytes": bytes([self.seed]) * 100_000, "values": values, "same": values, "set": {1, 2}}

    def load_state_dict(self, state):
        self.state, self.seed = state, state["seed"]


class Plain:
    """Values that no module has."""

    def __init__(self, **values):
        self.values = values

    def state_dict(self):
        return dict(self.values)

    def load_state_dict(self, state):
        self.values = state


EMPTY = {
    "tensor": lambda: torch.empty(0),
    "rows": lambda: torch.empty(3, 0, dtype=torch.int16),
    "bytes": lambda: b"",
    "bytearray": bytearray,
    "dtype": lambda: torch.float16,
    "size": lambda: torch.Size([3]),
}
"""Values that have no bytes, or few."""


def kind(value):
    """A value, where == does not tell."""
    return (str(value.dtype), tuple(value.shape), value.tolist()) if isinstance(value, torch.Tensor) else value


def made(seed, trained, small):
    net = Net(seed, small)
    opt = torch.optim.Adam(net.parameters(), lr=0.01 * seed if seed else 1.0)
    if trained:
        sum(p.float().sum() for p in net.parameters()).backward()
        opt.step()
        opt.zero_grad()
    return {"net": net, "opt": InPlace(opt), "extra": Extra(seed)}, net, opt


def hand(rank, size, lacks, cannot=(), small=False, by_device=False):
    state, net, opt = made(0 if rank in lacks else 7, rank not in lacks, small)
    before = [p.data_ptr() for p in net.parameters()]
    codec = TensorCodec(lambda: [net])
    one = handover.Handover(rank, size, torch.device("cpu") if by_device else None, None, lambda: False)
    if rank not in lacks:
        image = snapshot.Image({name: thing.state_dict() for name, thing in state.items()}, {"step": 4}, codec)
        one.give(None if rank in cannot else image)
        return state, opt, {"step": 4}
    untouched, began = digest(state, opt), []
    position, got = one.get(codec, {name: thing.state_dict() for name, thing in state.items()}, lambda: began.append(digest(state, opt)))
    assert began == [untouched], "the state has changed before that was said"
    for name, thing in state.items():
        thing.load_state_dict(got[name])
    assert before == [p.data_ptr() for p in net.parameters()], "the parameters are other tensors"
    return state, opt, position


class Between(unittest.TestCase):
    def test_who_lacks_it_has_what_the_others_have(self):
        cases = [
            (2, {"lacks": [1]}),
            (4, {"lacks": [0]}),
            (5, {"lacks": [1, 2, 4]}),
            (4, {"lacks": [0, 2], "by_device": True}),
            (4, {"lacks": [1], "cannot": [0, 3]}),
            (4, {"lacks": [1], "cannot": [2], "by_device": True}),
            (4, {"lacks": [1, 2], "small": True, "by_device": True}),
        ]
        for (size, options), answers in zip(cases, together("tests_torch.test_handover", *cases), strict=True):
            with self.subTest(size=size, **options):
                want = answers[next(rank for rank in range(size) if rank not in options["lacks"] + options.get("cannot", []))]
                for rank, got in enumerate(answers):
                    if rank in options["lacks"]:
                        self.assertEqual(got, want, rank)

    def test_values_without_bytes(self):
        cases = [(2, {"what": "empties", "empty": name, "last": last}) for name in EMPTY for last in (False, True)]
        for (_, options), answers in zip(cases, together("tests_torch.test_handover", *cases), strict=True):
            with self.subTest(**options):
                self.assertEqual(answers[1], answers[0])

    def test_what_differs_by_rank_in_a_small_state_comes_from_one(self):
        ((*givers, got),) = together("tests_torch.test_handover", (4, {"what": "small"}))
        self.assertIn(got, givers)

    def test_givers_whose_values_are_in_another_order(self):
        """As of a dict that is made of a set of names. Legal is that they give nothing."""
        (answers,) = together("tests_torch.test_handover", (3, {"what": "unordered"}))
        for answer in answers:
            if isinstance(answer, str):
                self.assertIn("peers", answer)
            else:
                self.assertEqual(answer, {"a": [1.0], "b": [2.0]})

    def test_values_that_share_memory_where_they_come_to(self):
        """As an average of weights may, until the first update. Large ones and small ones."""
        cases = [(2, {"what": "shared", "side": side}) for side in (30, 300, 2400)]
        for (_, options), answers in zip(cases, together("tests_torch.test_handover", *cases), strict=True):
            with self.subTest(**options):
                self.assertEqual(answers[1], {"weight": [1.0], "average": [5.0]})

    def test_what_the_processes_of_a_worker_share_comes_into_its_place(self):
        (answers,) = together("tests_torch.test_handover", (3, {"what": "dtensors"}))
        giver, *others = answers
        for got in others:
            self.assertEqual(got, giver)

    def test_a_model_that_is_shared_in_another_way(self):
        ((told,),) = together("tests_torch.test_handover", (1, {"what": "shared_otherwise"}))
        self.assertEqual(sorted(told), ["dim", "plain", "shape", "shards", "type"])
        for name, text in told.items():
            self.assertRegex(text, r"^a tensor of \[300, 300\] is .* share the model as they do$", name)

    def test_nobody_begins_where_another_handover_of_the_world_comes_to_nothing(self):
        ((begun, told, *others),) = together("tests_torch.test_handover", (4, {"what": "apart"}))
        self.assertEqual(begun, "gives: RuntimeError")
        self.assertEqual(told, "kept: RuntimeError")
        for one in others:
            self.assertRegex(one, "could not be had from peers")

    def test_values_that_share_some_memory_where_they_come_to(self):
        """They begin at different places of it, or have it in another order: what comes last would be in the other one as well."""
        cases = [
            (2, {"what": "overlapping", "side": side, "how": how, "last": last})
            for side in (30, 300, 2400)
            for how in ("shifted", "turned", "repeated")
            for last in (False, True)
        ]
        for (_, options), answers in zip(cases, together("tests_torch.test_handover", *cases), strict=True):
            with self.subTest(**options):
                self.assertEqual(answers[1], answers[0])

    def test_one_value_that_has_two_places_in_one_memory(self):
        cases = [(2, {"what": "twice", "side": side, "how": how}) for side in (30, 300) for how in ("shifted", "turned")]
        for (_, options), answers in zip(cases, together("tests_torch.test_handover", *cases), strict=True):
            with self.subTest(**options):
                self.assertEqual(answers[1], answers[0])

    def test_conjugated_and_negated_values(self):
        cases = [(2, {"what": "lazy", "side": side}) for side in (30, 300)]
        for (_, options), answers in zip(cases, together("tests_torch.test_handover", *cases), strict=True):
            with self.subTest(**options):
                self.assertEqual(answers[1], answers[0])

    def test_what_nobody_can_give_is_no_fault_of_a_program(self):
        """The operator tries it once more, with a snapshot, when the last line of an error tells of peers."""
        cases = [
            (3, {"what": "refused", "why": "cannot"}),
            (3, {"what": "refused", "why": "otherwise"}),
            (3, {"what": "refused", "why": "version"}),
            (3, {"what": "refused", "why": "memory"}),
        ]
        for (_, options), answers in zip(cases, together("tests_torch.test_handover", *cases), strict=True):
            with self.subTest(**options):
                self.assertEqual(len(answers), 3)
                for answer in answers:
                    self.assertRegex(answer, "^RuntimeError: the state could not be had from peers: .*$")
                if options["why"] == "memory":
                    self.assertRegex(answers[0], "this rank has no memory for it .no room for it.$")


def digest(state, opt):
    """What there is in a state, in numbers."""
    net = state["net"]
    found = [float(t.double().sum()) for t in net.state_dict().values()]
    found += [float(v.double().sum()) for one in opt.state.values() for v in one.values()]
    extra = state["extra"].state or state["extra"].state_dict()
    found += [opt.param_groups[0]["lr"], extra["seed"]]
    return found + [sum(extra["bytes"]), float(extra["values"].sum()), float(extra["same"].sum())] if "bytes" in extra else found


def run(rank, size, what=None, **options):
    """What a rank has at the end."""
    if what:
        return globals()[what](rank, size, **options)
    state, opt, position = hand(rank, size, **options)
    return digest(state, opt), position


def empties(rank, size, empty, last):
    torch.manual_seed(rank)
    net = torch.nn.Linear(300, 300, bias=False)
    extra = Plain(few=torch.arange(3.0) + rank, **{empty: EMPTY[empty]()})
    state = {"net": net, "extra": extra} if last else {"extra": extra, "net": net}
    exchange(rank, size, state, net, gives=rank == 0)
    return [float(net.weight.detach().sum()), {name: kind(value) for name, value in extra.values.items()}]


def small(rank, size):
    """Each has two values that are its own, and belong together."""
    net, extra = torch.nn.Linear(300, 300), Plain(**{name: torch.full((1_500_000,), float(rank)) for name in ("seen", "done")})
    exchange(rank, size, {"net": net, "extra": extra}, net, gives=rank < size - 1)
    return {name: value.unique().tolist() for name, value in extra.values.items()}


def unordered(rank, size):
    net, values = torch.nn.Linear(3, 3), {name: torch.full((LEAST_SHARED // 4 + 1,), number) for name, number in (("a", 1.0), ("b", 2.0))}
    extra = Plain(**{name: values[name] if rank < 2 else values[name] * 0 for name in ("ba" if rank == 1 else "ab")})
    try:
        exchange(rank, size, {"net": net, "extra": extra}, net, gives=rank < 2)
    except RuntimeError as error:
        return str(error)
    return {name: value.unique().tolist() for name, value in extra.values.items()}


def shared(rank, size, side):
    net = torch.nn.Linear(side, side, bias=False)
    torch.nn.init.constant_(net.weight, 0.0 if rank else 1.0)
    extra = Plain(average=net.weight.detach() if rank else torch.full((side, side), 5.0))
    exchange(rank, size, {"net": net, "extra": extra}, net, gives=rank == 0)
    return {"weight": net.weight.unique().tolist(), "average": extra.values["average"].unique().tolist()}


def numbered(side, first):
    return torch.arange(side * side, dtype=torch.float32).view(side, side) + first


def places(side, how):
    """Two of one shape in one memory."""
    base = torch.zeros(side * side + 7)
    first = base[: side * side].view(side, side)
    return first, {"shifted": base[7:].view(side, side), "turned": first.t(), "repeated": base[:1].expand(side, side)}[how]


def overlapping(rank, size, side, how, last):
    net = torch.nn.Linear(side, side, bias=False)
    weight, average = places(side, how) if rank else (numbered(side, 1.0), numbered(side, 5.0))
    net.weight = torch.nn.Parameter(weight)
    extra = Plain(average=average)
    exchange(rank, size, {"net": net, "extra": extra} if last else {"extra": extra, "net": net}, net, gives=rank == 0)
    return [bool(torch.equal(net.weight, numbered(side, 1.0))), bool(torch.equal(extra.values["average"], numbered(side, 5.0)))]


def twice(rank, size, side, how):
    """Values that are one where they come from."""
    net, value = torch.nn.Linear(3, 3), numbered(side, 1.0)
    first, second = places(side, how) if rank else (value, value)
    extra = Plain(first=first, second=second)
    exchange(rank, size, {"net": net, "extra": extra}, net, gives=rank == 0)
    return [bool(torch.equal(one, value)) for one in extra.values.values()]


def lazy(rank, size, side):
    """Tensors whose bytes are not what they have for values."""
    net, values = torch.nn.Linear(3, 3), torch.full((side, side), 1 + 2j) * (0 if rank else 1)
    extra = Plain(plain=values, conjugated=values.clone().conj(), both=values.conj(), negated=values.clone().conj().imag)
    exchange(rank, size, {"net": net, "extra": extra}, net, gives=rank == 0)
    return {name: value.flatten()[[0, -1]].tolist() for name, value in extra.values.items()}


def shares_of(rank):
    """DTensors of whose rows, or columns, the processes of a worker have some each, and values beside them; of rank 0 those that are given."""
    mesh = DeviceMesh("cpu", [rank], _init_backend=False)

    def made(rows, columns, dim, turned=False):
        own = torch.arange(float(rows * columns)).view(rows, columns) * (rank == 0)
        placement = Replicate() if dim is None else Shard(dim)
        return DTensor.from_local(own.t() if turned else own, mesh, [placement], run_check=False)

    net = torch.nn.Module()
    net.rows, net.columns = (torch.nn.Parameter(made(2500, 2500, dim)) for dim in (0, 1))
    net.turned, net.all = torch.nn.Parameter(made(700, 900, 1, turned=True)), torch.nn.Parameter(made(400, 400, None))
    net.few, net.none = torch.nn.Parameter(made(3, 5, 0)), torch.nn.Parameter(made(0, 5, 0))
    net.beside = torch.nn.Parameter(torch.full((800, 800), 3.0 * (rank == 0)))
    net.register_buffer("seen", made(300, 300, 0))
    # Where it comes to an average shares memory with what it is of, as it may until the first update.
    extra = {"tied": net.rows.detach(), "average": net.columns.detach() + 1 if rank == 0 else net.columns.detach()}
    extra |= ({"moment": made(600, 600, 1), "small": made(6, 6, None)} if rank == 0 else {})
    return net, Plain(**extra)


def dtensors(rank, size):
    net, extra = shares_of(rank)
    before = {name: own_part(value).data_ptr() for name, value in net.state_dict().items()}
    with mock.patch.object(tensors, "_dim_of", lambda value, *_: getattr(value.placements[0], "dim", None)):
        exchange(rank, size, {"net": net, "extra": extra}, net, gives=rank == 0, local=Rank(0, 2))
    assert before == {name: own_part(value).data_ptr() for name, value in net.state_dict().items()}, "they are other tensors"
    assert own_part(extra.values["tied"]).data_ptr() == before["rows"], "it is another one than it was"
    found = {name: (kind(own_part(value)), str(getattr(value, "placements", ""))) for name, value in (net.state_dict() | extra.values).items()}
    return {name: (digested(value), placed) for name, (value, placed) in found.items()}


def digested(value):
    dtype, shape, numbers = value
    flat = torch.tensor(numbers, dtype=torch.float64).flatten()
    return dtype, shape, float(flat.sum()), float((flat * torch.arange(flat.numel())).sum())


def shared_otherwise(rank, size):
    """What is told to who has a value in other shards than who gives it."""
    mesh, codec = DeviceMesh("cpu", [rank], _init_backend=False), TensorCodec(local=Rank(0, 2)).alike()

    def made(rows=300, dim=0, dtype=torch.float32):
        return DTensor.from_local(torch.zeros(rows, 300, dtype=dtype), mesh, [Shard(dim)], run_check=False)

    given, told = made(), {}
    others = {"dim": made(dim=1), "shape": made(301), "type": made(dtype=torch.bfloat16), "plain": torch.zeros(300, 300), "shards": given}
    with mock.patch.object(tensors, "_dim_of", lambda value, *_: value.placements[0].dim):
        for name, existing in others.items():
            tag, _ = codec.buffer(torch.zeros(300, 300) if name == "shards" else given)
            try:
                codec.own_of(tag, existing)
            except snapshot.SnapshotError as error:
                told[name] = str(error)
        assert codec.own_of(tag | {"whole": [300, 300], "dim": 0}, given)[0] is given._local_tensor
    return told


def apart(rank, size):
    """Two handovers in one world, of which the second has nobody who can give anything."""
    groups = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
    everyone = torch.distributed.new_group(timeout=datetime.timedelta(seconds=10))  # the first waits in vain for the second
    net = torch.nn.Linear(300, 300)
    one = handover.Handover(
        rank % 2, 2, None, groups[rank // 2], lambda: False, lambda: torch.distributed.all_reduce(torch.zeros(1), group=everyone, async_op=True)
    )
    codec, begun = TensorCodec(lambda: [net]), []
    state = {"net": net.state_dict()}
    try:
        if rank % 2:
            one.get(codec, state, lambda: begun.append(rank))
        else:
            one.give(snapshot.Image(state, {"step": 4}, codec) if rank == 0 else None)
    except RuntimeError as error:
        if rank > 1:
            return str(error)
        return f"{'begun' if begun else 'kept' if rank else 'gives'}: RuntimeError"
    return "nothing"


def refused(rank, size, why):
    """What is told where nobody can give a state, or two have states that do not fit together."""
    net, extra = torch.nn.Linear(300, 300), Plain(**{"more" if rank == 1 and why == "otherwise" else "some": bytes([rank]) * 100_000})
    if rank == 1 and why == "otherwise":
        extra.values["more"] += b"and more"
    version = handover.VERSION + (why == "version" and rank == 2)
    try:
        with mock.patch.object(handover, "VERSION", version):
            lacks = handover.without_memory(MemoryError("no room for it")) if why == "memory" else None
            exchange(rank, size, {"net": net, "extra": extra}, net, gives=rank < 2, can=why not in ("cannot", "memory"), why=lacks)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def exchange(rank, size, state, net, gives, can=True, why=None, local=None):
    codec = TensorCodec(lambda: [net], local=local).alike()
    one = handover.Handover(rank, size, None, None, lambda: False)
    now = {name: thing.state_dict() for name, thing in state.items()}
    if gives:
        one.give(snapshot.Image(now, {"step": 4}, codec) if can else None, why)
        return
    _, got = one.get(codec, now, lambda: None)
    for name, thing in state.items():
        thing.load_state_dict(got[name])


class Worlds(Case):
    def test_grow(self):
        c = self.coordinator(seconds=0.02, ballast=40)
        *members, newcomer = c.start(3)
        self.assertTrue(newcomer.agent.hello["handover"])
        c.first_world(members)
        members[0].wait_for(step=3)
        step = c.barrier(members)
        c.world([*members, newcomer], step, [newcomer], handover=True)
        c.end([*members, newcomer])
        self.assert_undisturbed(*members, newcomer)
        self.assertEqual(next(line["done"] for line in newcomer.told if "done" in line), step)
        self.assertEqual([line["size"] for line in members[0].told if "world" in line], [2, 3])
        # A snapshot follows soon, of all.
        for member in (*members, newcomer):
            taken = [message["step"] for message in member.heard if message["type"] == "snapshot" and "error" not in message]
            self.assertIn(step + 1, taken)

    def test_a_rank_is_killed_in_the_middle(self):
        c = self.coordinator(seconds=0.02, ballast=60)
        *members, newcomer = c.start(4)
        c.first_world(members)
        members[0].wait_for(step=3)
        step = c.barrier(members)
        others, killed = members[:2], members[2]
        pathlib.Path(c.folder, "stop-handover-2").touch()
        c.world([*members, newcomer], step, [newcomer], handover=True)
        killed.wait_for(handing=True)
        killed.kill()
        left = c.abort([*others, newcomer])
        self.assertEqual([(message["step"], message["clean"]) for message in left[:2]], [(step, True), (step, True)])
        self.assertEqual(left[2]["step"], 0)  # It is clean as long as nothing has come, and not once something has.
        c.world([*others, newcomer], step, [newcomer], handover=True)
        c.end([*others, newcomer])
        self.assert_undisturbed(*others, newcomer)

    def test_what_a_rank_has_is_good_until_something_comes(self):
        """It may be the newest state that is left, once the others are gone."""
        c = self.coordinator(seconds=0.02)
        ahead, behind = c.start(2)
        c.first_world([ahead, behind])
        behind.wait_for(step=3)
        step = c.barrier([ahead, behind])
        c.world([ahead], step, until=step + 2)
        while ahead.hear("parked")["step"] < step + 2:
            pass
        pathlib.Path(c.folder, "stop-meeting-0").touch()
        c.world([ahead, behind], step + 2, [behind], handover=True)
        for member in ahead, behind:
            member.wait_for(meeting=True)
        ahead.kill()
        (left,) = c.abort([behind])
        self.assertEqual((left["step"], left["clean"]), (step, True))
        c.world([behind], step)
        c.end([behind])
        self.assert_undisturbed(ahead, behind)

    def test_another_state_of_the_same_number_is_good_no_more(self):
        """Nobody could tell it from the one that was to be given."""
        c = self.coordinator(seconds=0.02)
        ahead, stale = c.start(2)
        c.first_world([ahead, stale])
        stale.wait_for(step=3)
        step = c.barrier([ahead, stale])
        path = c.save(ahead, step)
        pathlib.Path(c.folder, "stop-meeting-0").touch()
        c.world([ahead, stale], step, [stale], handover=True)
        for member in ahead, stale:
            member.wait_for(meeting=True)
        ahead.kill()
        (left,) = c.abort([stale])
        self.assertEqual((left["step"], left["clean"]), (step, False))
        c.world([stale], step, [stale], path)
        c.end([stale])
        self.assert_undisturbed(ahead, stale)

    def test_a_rank_that_hangs_is_not_waited_for_for_ever(self):
        c = self.coordinator(seconds=0.02, ballast=40)
        pathlib.Path(c.folder, "impatient").touch()
        member, hangs, newcomer = c.start(3)
        c.first_world([member, hangs])
        member.wait_for(step=3)
        step = c.barrier([member, hangs])
        pathlib.Path(c.folder, "stop-handover-1").touch()
        c.world([member, hangs, newcomer], step, [newcomer], handover=True)
        fault = newcomer.hear("fault")
        self.assertIn("peers", fault["message"].splitlines()[-1])
        self.assertEqual((fault["step"], fault["clean"]), (0, False))
        hangs.kill()
        (left,) = c.abort([member])
        self.assertEqual((left["step"], left["clean"]), (step, True))
        c.world([member, newcomer], step, [newcomer], c.save(member, step))
        c.end([member, newcomer])
        self.assert_undisturbed(member, newcomer)

    def test_workers_of_two_processes(self):
        c = self.coordinator(seconds=0.02, ballast=20)
        members = c.start(4)
        told = {
            member: {"localRank": rank % 2, "localSize": 2, "workerRank": rank // 2, "workers": 2, "writer": rank % 2 == 0}
            for rank, member in enumerate(members)
        }
        first, newcomers = members[:2], members[2:]
        c.world(first, restoring=first, told={member: told[member] | {"workers": 1} for member in first})
        first[0].wait_for(step=3)
        step = c.barrier(first)
        c.world(members, step, newcomers, told=told, handover=True)
        c.end(members)
        self.assert_undisturbed(*members)
        for newcomer in newcomers:
            self.assertEqual(next(line["done"] for line in newcomer.told if "done" in line), step)

    def test_who_was_not_told_of_it_meets_nobody(self):
        c = self.coordinator(seconds=0.02)
        member, newcomer = c.start(2)
        c.first_world([member])
        member.wait_for(step=3)
        step = c.barrier([member])
        path = c.save(member, step)
        c.world([member, newcomer], step, [newcomer], path, told={newcomer: {"handover": True, "snapshot": ""}})
        left = c.abort([member, newcomer])
        self.assertEqual([message["step"] for message in left], [step, 0])  # Who has not even begun to enter it is clean at 0.
        c.world([member, newcomer], step, [newcomer], path)
        c.end([member, newcomer])
        self.assert_undisturbed(member, newcomer)


if __name__ == "__main__":
    unittest.main()
