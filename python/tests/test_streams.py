"""Which samples of a stream each step uses, whatever happens to those who use them."""

import random
import unittest
from collections import Counter
from unittest import mock

from concertina import streams
from concertina.plan import Place
from concertina.streams import Reader, Stream

SEEDS = 300


class Numbered:
    """A stream whose samples say where they are from; each has its own length in each epoch."""

    def __init__(self, lengths, seeks=False):
        self.lengths = lengths  # by epoch, from the first again after the last
        self.opened = Counter()
        self.stream = Stream(self.seek if seeks else self.open, shards=len(lengths[0]), seeks=seeks)

    def open(self, shard, epoch):
        return self.seek(shard, epoch, 0)

    def seek(self, shard, epoch, first):
        self.opened[shard] += 1
        for number in range(first, self.lengths[epoch % len(self.lengths)][shard]):
            yield epoch, shard, number


class Lost(Exception):
    """A rank of the world is gone."""


class Rank:
    """One process: where it is, and what it has read."""

    def __init__(self, stream, plan, place):
        self.reader, self.plan, self.place = Reader(stream), plan, place

    def enter(self, size, rank):
        self.size, self.rank = size, rank
        self.reader.deal(size, rank)


class Training:
    """The ranks of a job, one step after another, and what an exchange between them is."""

    def __init__(self, data, plan, size):
        self.data, self.plan = data, plan
        self.ranks = [self.newcomer(Place()) for _ in range(size)]
        self.exchanges = 0
        self.enter()

    def newcomer(self, place):
        return Rank(self.data.stream, self.plan, Place.of(place.numbers()))

    def enter(self):
        for rank, member in enumerate(self.ranks):
            member.enter(len(self.ranks), rank)

    def step(self, lost_at=None):
        """What each rank uses in the next step, and the step's batch. lost_at: the exchange in which a rank is lost."""
        batches = self.coming(lost_at)
        assert all(batch == batches[0] for batch in batches), batches
        parts = []
        for member, batch in zip(self.ranks, batches, strict=True):
            own = self.plan.mine(batch, member.size, member.rank)
            pieces = self.plan.part(batch, member.size, member.rank)
            assert sum(piece.samples for piece in pieces) == len(own)
            assert all(0 < piece.samples <= self.plan.micro_batch for piece in pieces)
            parts.append(member.reader.take(own))
        return parts, batches[0]

    def commit(self, batch):
        for member in self.ranks:
            member.place = self.plan.after(member.place, batch)

    def coming(self, lost_at):
        """The batch of each rank: all look, tell each other, and go on when all have."""
        answers, asked = [{} for _ in self.ranks], 0
        while True:
            batches, said = [], []
            for member, known in zip(self.ranks, answers, strict=True):
                try:
                    batches.append(self.plan.batch(member.place, self.asking(member, known, said)))
                except _Asks:
                    pass
            if not said:
                return batches
            assert len(said) == len(self.ranks), "some exchange and others do not"
            if asked == lost_at:
                raise Lost
            asked += 1
            self.exchanges += 1
            together = {shard: length for ends in said for shard, length in ends.items()}
            for known in answers:
                known[len(known)] = together

    def asking(self, member, known, said):
        count = iter(range(1000))

        def look(epoch, low, high, ends):
            turn = next(count)
            if turn in known:
                return ends | known[turn]
            said.append(member.reader.look(epoch, low, high, ends))
            raise _Asks

        return look


class _Asks(Exception):
    """It waits for the others."""


class Standing(unittest.TestCase):
    def test_it_is_turns_of_those_that_have_not_ended(self):
        for seed in (random.SystemRandom().randrange(2**32) for _ in range(SEEDS)):
            with self.subTest(seed=seed):
                draw = random.Random(seed)
                shards = draw.randint(1, 9)
                lengths = [draw.randint(0, 12) for _ in range(shards)]
                order = sorted((number, shard) for shard in range(shards) for number in range(lengths[shard]))
                for used in range(len(order) + 3):
                    want = Counter(shard for _, shard in order[:used])
                    got = streams.standing(used, dict(enumerate(lengths)), shards)
                    self.assertEqual(got, [want[shard] for shard in range(shards)])
                    # Those that have more than was taken may as well be unknown.
                    known = {shard: length for shard, length in enumerate(lengths) if length <= got[shard]}
                    if used <= len(order):
                        self.assertEqual(streams.standing(used, known, shards), got)


