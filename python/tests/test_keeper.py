import contextlib
import errno
import json
import os
import pathlib
import random
import tempfile
import threading
import unittest
from unittest import mock

from concertina.keeper import Keeper
from concertina.reports import room_for, told_of
from concertina.snapshot import LEAST_SHARED, Codec, File, Image, SnapshotError, claim
from concertina.world import Staging, assignment
from tests.fakeagent import world

SECONDS = 20


def write(image, path):
    image.write(image.whole(path))


class Holder:
    def __init__(self):
        self.values = {"a": 1}

    def state_dict(self):
        return self.values

    def load_state_dict(self, values):
        self.values = values


class AnotherTraining(unittest.TestCase):
    def keeper(self, **position):
        return Keeper({"net": Holder()}, Codec(), lambda: {"step": 1} | position)

    def test_its_snapshot_is_refused_in_words(self):
        path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "a.part")
        write(self.keeper(seed=1).image(), path)
        with self.assertRaisesRegex(SnapshotError, "seed=1, this job has seed=2"):
            self.keeper(seed=2).load(path)
        self.assertEqual(self.keeper(seed=1).load(path)["seed"], 1)

    def test_one_that_says_nothing_of_it_is_taken(self):
        path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "a.part")
        write(self.keeper().image(), path)
        self.assertEqual(self.keeper(seed=2).load(path), {"step": 1})


class Agent:
    """Takes every snapshot for good, and remembers what it heard."""

    interval = 0.0
    asked = None
    gate = mock.Mock()
    size = None

    def __init__(self, folder):
        self.snapshots = folder
        self.said = []

    def put(self, kind, step, file="", bytes=0, parts=None, error="", reuses=True, size=None):
        self.said.append((step, "written" if file else error or parts))
        self.size = size or self.size

    def push(self):
        pass

    say = put

    def snapshot_failed(self, step, error):
        self.said.append((step, error))


def assigned(writer=True, rank=0, **fields):
    """A world of four."""
    return assignment(world(rank, 4, writer=writer, **fields), None)


