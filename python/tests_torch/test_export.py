"""Checkpoints that become those of torch.distributed.checkpoint; test_fsdp has one of a real model in shards."""

import collections
import contextlib
import io
import json
import os
import pathlib
import tempfile
import tracemalloc
import unittest
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from concertina.codec import Local, SnapshotError
from concertina.export import export, main
from concertina.shards import Rank, Table
from concertina.snapshot import Image
from concertina.tensors import TensorCodec, memory_of
from tests_torch import checkpoint
from tests_torch.checkpoint import store


class ByRows(TensorCodec):
    """Keeps the tensors of so many rows in shards, which are tensors of one process here."""

    def __init__(self, rows, dim):
        """dim: what the rows are along. None: each rank has all of those that have so many."""
        super().__init__()
        self._rows, self._dim = rows, dim

    def shard(self, value, where, rank):
        along = self._dim or 0
        if not isinstance(value, torch.Tensor) or value.dim() <= along or value.shape[along] != self._rows:
            return None
        rows = value.unsqueeze(0) if self._dim is None else value.movedim(along, 0)
        table = Table(where, str(value.dtype).removeprefix("torch."), tuple(rows.shape), value.element_size(), self._dim)
        mine = table.rows(rank)
        return Local(table, memory_of(rows[mine.start : mine.end].contiguous()))


