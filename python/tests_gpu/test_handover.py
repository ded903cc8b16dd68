"""The pieces of a state on a GPU, as they are handed over: between processors, or between devices."""

import json
import unittest

import torch

from concertina import handover, snapshot
from concertina.tensors import InPlace, TensorCodec, memory_of
from tests_gpu import DEVICE


class Pieces(unittest.TestCase):
    def made(self, seed):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(300, 900), torch.nn.Linear(900, 2500), torch.nn.BatchNorm1d(2500)).to(DEVICE)
        opt = torch.optim.AdamW(net.parameters(), lr=0.1 * seed)
        if seed > 1:
            net(torch.randn(8, 300, device=DEVICE)).square().mean().backward()
            opt.step()
            opt.zero_grad()
        return net, opt, {"net": net, "opt": InPlace(opt)}

    def test_what_is_taken_apart_is_put_together(self):
        for exchanged in {"cpu", DEVICE}:
            with self.subTest(exchanged=exchanged):
                self.there_and_back(torch.device(exchanged))

    def there_and_back(self, exchanged):
        """exchanged: where ranks exchange between."""
        (net, opt, state), (other, others, target) = self.made(2), self.made(1)
        image = snapshot.Image({name: thing.state_dict() for name, thing in state.items()}, {"step": 4}, TensorCodec(lambda: [net]))
        parts = dict(image.shared_parts())
        pieces = handover.pieces_of({at: len(part) for at, part in parts.items()})
        private = memory_of(torch.empty(image.shared, dtype=torch.uint8))
        image.copy_private(private)
        outgoing = handover._Outgoing(parts, pieces, exchanged)
        now = {name: thing.state_dict() for name, thing in target.items()}
        description = json.loads(bytes(image.description))
        incoming = handover._Incoming(description, private, TensorCodec(lambda: [other]), now, exchanged)
        self.assertEqual(incoming.pieces, pieces)
        places = [p.data_ptr() for p in other.parameters()]
        for number in range(len(pieces)):
            sent, room = outgoing[number], incoming.room(number)
            self.assertEqual((sent.device.type, room.device.type), (exchanged.type, exchanged.type))
            room.copy_(sent)
            incoming.came(number, room)
        for name, value in incoming.state().items():
            target[name].load_state_dict(value)
        self.assertEqual([p.data_ptr() for p in other.parameters()], places)
        pairs = [*zip(net.state_dict().values(), other.state_dict().values(), strict=True)]
        for a, b in zip(opt.state.values(), others.state.values(), strict=True):
            pairs += [(a[name], b[name]) for name in a]
        for a, b in pairs:
            self.assertEqual(a.device, b.device)
            self.assertTrue(torch.equal(a, b))
        self.assertEqual(others.param_groups[0]["lr"], opt.param_groups[0]["lr"])


if __name__ == "__main__":
    unittest.main()
