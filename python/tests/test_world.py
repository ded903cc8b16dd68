import unittest

from concertina import world
from tests import fakeagent


class FromEnvironment(unittest.TestCase):
    def test_alone(self):
        alone = world.from_environment({"MASTER_ADDR": "elsewhere"})
        self.assertEqual((alone.rank, alone.size, alone.round, alone.workers), (0, 1, 0, 1))

    def test_torchrun(self):
        env = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "2"}
        env |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
        self.assertEqual(world.from_environment(env), world.World(0, 0, 0, 5, 8, 1, 2, 2, 4, "10.0.0.1", 29500))

    def test_ranks_alone_are_enough(self):
        env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
        self.assertEqual(world.from_environment(env), world.World(0, 0, 0, 1, 2, 0, 1, 1, 2, "a", 1))

    def test_one_of_two_names_both(self):
        for there, missing in ("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK"):
            with self.assertRaisesRegex(ValueError, f"{missing} is not set although {there} is"):
                world.from_environment({there: "1"})

    def test_bad_values_name_the_variable(self):
        good = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
        for name, value in [
            ("RANK", None), ("RANK", "2"), ("RANK", "-1"), ("RANK", "one"), ("WORLD_SIZE", None), ("WORLD_SIZE", "0"),
            ("MASTER_ADDR", None), ("MASTER_PORT", None), ("MASTER_PORT", "70000"), ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "3"), ("GROUP_RANK", "2"),
        ]:  # fmt: skip
            env = {k: v for k, v in (good | {name: value}).items() if v is not None}
            with self.assertRaisesRegex(ValueError, name, msg=f"{name}={value}"):
                world.from_environment(env)


class FromMessage(unittest.TestCase):
    def test_whole(self):
        message = fakeagent.world(3, 4, term=7, round=9, localRank=1, localSize=2, workerRank=1, workers=2)
        message |= {"masterPort": 4000, "more": 1}
        self.assertEqual(world.from_message(message), world.World(7, 9, 0, 3, 4, 1, 2, 1, 2, "127.0.0.1", 4000))

    def test_not_whole(self):
        for change in {"rank": 4}, {"rank": -1}, {"size": "4"}, {"round": None}, {"masterPort": 1.5}, {"term": True}:
            with self.assertRaises(ValueError, msg=change):
                world.from_message(fakeagent.world(3, 4) | change)


if __name__ == "__main__":
    unittest.main()