class Worlds(unittest.TestCase):
    """Random trainings, in which ranks come, leave, and are lost, all state with them at times."""

    def training(self, draw):
        shards, epochs = draw.randint(1, 12), draw.randint(1, 3)
        most = draw.choice([3, 20])
        lengths = [[draw.choice([0, draw.randint(0, most), most]) for _ in range(shards)] for _ in range(epochs)]
        for each in lengths:
            each[draw.randrange(shards)] = most
        data = Numbered(lengths, seeks=draw.random() < 0.5)
        batch = draw.randint(1, 30)
        plan = streams.plan(data.stream, global_batch=batch, micro_batch=draw.randint(1, batch), epochs=epochs)
        return data, plan

    def undisturbed(self, data, plan):
        """The samples of each step in a world of one."""
        training, steps = Training(data, plan, 1), []
        while not plan.over(training.ranks[0].place):
            (samples,), batch = training.step()
            steps.append(samples)
            training.commit(batch)
        return steps

    def check(self, data, plan, steps):
        """Each sample once, in the order of turns, and all steps of an epoch as large as they should be."""
        for epoch, lengths in enumerate(data.lengths):
            of = [step for step in steps if step[0][0] == epoch]
            want = [(epoch, s, n) for n, s in sorted((n, s) for s in range(len(lengths)) for n in range(lengths[s]))]
            self.assertEqual([sample for step in of for sample in step], want)
            self.assertTrue(all(len(step) == plan.global_batch for step in of[:-1]))

    def test_each_sample_once_whatever_happens(self):
        for seed in (random.SystemRandom().randrange(2**32) for _ in range(SEEDS)):
            with self.subTest(seed=seed):
                draw = random.Random(seed)
                data, plan = self.training(draw)
                want = self.undisturbed(data, plan)
                self.check(data, plan, want)
                self.assertEqual(self.disturbed(draw, data, plan), want)

    def disturbed(self, draw, data, plan):
        training, done = Training(data, plan, draw.randint(1, 6)), []
        snapshots, losses = [Place().numbers()], 5
        while not plan.over(training.ranks[0].place):
            what = draw.random()
            if what < 0.15:
                self.change(draw, training)
            elif what < 0.2 and losses:  # All state is gone but an old one.
                losses -= 1
                numbers = draw.choice(snapshots)
                del done[numbers["step"] :], snapshots[snapshots.index(numbers) + 1 :]
                for member in training.ranks:
                    member.place = Place.of(numbers)
                self.change(draw, training)
            try:
                parts, batch = training.step(draw.randint(0, 3) if draw.random() < 0.2 else None)
            except Lost:
                self.change(draw, training)
                continue
            if draw.random() < 0.1:  # lost in the middle of it
                self.change(draw, training)
                continue
            training.commit(batch)
            done.append([sample for _, sample in sorted((s[::-1], s) for part in parts for s in part)])
            self.assertEqual(len(done[-1]), batch.samples)
            self.assertEqual({member.place for member in training.ranks}, {training.ranks[0].place})
            if draw.random() < 0.3:
                snapshots.append(training.ranks[0].place.numbers())
        return done

    def change(self, draw, training):
        """Some stay, in another order, and some come with the state of those who are there."""
        place = training.ranks[0].place
        stay = draw.sample(training.ranks, draw.randint(0, len(training.ranks)))
        size = draw.randint(1, 6)
        training.ranks = (stay + [training.newcomer(place) for _ in range(size)])[:size]
        draw.shuffle(training.ranks)
        training.enter()