class Shares(unittest.TestCase):
    """What several ranks write of a state that is the same on all of them, but for what is their own."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.weights = os.urandom((LEAST_SHARED + (5 << 20)) + 7)

    def keeper(self, rank, size=None, **fields):
        agent = Agent(tempfile.mkdtemp(dir=self.folder))
        holder = Holder()
        holder.values = {"own": b"of rank %d" % rank, "weights": self.weights[:size], "same": bytes(70_000), "rank": rank}
        keeper = Keeper({"net": holder}, Codec(), lambda: {"step": 7})
        keeper.begin(agent, 7, assigned(rank=rank, **fields))
        return keeper, agent, holder

    def parts(self, keeper, agent):
        """Those that a keeper has written, by key."""
        ((step, parts),) = agent.said
        self.assertEqual(step, 7)
        for part in parts:
            path = os.path.join(agent.snapshots, part["file"])
            self.assertEqual(os.stat(path).st_size, part["bytes"])
        agent.said = []
        return {part["key"]: os.path.join(agent.snapshots, part["file"]) for part in parts}

    def taken(self, periodic):
        """All parts that four ranks write, each two shares."""
        found = {}
        for rank in range(4):
            shares = [rank, (rank + 1) % 4]
            keeper, agent, _ = self.keeper(rank, writer=False, staging={"of": 4, "shares": shares} if periodic else None)
            if periodic:
                keeper.consider(7)
                keeper._keep(7)
                keeper._join()
            else:
                agent.asked = Staging(4, tuple(shares))
                keeper.save(7)
            found |= self.parts(keeper, agent)
        return found

    def load(self, parts, rank):
        layout = next(iter(parts)).split(".", 1)[1]
        keeper, _, holder = self.keeper(3)
        holder.values = {}
        position = keeper.load(parts[f"r{rank}.{layout}"], [parts[f"s{i}.{layout}"] for i in range(4)])
        self.assertEqual(position, {"step": 7})
        return holder.values

    def test_any_rank_reads_what_all_have_written(self):
        for periodic in True, False:
            parts = self.taken(periodic)
            self.assertEqual(sorted(key.split(".")[0] for key in parts), ["r0", "r1", "r2", "r3", "s0", "s1", "s2", "s3"])
            for rank in 0, 2:
                self.assertEqual(
                    self.load(parts, rank),
                    {"own": b"of rank %d" % rank, "weights": self.weights, "same": bytes(70_000), "rank": rank},
                )

    def test_the_parts_one_after_another_are_a_whole_file(self):
        parts = self.taken(False)
        layout = next(iter(parts)).split(".", 1)[1]
        path = os.path.join(self.folder, "whole")
        with open(path, "wb") as whole:
            for key in [f"r1.{layout}"] + [f"s{i}.{layout}" for i in range(4)]:
                with open(parts[key], "rb") as part:
                    whole.write(part.read())
        keeper, _, holder = self.keeper(0)
        holder.values = {}
        keeper.load(path)
        self.assertEqual((holder.values["rank"], holder.values["weights"]), (1, self.weights))

    def test_a_rank_has_no_more_in_memory_than_it_writes(self):
        keeper, agent, _ = self.keeper(1, writer=False, staging={"of": 4, "shares": [2]})
        keeper.consider(7)
        keeper._keep(7)
        keeper._join()
        self.assertLess(len(keeper._memory), len(self.weights) // 3)
        self.assertEqual(len(self.parts(keeper, agent)), 2)

    def test_a_missing_share_is_told(self):
        parts = self.taken(False)
        layout = next(iter(parts)).split(".", 1)[1]
        keeper, _, _ = self.keeper(0)
        with self.assertRaisesRegex(SnapshotError, "bytes, not"):
            keeper.load(parts[f"r0.{layout}"], [parts[f"s{i}.{layout}"] for i in range(3)])

    def test_states_of_different_shapes_do_not_fit_together(self):
        layouts = set()
        for size in None, LEAST_SHARED + 1:
            keeper, agent, _ = self.keeper(0, size=size)
            agent.asked = Staging(2, (0,))
            keeper.save(7)
            layouts |= {key.split(".")[2] for key in self.parts(keeper, agent)}
        self.assertEqual(len(layouts), 2)

    def test_a_small_state_is_written_whole_by_the_writer_alone(self):
        for writer, said in (True, [(7, "written")]), (False, []):
            keeper, agent, _ = self.keeper(1, size=1000, writer=writer, staging={"of": 4, "shares": [1]})
            keeper.consider(7)
            keeper._keep(7)
            keeper._join()
            self.assertEqual(agent.said, said)
        for shares, said in ((0,), [(7, "written")]), ((1, 2), [(7, [])]):
            keeper, agent, _ = self.keeper(1, size=1000)
            agent.asked = Staging(4, shares)
            keeper.save(7)
            self.assertEqual(agent.said, said)


class Spares(unittest.TestCase):
    """Files that the agent leaves to be written over."""

    def test_what_is_written_over_is_what_would_have_been_written(self):
        seed = random.randrange(1 << 32)
        print("seed", seed)
        made = random.Random(seed)
        for _ in range(20):
            folder = self.enterContext(tempfile.TemporaryDirectory())
            holder = Holder()
            holder.values = {str(i): made.randbytes(made.choice((1, 7, 64, 70_001, 300_000))) for i in range(made.randint(1, 9))}
            image = Keeper({"net": holder}, Codec(), lambda: {"step": 1}).image()

            def files(name):
                own, spread = os.path.join(folder, name), made.random() < 0.5
                if not spread:
                    return [image.whole(own)]
                return [image.own(own, "r0.2.x"), image.shares(own + "0", "s0.2.x", 0, 2), image.shares(own + "1", "s1.2.x", 1, 2)]

            state = made.getstate()
            fresh = files("fresh")
            made.setstate(state)
            again = files("again")
            for i in range(made.randint(0, 5)):
                with open(os.path.join(folder, f"spare-{i}.part"), "wb") as file:
                    file.write(b"\xff" * made.choice((0, 100, again[0].size, 400_000)))
            spares = claim(folder, again)
            self.assertEqual([name for name in os.listdir(folder) if name.startswith("spare-")], [])
            for a, b in zip(fresh, again, strict=True):
                self.assertEqual(image.write(a), image.write(b, over=b.path in spares))
                with open(a.path, "rb") as one, open(b.path, "rb") as other:
                    self.assertEqual(one.read(), other.read())

    def test_the_largest_is_for_the_largest_and_others_go(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        for name, size in ("spare-0.part", 5), ("spare-1.part", 500), ("spare-2.part", 50), ("other.part", 1):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(bytes(size))
        small, large = (File(os.path.join(folder, name), None, b"", 0, size) for name, size in (("small", 10), ("large", 1000)))
        self.assertEqual(claim(folder, [small, large]), {small.path, large.path})
        self.assertEqual((os.stat(small.path).st_size, os.stat(large.path).st_size), (50, 500))
        self.assertEqual(sorted(os.listdir(folder)), ["large", "other.part", "small"])


class Failures(unittest.TestCase):
    def setUp(self):
        self.step = 0
        self.agent = Agent(self.enterContext(tempfile.TemporaryDirectory()))
        self.keeper = Keeper({"net": Holder()}, Codec(), lambda: {"step": self.step})
        self.keeper.begin(self.agent, 0, assigned())

    def steps(self, count):
        """Makes so many; what the agent heard meanwhile."""
        self.agent.said = []
        for _ in range(count):
            if self.step >= self.keeper.due:
                self.keeper.consider(self.step)
            self.keeper._join()
            self.step += 1
        return self.agent.said

    def test_a_write_that_fails_in_any_way_is_told_and_followed_by_others(self):
        for error in OSError(errno.ENOSPC, "no space left"), ValueError("of whatever kind"):
            with mock.patch.object(Image, "write", side_effect=error):
                heard = self.steps(3)
            self.assertTrue(heard)
            for _, text in heard:
                self.assertRegex(text, "no space left|of whatever kind")
            self.assertIn("written", [text for _, text in self.steps(3)])

    def test_a_volume_that_is_too_small_is_told_with_the_size_that_would_do(self):
        full, other = OSError(errno.ENOSPC, "no space left on device"), OSError(errno.EIO, "broken")
        for error, size, told in (full, 5 << 20, "Mi would do"), (full, 5 << 30, "Gi would do"), (other, 5 << 30, "broken: /f/1.part"):
            text = told_of(error, [File("/f/1.part", None, b"", 0, size), File("/f/2.part", "s0", b"", 0, size)], 0, 2 * size)
            self.assertIn(told, text)
        files = [File("/f/1.part", "r0", b"", 0, 1 << 20), File("/f/2.part", "s0", b"", 0, 99 << 20)]
        text = told_of(full, files, 1, 400 << 20)
        self.assertIn("/f/2.part", text)
        self.assertIn("spec.checkpoint.memory: 500Mi would do, with a storage 600Mi. Suspend the job", text)
        self.assertLess(len(text), 256)
        text = told_of(full, files, 5, 100 << 20)
        self.assertIn("/f/2.part", text)
        # One that is uploaded slowly keeps its memory though two newer ones are held and a third is written.
        how = "Suspend the job to change it, or with auto for new volumes; it adds to the container's memory"
        self.assertTrue(text.endswith(f"spec.checkpoint.memory: 300Mi would do, with a storage 400Mi. {how}"), text)
        with mock.patch.object(Image, "write", side_effect=full):
            for _, text in self.steps(3):
                self.assertIn("spec.checkpoint.memory: 1Mi would do", text)

    def test_the_room_that_a_worker_needs_is_what_the_operator_reckons(self):
        vectors = json.loads((pathlib.Path(__file__).parents[2] / "testdata" / "room.json").read_text())
        self.assertTrue(vectors)
        for v in vectors:
            of_shards = {key: v[key] for key in ("own", "shards", "copies") if key in v}
            self.assertEqual(room_for(v["written"], v["state"], stored=v["stored"], **of_shards), v["room"], v)

    def test_the_size_of_the_state_is_told_whether_it_could_be_written_or_not(self):
        for error in None, OSError(errno.ENOSPC, "no space left on device"):
            self.agent.size = None
            with mock.patch.object(Image, "write", side_effect=error) if error else contextlib.nullcontext():
                self.assertTrue(self.steps(3))
            size = self.agent.size
            self.assertEqual(size["own"], size["state"], "it is too small to be shared")
            self.assertGreaterEqual(size["written"], size["state"])
        self.keeper.save(self.step)
        self.assertEqual(self.agent.size["written"], 0, "what is written at a barrier is no measure")

    def test_a_thread_that_cannot_start_is_told_and_nobody_waits_for_it(self):
        self.steps(2)
        for fenced in False, True:
            if fenced:
                self.keeper.fence()
            with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
                heard = self.steps(4)
            self.assertEqual(
                {text for _, text in heard},
                {"no thread to write the snapshot with (can't start new thread): raise the limit of processes of the pod"},
            )
            self.returns(self.keeper.fence)
            self.keeper._cadence.held = 1
            self.assertIn("written", [text for _, text in self.steps(3)])

    def test_reports_come_in_the_order_of_snapshots_and_nobody_waits_for_them(self):
        self.steps(2)
        self.keeper.fence()
        self.agent.said = []
        arrived, taken = threading.Semaphore(0), threading.Event()

        def push():  # Nobody reads.
            arrived.release()
            taken.wait()

        self.addCleanup(taken.set)
        with mock.patch.object(self.agent, "push", push):
            for _ in range(2):
                self.step += 1
                self.keeper._keep(self.step)
                self.returns(self.keeper.fence)
                self.assertTrue(arrived.acquire(timeout=SECONDS))
            self.assertEqual(self.agent.said, [(self.step - 1, "written"), (self.step, "written")])
            self.returns(self.keeper.forget)
        taken.set()
        self.keeper._join()

    def test_a_folder_that_hangs_holds_nobody_up_for_ever(self):
        """Neither an optimizer, nor who loads another state; what comes of it at last is no snapshot."""
        for wait in self.keeper.fence, self.keeper._join:
            with self.subTest(wait.__name__):
                self.step += 2
                self.agent.said = []
                taken = threading.Event()
                real = Image.write

                def write(image, file, halted, over):
                    taken.wait()
                    return real(image, file, halted, over)

                self.keeper._fenced, self.keeper._begun = True, True
                with mock.patch.object(Image, "write", write), mock.patch("concertina.keeper.STUCK", 0.01):
                    self.keeper._keep(self.step)
                    stuck = self.keeper._thread
                    self.returns(wait)
                    self.returns(wait)
                ((step, text),) = self.agent.said
                self.assertEqual(step, self.step)
                self.assertRegex(text, "nothing more of the snapshot could be written for 0.01 s")
                self.assertRegex(text, "Delete the pod.* and look at its node$")
                self.keeper._keep(self.step)
                self.assertIs(self.keeper._thread, stuck)  # One at a time, as long as it lasts.
                taken.set()
                stuck.join(SECONDS)
                self.assertEqual((len(self.agent.said), os.listdir(self.agent.snapshots)), (1, []))
                self.keeper._keep(self.step)
                self.keeper.fence()
                self.keeper._join()
                self.assertEqual(self.agent.said[1:], [(self.step, "written")])
                for name in os.listdir(self.agent.snapshots):
                    os.unlink(os.path.join(self.agent.snapshots, name))

    def hangs(self, taken):
        """Begins a snapshot that is written once that is set, and gives it up; its thread."""
        real = Image.write

        def write(image, file, halted, over):
            taken.wait()
            return real(image, file, halted, over)

        self.addCleanup(taken.set)
        with mock.patch.object(Image, "write", write), mock.patch("concertina.keeper.STUCK", 0.01):
            self.keeper._keep(self.step)
            self.returns(self.keeper._join)
        return self.keeper._thread

    def test_as_long_as_what_was_given_up_lives_only_a_barrier_writes_another_snapshot(self):
        """Its end would let one more begin over the memory from which the one after it is written."""
        self.steps(2)
        taken = threading.Event()
        stuck = self.hangs(taken)
        self.agent.said = []
        with mock.patch("concertina.keeper.STUCK", 0.01):
            self.keeper.save(self.step)
            self.keeper._keep(self.step)
            self.keeper._begun, self.step = False, 0
            self.keeper.consider(0)
        self.assertEqual([text for _, text in self.agent.said], ["written"])
        self.assertIs(self.keeper._thread, stuck)
        taken.set()
        stuck.join(SECONDS)
        self.keeper._keep(self.step)
        self.keeper._join()
        self.assertIsNot(self.keeper._thread, stuck)
        self.assertEqual([text for _, text in self.agent.said], ["written", "written"])

    def test_a_folder_that_hangs_when_files_are_removed_holds_nobody_up_for_ever(self):
        """A snapshot has failed, or its world is over, and what there is of it goes."""
        for fails in True, False:
            with self.subTest(fails=fails):
                self.steps(2)
                self.agent.said = []
                removed, taken, written = threading.Event(), threading.Event(), threading.Event()
                self.addCleanup(taken.set)

                def write(image, file, halted, over):
                    written.wait()
                    if fails:
                        raise OSError(errno.EIO, "broken")
                    return 0

                def remove(files):
                    removed.set()
                    taken.wait()

                with (
                    mock.patch.object(Image, "write", write),
                    mock.patch("concertina.keeper.remove", remove),
                    mock.patch("concertina.keeper.STUCK", 0.01),
                ):
                    self.keeper._keep(self.step)
                    if not fails:
                        self.keeper.forget()
                    written.set()
                    self.assertTrue(removed.wait(SECONDS))
                    self.returns(self.keeper._join)
                    ((_, text),) = self.agent.said
                    self.assertIn("nothing more of the snapshot could be written", text)
                    stuck = self.keeper._thread
                    self.keeper._keep(self.step)
                    self.assertIs(self.keeper._thread, stuck)
                    taken.set()
                    stuck.join(SECONDS)
                self.assertEqual(len(self.agent.said), 1)
                self.keeper.begin(self.agent, self.step, assigned())
                self.assertIn("written", [text for _, text in self.steps(3)])

    def test_the_first_one_after_a_handover_is_taken_when_the_one_before_is_written(self):
        """Those who have come hold none."""
        self.agent.interval = 1e6
        self.keeper.begin(self.agent, self.step, assigned())
        self.steps(2)
        real, written = Image.write, threading.Event()
        self.addCleanup(written.set)

        def write(*arguments):
            written.wait(SECONDS)
            return real(*arguments)

        with mock.patch.object(Image, "write", write):
            self.keeper._keep(self.step)
            self.keeper.forget()
            self.keeper.begin(self.agent, self.step, assigned(handover=True))
            for _ in range(3):
                self.keeper.consider(self.step)
                self.step += 1
                self.assertEqual(self.keeper.due, self.step)
            written.set()
            self.keeper._join()
        self.assertEqual([text for _, text in self.steps(3)], ["written"])

    def test_a_slow_folder_is_not_one_that_hangs(self):
        """What counts is whether it moves."""
        self.step = 2
        self.keeper._fenced = True
        moved = threading.Event()
        real, clock = Image.write, iter(range(0, 10**6, 50))

        def write(image, file, halted, over):
            for _ in range(10):
                halted()
            moved.set()
            return real(image, file, halted, over)

        with mock.patch.object(Image, "write", write), mock.patch("concertina.keeper.STUCK", 60), mock.patch(
            "concertina.keeper._seconds", lambda: next(clock)
        ):
            self.keeper._keep(self.step)
            self.keeper.fence()
            self.keeper._join()
        self.assertTrue(moved.is_set())
        self.assertEqual(self.agent.said, [(2, "written")])

    def returns(self, call):
        """Calls something that must not wait."""
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(SECONDS)
        self.assertFalse(thread.is_alive(), f"{call.__name__} waits")

    def test_running_out_of_memory_is_told_and_training_goes_on(self):
        self.steps(2)
        for error in MemoryError(), OSError(errno.ENOMEM, "cannot allocate"):
            with mock.patch.object(self.keeper, "_copy", side_effect=error):
                heard = self.steps(3)
            self.assertTrue(heard)
            for _, text in heard:
                self.assertIn("no memory for a copy of the state", text)
            self.assertIn("written", [text for _, text in self.steps(3)])

    def test_running_out_of_memory_at_the_barrier_is_told(self):
        with mock.patch.object(self.keeper, "image", side_effect=MemoryError):
            self.keeper.save(0)
        ((step, text),) = self.agent.said
        self.assertEqual(step, 0)
        self.assertIn("no memory for a copy of the state (MemoryError)", text)
        self.assertIn("raise resources.limits.memory of the training container", text)

    def test_a_first_state_that_found_no_memory_is_not_taken_for_the_present_one(self):
        with mock.patch.object(self.keeper, "_memory_of", side_effect=MemoryError):
            self.keeper.consider(0)
        with self.assertRaisesRegex(SnapshotError, "nothing is left"):
            self.keeper.load("")


if __name__ == "__main__":
    unittest.main()
