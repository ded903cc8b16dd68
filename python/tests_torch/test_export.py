"""Checkpoints that become those of torch.distributed.checkpoint; test_fsdp has one of a real model in shards."""

import contextlib
import io
import json
import os
import pathlib
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from concertina.codec import SnapshotError
from concertina.export import export, main
from concertina.snapshot import Image
from concertina.tensors import TensorCodec
from tests_torch.checkpoint import store


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

    def read(self):
        dcp_to_torch_save(self.out, os.path.join(self.folder, "all.pt"))
        return torch.load(os.path.join(self.folder, "all.pt"), weights_only=True)

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
