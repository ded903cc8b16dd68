"""What a training does next, as a function of where it is: no state, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from concertina import samples

MAX_STEP = 2**62
"""The largest number that a step, a batch or an epoch may have."""

_ENDED = "ended."


class Place(NamedTuple):
    """How far a training is."""

    step: int = 0
    """Steps that are done."""
    samples: int = 0
    """Samples that they used."""
    epoch: int = 0
    """The epoch of the last of them, counted from 0."""
    cursor: int = 0
    """Samples of that epoch that are used."""
    ends: tuple[tuple[int, int], ...] = ()
    """Of a stream, the shards that have ended in it, and how many samples they had."""

    def numbers(self) -> dict[str, int]:
        """The place as a snapshot has it."""
        ends = {f"{_ENDED}{shard}": length for shard, length in self.ends}
        return {"step": self.step, "samples": self.samples, "epoch": self.epoch, "cursor": self.cursor} | ends

    @classmethod
    def of(cls, numbers: Mapping[str, int]) -> "Place":
        """The place in a snapshot."""
        ends = sorted((int(name.removeprefix(_ENDED)), n) for name, n in numbers.items() if name.startswith(_ENDED))
        step, used, epoch, cursor = (numbers.get(name, 0) for name in ("step", "samples", "epoch", "cursor"))
        return cls(step, used, epoch, cursor, tuple(ends))


class Batch(NamedTuple):
    """What one step trains on, over all ranks."""

    epoch: int
    first: int
    """Position of its first sample in the epoch."""
    samples: int
    ends_epoch: bool
    ends: tuple[tuple[int, int], ...] = ()
    """Of a stream, the shards that have ended when the step is done; see Place.ends."""


@dataclass(frozen=True)
class Plan:
    """The steps of a whole training."""

    data: int
    """Samples in an epoch."""
    global_batch: int
    """Samples in a step, over all ranks; an epoch's last step may have fewer."""
    micro_batch: int
    """Samples that a rank computes at once, at most."""
    total: int
    """Steps of the whole training."""
    evaluate: str | int | None
    """After which steps the program evaluates."""

    @property
    def identity(self) -> dict[str, int]:
        """What must be the same in a snapshot that the training goes on from."""
        return {"batch": self.global_batch, "data": self.data}

    def compared(self) -> dict[str, int]:
        """What must be the same on all ranks, by the name that the program knows it under."""
        return {
            "len(data)": self.data, "global_batch": self.global_batch, "micro_batch": self.micro_batch,
            "the number of steps": self.total, "evaluate": number_of(self.evaluate),
        }  # fmt: skip

    def over(self, place: Place) -> bool:
        """Whether no step is left."""
        return place.step >= self.total

    def ended(self, place: Place) -> bool:
        """Whether the place is at the end of an epoch."""
        return place.cursor >= self.data

    def batch(self, place: Place) -> Batch:
        """What the step after a place trains on."""
        epoch, first = place.epoch, place.cursor
        if first >= self.data:
            epoch, first = epoch + 1, 0
        size = min(self.global_batch, self.data - first)
        return Batch(epoch, first, size, first + size == self.data)

    def after(self, place: Place, batch: Batch) -> Place:
        """Where training is when that step is done."""
        return Place(place.step + 1, place.samples + batch.samples, batch.epoch, batch.first + batch.samples)

    def evaluates(self, place: Place) -> bool:
        """Whether the program evaluates at this place, before the next step."""
        return evaluates(self, place)

    def part(self, batch: Batch, size: int, rank: int) -> list[samples.MicroBatch]:
        """What one of so many ranks computes of a step."""
        return samples.micro_batches(batch.first, batch.samples, size, rank, self.micro_batch)


def evaluates(plan: Any, place: Place) -> bool:
    """What Plan.evaluates() says, for plans of any kind."""
    if not place.step or plan.evaluate is None:
        return False
    if plan.over(place):
        return True
    if plan.evaluate == "epoch":
        return plan.ended(place)
    return place.step % plan.evaluate == 0


def number_of(evaluate: str | int | None) -> int:
    """What says after which steps a program evaluates, as a number."""
    return -1 if isinstance(evaluate, str) else evaluate or 0


def plan(
    data: int,
    *,
    global_batch: int,
    micro_batch: int | None = None,
    epochs: int | None = None,
    max_steps: int | None = None,
    evaluate: str | int | None = None,
) -> Plan:
    """The plan that a program asks for. Raises ValueError for what is out of range or contradicts itself, TypeError for
    what is no whole number."""
    wanted = asked(
        global_batch=global_batch, micro_batch=micro_batch, epochs=epochs, max_steps=max_steps, evaluate=evaluate
    )  # fmt: skip
    if data < 1:
        raise ValueError("the data set is empty")
    ends = [] if wanted.max_steps is None else [wanted.max_steps]
    if wanted.epochs is not None:
        ends.append(wanted.epochs * samples.steps_per_epoch(data, wanted.global_batch))
    return Plan(data, wanted.global_batch, wanted.micro_batch, min(ends), evaluate)


class Asked(NamedTuple):
    """What a program says of its steps."""

    global_batch: int
    micro_batch: int
    epochs: int | None
    max_steps: int | None
    evaluate: str | int | None


def asked(
    *,
    global_batch: int,
    micro_batch: int | None,
    epochs: int | None,
    max_steps: int | None,
    evaluate: str | int | None,
) -> Asked:
    """What a program has said, once it makes sense; raises as plan()."""
    global_batch = _from_one("global_batch", global_batch)
    micro_batch = global_batch if micro_batch is None else _from_one("micro_batch", micro_batch)
    if epochs is None and max_steps is None:
        raise ValueError("say when the training ends: epochs=…, max_steps=…, or both, of which the first counts")
    if evaluate not in (None, "epoch") and (type(evaluate) is not int or evaluate < 1):
        raise ValueError(f'evaluate is {evaluate!r}: it must be "epoch", a number of steps from 1, or None')
    max_steps = None if max_steps is None else _from_one("max_steps", max_steps)
    epochs = None if epochs is None else _from_one("epochs", epochs)
    return Asked(global_batch, min(micro_batch, global_batch), epochs, max_steps, evaluate)


def _from_one(name: str, value: Any) -> int:
    number = samples.whole(name, value)
    if not 1 <= number < MAX_STEP:
        raise ValueError(f"{name} is {number}: it must be from 1 to 2^62-1")
    return number
