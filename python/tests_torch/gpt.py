"""A GPT that learns to count in steps of different width, for tests: with what a training of one has, in small.

Arguments: steps, width, layers. Tells the loss of each step as JSON lines, and in the end that of texts which it has not seen.
"""

import json
import math
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import concertina.torch as elastic

STEPS, WIDTH, LAYERS = map(int, sys.argv[1:])
TOKENS, LONGEST, PADDING = 128, 48, -100


def tell(**what) -> None:
    print(json.dumps(what | {"at": time.time_ns()}), flush=True)


def texts(count: int, seed: int) -> TensorDataset:
    """Texts of different length, filled up with padding."""
    generator = torch.Generator().manual_seed(seed)
    first, width, length = (torch.randint(low, high, (count, 1), generator=generator) for low, high in ((0, TOKENS), (1, 9), (8, LONGEST + 1)))
    places = torch.arange(LONGEST)
    return TensorDataset(((first + width * places) % TOKENS).masked_fill(places >= length, PADDING))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.asks, self.answers = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.thinks = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        parts = self.asks(self.before(x)).unflatten(-1, (3, 4, WIDTH // 4)).unbind(2)
        found = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts), is_causal=True)
        x = x + self.answers(found.transpose(1, 2).flatten(2))
        return x + self.thinks(self.between(x))


class Gpt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(TOKENS, WIDTH), torch.nn.Embedding(LONGEST, WIDTH)
        for table in self.words, self.places:
            torch.nn.init.normal_(table.weight, std=0.02)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = self.words(x) + self.places.weight[: x.shape[1]]
        return self.last(self.blocks(x)) @ self.words.weight.t()


def loss_of(net: Gpt, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean loss over what is no padding, and over how many tokens that is."""
    seen, wanted = batch[:, :-1].clamp(min=0), batch[:, 1:]
    with torch.autocast("cpu", torch.bfloat16):
        guesses = net(seen)
    return F.cross_entropy(guesses.float().flatten(0, 1), wanted.flatten(), ignore_index=PADDING), (wanted != PADDING).sum()


def main() -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    net = Gpt()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1)
    warm_up = STEPS // 10
    schedule = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda step: min((step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * step / STEPS))
    )
    job = elastic.join({"net": net, "opt": opt, "schedule": schedule}, seed=7, backend="gloo")
    world = None
    for step in job.steps(texts(200, seed=2), global_batch=12, micro_batch=3, max_steps=STEPS):
        with step:
            if step.world is not world:
                world = step.world
                tell(world=world.round, size=world.size)
            for (batch,) in step.micro_batches():
                loss, tokens = loss_of(net, batch)
                step.backward(loss, weight=tokens)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            schedule.step()
            loss = step.loss.item()
        if step.committed:
            tell(step=step.number, loss=loss)
    with torch.no_grad():
        tell(end=True, unseen=loss_of(net, *texts(64, seed=3).tensors)[0].item(), parameters=sum(p.numel() for p in net.parameters()))


if __name__ == "__main__":
    main()
