"""How long a process works itself, by a clock that the test moves."""

import threading
import unittest
from unittest import mock

from concertina.worktime import LATE, WorkTime, share_of
from tests.test_worlds import Case, Program


class Clock:
    def __init__(self):
        self.now = 1000

    def __call__(self):
        return self.now


class OfSteps(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.work = WorkTime(self.clock)

    def spend(self, nanoseconds):
        self.clock.now += nanoseconds

    def test_waiting_and_what_the_loop_does_are_left_out(self):
        for step in range(1, 4):
            self.spend(7000)  # at the gate
            self.work.go()
            self.spend(100)
            with self.work.waits():
                self.spend(5000)
                with self.work.waits():
                    self.spend(500)
                self.spend(500)
            self.spend(30)
            self.work.done(10, 1.0)
            self.assertEqual(self.work.total, 120 * step + 20 * (step - 1))
            self.spend(20)  # the program's, before it asks for the next step
            self.work.rest()

    def test_what_is_not_known_is_not_counted(self):
        self.work.go()
        self.spend(100)
        self.work.done(None, 1.0)
        self.assertEqual(self.work.total, 0)
        self.spend(50)
        self.work.done(60, 1.0)  # waited for longer than it took: clocks of two devices
        self.assertEqual(self.work.total, 0)
        self.assertFalse(self.work.told)

    def step(self, own, waited):
        self.work.go()
        self.spend(own)
        self.work.done(waited, 1.0)
        self.work.rest()

    def test_what_becomes_known_late_is_counted_then(self):
        # A device is behind, and is caught up with in each fourth step, in which its marks are ready. A step takes 70.
        waits = [None] * 12
        for i in range(12):
            if i % 4 == 3:
                waits[i - 3 : i + 1] = [30, 30, 20, 40]
            self.step(391 if i % 4 == 3 else 3, lambda i=i: waits[i])
            self.assertEqual(self.work.total, 4 * 70 * ((i + 1) // 4))

    def test_who_looks_at_its_device_seldom_is_like_who_does_in_each_step(self):
        # All marks are ready at once, and most steps take the host less than the device has waited in them.
        seldom, often = [], []
        for steps in seldom, often:
            self.work = WorkTime(self.clock)
            for i in range(40):
                self.step(100 if steps is often else 991 if i % 10 == 9 else 1, 30)
                steps.append(self.work.total)
        self.assertEqual(seldom[9::10], often[9::10])
        self.assertEqual(seldom, sorted(seldom))

    def test_what_was_waited_more_than_worked_is_not_owed_for_ever(self):
        for _ in range(10 * LATE):
            self.step(10, 1000)
        self.assertEqual(self.work.total, 0)
        for _ in range(2 * LATE):
            self.step(1000, 10)
        self.assertGreaterEqual(self.work.total, LATE * 990)

    def test_marks_that_never_come_cost_no_memory_and_count_as_other_steps_do(self):
        for _ in range(10):
            self.step(100, 30)
        for _ in range(1000):
            self.step(100, lambda: None)
        self.assertEqual(self.work.total, 70 * (10 + 1000 - LATE))
        self.work.enter()  # With another world those go that nobody knows yet.
        self.step(100, 30)
        self.assertEqual(self.work.total, 70 * (10 + 1000 - LATE + 1))

    def test_a_step_that_was_not_done_is_forgotten(self):
        self.work.go()
        with self.assertRaises(ConnectionError), self.work.waits():
            self.spend(100)
            raise ConnectionError
        self.spend(100)
        self.work.enter()
        self.work.go()
        self.spend(5)
        self.work.done(0, 1.0)
        self.assertEqual(self.work.total, 5)

    def test_an_evaluation_is_no_work(self):
        with self.work.waits():
            self.spend(9)
        self.work.rest()
        self.assertFalse(self.work.told, "a program is not compared for what it waits in an evaluation alone")
        self.work.go()
        self.work.done(0, 1.0)
        self.assertEqual(self.work.total, 0)

    def test_another_thread_waits_for_nobody_who_trains(self):
        def elsewhere():
            with self.work.waits():
                self.spend(1000)

        self.work.go()
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        self.assertFalse(self.work.told)
        with self.work.waits():
            other = threading.Thread(target=elsewhere)
            other.start()
            other.join()
        self.spend(100)
        self.work.done(0, 1.0)
        self.assertEqual(self.work.total, 1100)

    def test_an_exchange_that_is_known_is_not_counted_twice(self):
        for step in 1, 2:
            self.work.go()
            self.spend(100)
            with self.work.waits():  # around a backward pass
                self.spend(50)
                self.work.knows()
                self.spend(1000)
            with self.work.waits():
                self.spend(500)
            self.work.done(1000, 1.0)
            self.assertEqual(self.work.total, 150 * step)
            self.work.rest()
        self.work.go()
        self.work.knows()  # as a rule it is in no such block
        with self.work.waits():
            self.spend(500)
        self.spend(100)
        self.work.done(0, 1.0)
        self.assertEqual(self.work.total, 400)

    def test_who_has_more_samples_is_not_slow_for_that(self):
        self.assertEqual([share_of(5, 4, n) for n in (1, 2)], [1.0, 0.5])
        self.assertEqual([share_of(2, 4, n) for n in (0, 1)], [1.0, 1.0])
        self.assertEqual(share_of(8, 4, 2), 1.0)
        self.assertEqual(share_of(8, 4, 1), 1.0)  # of a stream, whose ranks have what their shards have
        self.work.go()
        self.spend(100)
        self.work.done(0, 0.5)
        self.assertEqual(self.work.total, 50)


class Waiting(Program):
    """Works for 100 ns in each step, and waits for 1000."""

    clock = Clock()

    def step(self, step):
        self.clock.now += 100
        with step.waits():
            self.clock.now += 1000
        super().step(step)

    def evaluate(self, step):
        self.clock.now += 10**6
        super().evaluate(step)


class OnTheGatePage(Case):
    def ends(self, program):
        with mock.patch("concertina.job.WorkTime", lambda: WorkTime(Waiting.clock)):
            agent, program = self.start(program=program)
        agent.hear("snapshot")
        self.finish(agent, program)
        return agent.worked()

    def test_a_program_that_says_what_it_waits(self):
        # 10 samples in steps of 4, in a world of one: nobody has more than it has.
        self.assertEqual(self.ends(Waiting), 6 * 100)

    def test_a_program_that_does_not(self):
        self.assertEqual(self.ends(Program), 0)