class Exported(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.checkpoint, self.out = os.path.join(self.folder, "1-7"), os.path.join(self.folder, "out")
        torch.manual_seed(1)
        self.state = {
            "net": {"weight": torch.randn(2200, 2000), "half": torch.randn(3).bfloat16(), "count": torch.tensor(7), "none": torch.empty(0, 3)},
            "opt": {"state": {0: {"step": 3.0, "moment": torch.randn(4, 2)}}, "groups": [{"lr": 0.1, "params": [0]}]},
            "note": {"text": "a", "raw": b"\0\1", "rate": float("inf")},
        }

    def image(self) -> Image:
        return Image(self.state, {"step": 7}, TensorCodec())

    def parts(self, **files) -> dict[str, bytes]:
        """The contents of files of an image, by the keys of the parts."""
        found = {}
        image = self.image()
        for name, file in files.items():
            path = os.path.join(self.folder, name)
            made = file(image, path)
            image.write(made)
            found[made.key or "state"] = pathlib.Path(path).read_bytes()
        return found

    def whole(self) -> dict[str, bytes]:
        return self.parts(whole=lambda image, path: image.whole(path))

    def shares(self) -> dict[str, bytes]:
        layout = self.image().layout
        return self.parts(
            s1=lambda image, path: image.shares(path, f"s1.2.{layout}", 1, 2),
            own=lambda image, path: image.own(path, f"r1.2.{layout}"),
            s0=lambda image, path: image.shares(path, f"s0.2.{layout}", 0, 2),
        )

    def shards(self, ranks: int, rows: int, dim: int | None = 0) -> dict[str, bytes]:
        """The parts where the tensors of so many rows are in shards."""
        found = {}
        folder = self.enterContext(tempfile.TemporaryDirectory())
        for number in range(ranks):
            image = Image(self.state, {"step": 7}, ByRows(rows, dim), Rank(number, ranks))
            for file in image.own, image.shard:
                kind = "r" if file == image.own else "d"
                path = os.path.join(folder, f"{kind}{number}")
                made = file(path, f"{kind}{number}.{ranks}.{image.layout}")
                image.write(made)
                found[made.key] = pathlib.Path(path).read_bytes()
        return found

    def read(self, weights_only=True):
        dcp_to_torch_save(self.out, os.path.join(self.folder, "all.pt"))
        return torch.load(os.path.join(self.folder, "all.pt"), weights_only=weights_only)

    def assert_same(self, got):
        self.assertEqual(got.pop("concertina.position"), {"step": 7})
        torch.testing.assert_close(got["net"], self.state["net"], rtol=0, atol=0)
        got["opt"]["state"] = {int(number): value for number, value in got["opt"]["state"].items()}
        torch.testing.assert_close(got["opt"], self.state["opt"], rtol=0, atol=0)
        self.assertEqual(got["note"], self.state["note"])

    def test_a_state_that_is_whole(self):
        store(self.checkpoint, self.whole(), version=1)
        export(self.checkpoint, self.out)
        self.assert_same(self.read())

    def test_a_state_in_shares(self):
        store(self.checkpoint, self.shares(), version=2)
        self.assertEqual(main([self.checkpoint, self.out]), 0)
        self.assert_same(self.read())
        weight = {"net": {"weight": torch.zeros(2200, 2000)}}
        dcp.load(weight, checkpoint_id=self.out)
        torch.testing.assert_close(weight["net"]["weight"], self.state["net"]["weight"], rtol=0, atol=0)

    def containers(self):
        """A state of tensors in what torch.distributed.checkpoint does not take apart. Those of five rows, or three columns, can be in shards."""
        t = torch.randn(5, 3)
        one = torch.nn.Parameter(torch.ones(2))
        opt = torch.optim.AdamW([one], betas=(torch.tensor(0.9), torch.tensor(0.99)), lr=torch.tensor(0.1), capturable=True)
        return {
            "tuple": (t, t + 1, torch.arange(3)), "deque": collections.deque([t + 2]), "bounded": collections.deque([torch.ones(1)], maxlen=2),
            "tuples": [(t + 4, 1), ([t + 5], {"in": t + 6})], "nested": ((t + 7, collections.OrderedDict(a=t + 8)),), "size": (torch.Size([2, 3]),),
            "opt": opt.state_dict() | {"state": {0: {"step": 1.0}}},
        }  # fmt: skip

    def assert_same_containers(self):
        got = self.read(weights_only=False)["a"]
        (in_set,), want = got.pop("set"), dict(self.state["a"])
        torch.testing.assert_close(in_set, *want.pop("set"), rtol=0, atol=0)
        got["opt"]["state"] = {int(number): value for number, value in got["opt"]["state"].items()}
        for name, value in want.items():
            self.assertIs(type(got[name]), type(value), name)
        self.assertEqual(got["bounded"].maxlen, 2)
        self.assertEqual((got.pop("size"), want.pop("size")), ((torch.Size([2, 3]),),) * 2)
        for name in "deque", "bounded":
            got[name], want[name] = list(got[name]), list(want[name])
        torch.testing.assert_close(got, want, rtol=0, atol=0)

    def test_tensors_in_containers_of_any_kind(self):
        for ranks, rows, dim in (None, 5, 0), (1, 5, 0), (3, 5, 0), (2, 3, 1), (2, 5, None):
            with self.subTest(ranks=ranks, dim=dim):
                self.state = {"a": self.containers() | {"set": {torch.randn(5)}}}
                self.checkpoint, self.out = (os.path.join(self.folder, f"{name}-{ranks}-{dim}") for name in ("1-7", "out"))
                store(self.checkpoint, self.shards(ranks, rows, dim) if ranks else self.whole())
                export(self.checkpoint, self.out)
                self.assert_same_containers()

    def refused(self, text, out=None):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(main([self.checkpoint, out or self.out]), 1)
        self.assertRegex(said.getvalue(), text)
        self.assertFalse(os.path.exists(os.path.join(self.out, ".metadata")), "what is not whole is taken for whole")

    def test_what_is_no_checkpoint(self):
        self.refused("there is no .*manifest.json: name the folder of one checkpoint")
        for manifest, text in (
            ("{", "is no manifest"), ("[]", "is no manifest"), ('{"version": 4, "parts": []}', "is of version 4, and 3 is known"),
            ('{"version": 3, "parts": [{"key": "state", "bytes": 5, "pieces": null}]}', "has 0 of the 5 bytes"),
            ('{"version": 3, "parts": [{"key": "state", "bytes": 5, "pieces": [{"bytes": 5, "sha256": "../../x"}]}]}', "names a piece"),
            ('{"version": 3, "parts": [{"key": "gob", "bytes": 0}]}', "the Python SDK does not write"),
            ('{"version": 3, "parts": [{"key": "state", "bytes": 0}]}', "does not start like a snapshot"),
        ):  # fmt: skip
            with self.subTest(manifest):
                os.makedirs(self.checkpoint, exist_ok=True)
                pathlib.Path(self.checkpoint, "manifest.json").write_text(manifest)
                self.refused(text)

    def test_what_is_not_whole(self):
        parts = self.shares()
        del parts[next(key for key in parts if key.startswith("s1"))]
        store(self.checkpoint, parts, version=2)
        self.refused("is not whole: it has the parts r1.*s0")

    def test_names_that_collide(self):
        w = torch.ones(2)
        for state, text in (
            ({"a": {"b.c": w}, "a.b": {"c": w}}, r"\['a'\]\['b.c'\] and \['a.b'\]\['c'\].*'a.b.c'"),
            ({"a": {1: w, "1": 2}}, r"\['a'\]\[1\] and \['a'\]\['1'\]"),
            ({"a": [w], "a.0": 1}, r"\['a'\]\[0\] and \['a.0'\]"),
            ({"concertina": {"position": {"step": 1}}}, r"\['concertina'\].* and \['concertina.position'\]\['step'\]"),
            ({"concertina.position": w}, "has 'concertina.position' in its state"),
        ):  # fmt: skip
            with self.subTest(text), tempfile.TemporaryDirectory() as self.folder:
                self.checkpoint, self.state = os.path.join(self.folder, "1-7"), state
                store(self.checkpoint, self.whole())
                self.refused(text)

    def test_names_that_are_alike_and_do_not_collide(self):
        opt = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
        self.state = {"opt": opt.state_dict(), "a": [1], "a.0": 2, "b": {"c": {}}, "b.c": 3, "d": {"e": 4}, "d.f": torch.ones(1)}
        store(self.checkpoint, self.whole())
        export(self.checkpoint, self.out)
        got = self.read()
        # A mapping without anything in it is left out, as the README says.
        opt.load_state_dict({"state": {}} | got["opt"])
        self.assertEqual(got, {"opt": {"param_groups": opt.state_dict()["param_groups"]}, "a": [1], "a.0": 2, "b.c": 3, "d": {"e": 4},
                               "d.f": torch.ones(1), "concertina.position": {"step": 7}})  # fmt: skip

    def test_memory_does_not_grow_with_the_shards(self):
        self.state = {"net": {str(i): torch.randn(32, 8 << 10) for i in range(32)}}
        with mock.patch.object(checkpoint, "PIECE", 1 << 20):
            store(self.checkpoint, self.shards(ranks=32, rows=32))
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        export(self.checkpoint, self.out)
        self.assertLess(tracemalloc.get_traced_memory()[1], 16 << 20, "32 shards of 1 MiB, and values of as much")
        torch.testing.assert_close(self.read()["net"], self.state["net"], rtol=0, atol=0)

    def test_a_piece_that_was_altered(self):
        store(self.checkpoint, self.whole(), version=1)
        manifest = json.loads(pathlib.Path(self.checkpoint, "manifest.json").read_text())
        piece = pathlib.Path(self.checkpoint, "data", manifest["parts"][0]["pieces"][-1]["sha256"])
        piece.write_bytes(piece.read_bytes()[:-1] + b"x")
        with self.assertRaisesRegex(SnapshotError, "is not what its name says"):
            export(self.checkpoint, self.out)
        self.assertFalse(os.path.exists(os.path.join(self.out, ".metadata")))

    def test_a_folder_that_has_something_in_it(self):
        store(self.checkpoint, self.whole(), version=1)
        self.refused("is not empty", out=self.folder)
