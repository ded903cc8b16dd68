"""Losses of ranks, gloo exchanges."""

from tests_gpu.worlds import OnDevice
from tests_torch import test_elastic, test_live


class FromSnapshots(OnDevice, test_elastic.Recovery):
    pass


class FromTheState(OnDevice, test_live.Recovery):
    pass
