"""Planned changes, gloo exchanges."""

from tests_gpu.worlds import OnDevice, OneAndTwo
from tests_torch import test_elastic


class Planned(OneAndTwo, OnDevice, test_elastic.Planned):
    pass