class Costs(unittest.TestCase):
    def test_ranks_talk_once_in_a_step_in_which_nothing_ends(self):
        data = Numbered([[100] * 8])
        training = Training(data, streams.plan(data.stream, global_batch=16, max_steps=9), 4)
        for _ in range(9):
            _, batch = training.step()
            training.commit(batch)
        self.assertEqual(training.exchanges, 9)
        self.assertEqual(data.opened, dict.fromkeys(range(8), 1))

    def test_who_stays_reads_on_where_it_was(self):
        data = Numbered([[100] * 6])
        training = Training(data, streams.plan(data.stream, global_batch=12, max_steps=9), 2)
        _, batch = training.step()
        training.commit(batch)
        training.step()  # which is broken off
        training.ranks.append(training.newcomer(training.ranks[0].place))
        training.enter()
        parts, _ = training.step()
        self.assertEqual([len(part) for part in parts], [4, 4, 4])
        # 0 and 3 were of rank 0 and are, 1 was of rank 1 and is.
        self.assertEqual([data.opened[shard] for shard in range(6)], [1, 1, 2, 2, 2, 2])

    def test_shards_are_dealt_evenly(self):
        data = Numbered([[100] * 12])
        plan = streams.plan(data.stream, global_batch=4, max_steps=9)
        for size in 1, 2, 4:
            training = Training(data, plan, size)
            for _ in range(5):
                parts, batch = training.step()
                training.commit(batch)
                self.assertEqual([len(part) for part in parts], [4 // size] * size)


class Mistakes(unittest.TestCase):
    def test_streams(self):
        with self.assertRaisesRegex(TypeError, "give a function that opens a shard"):
            Stream([1, 2], shards=2)
        with self.assertRaisesRegex(TypeError, "shards is 'x': it must be a whole number"):
            Stream(iter, shards="x")
        for shards in 0, 2**16 + 1:
            with self.assertRaisesRegex(ValueError, f"shards is {shards}"):
                Stream(iter, shards=shards)

    def training(self, open, shards=1, size=1, **options):
        stream = Stream(open, shards=shards)
        return Training(mock.Mock(stream=stream), streams.plan(stream, global_batch=2, max_steps=9), size)

    def test_a_stream_without_samples(self):
        with self.assertRaisesRegex(ValueError, "no samples in epoch 0"):
            self.training(lambda shard, epoch: [], shards=3).step()
        training = self.training(lambda shard, epoch: [1] * (2 - 2 * epoch))
        _, batch = training.step()
        self.assertTrue(batch.ends_epoch)
        training.commit(batch)
        with self.assertRaisesRegex(ValueError, "no samples in epoch 1"):
            training.step()

    def test_a_shard_that_is_another_one_when_it_is_opened_again(self):
        for lengths in [9, 0], [9, 1], [9, 2], [2, 9]:
            opened = iter(lengths)
            training = self.training(lambda shard, epoch: range(next(opened)) if not shard else range(9), shards=2)
            for _ in range(2):
                _, batch = training.step()
                training.commit(batch)
            training.ranks = [training.newcomer(training.ranks[0].place)]
            training.enter()
            if lengths[0] == 2:
                training.step()  # It has ended, and is not opened again.
                continue
            with self.assertRaisesRegex(RuntimeError, r"shard 0 of the stream ends after [012] samples, and had at least 3"):
                training.step()

    def test_one_that_has_raised_has_not_ended(self):
        fails = iter([True])

        def open(shard, epoch):
            yield 1
            if next(fails, False):
                raise OSError("the network is gone")
            yield 2

        training = self.training(open)
        with self.assertRaises(OSError):
            training.step()
        self.assertEqual(training.step()[0], [[1, 2]])

    def test_an_end_that_nobody_has_heard_of_is_looked_at_again(self):
        ends = iter([True])

        def open(shard, epoch):
            yield 1
            if next(ends, False):
                return  # as somebody does whose connection is shut down
            yield 2

        training = self.training(open)
        with self.assertRaises(Lost):
            training.step(lost_at=0)
        training.enter()
        self.assertEqual(training.step()[0], [[1, 2]])


if __name__ == "__main__":
    unittest.main()
