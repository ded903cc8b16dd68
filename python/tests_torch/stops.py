"""Has a process of a world stop for good in a handover, where a test wants it: the files in TEST_DIR say of which rank."""

import os
import signal
import time
from collections.abc import Callable

from concertina import handover, shardhandover


def in_handovers(tell: Callable[..., None]) -> None:
    """Has this process stop before it says whether it has a state, or when it gives the first piece of that. It tells where it is at: that it
    meets the others, that it gives something, and that something comes."""
    meet, send, room, folder = handover.Handover._meet, handover.Handover._sent, handover._Incoming.room, os.environ["TEST_DIR"]
    local_rank, local_size = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if os.path.exists(f"{folder}/impatient"):
        handover.LIMIT = 1.0

    def stops(one: handover.Handover, where: str) -> bool:
        return os.path.exists(f"{folder}/stop-{where}-{one._rank * local_size + local_rank}")

    def meets(self, mine):
        tell(meeting=True)
        if stops(self, "meeting"):
            time.sleep(3600)
        return meet(self, mine)

    def gives(self, bytes_, target, tag):
        if tag and stops(self, "handover"):
            tell(handing=True)
            time.sleep(3600)
        return send(self, bytes_, target, tag)

    def comes(self, number):
        if not number:
            tell(coming=True)
        return room(self, number)

    handover.Handover._meet, handover.Handover._sent, handover._Incoming.room = meets, gives, comes


def in_shard_handovers(tell: Callable[..., None]) -> None:
    """The same where ranks give each other rows of a state in shards. It also tells that it keeps some, and how many have some to give."""
    one, folder = shardhandover.ShardHandover, os.environ.get("TEST_DIR", os.devnull)
    meet, send, turn = one.meet, one._sent, one._turn
    hold = shardhandover.Held.__init__
    if os.path.exists(f"{folder}/impatient"):
        handover.LIMIT = shardhandover.LIMIT = 1.0

    def stops(self: shardhandover.ShardHandover, where: str) -> bool:
        return os.path.exists(f"{folder}/stop-{where}-{self._rank.number}")

    def meets(self, keys, cut):
        tell(meeting=True)
        if stops(self, "meeting"):
            time.sleep(3600)
        there = meet(self, keys, cut)
        tell(gives=len(there))
        return there

    def gives(self, bytes_, target, sent):
        if stops(self, "handover"):
            tell(handing=True)
            time.sleep(3600)
        return send(self, bytes_, target, sent)

    def turns(self, *what):
        if stops(self, "turn"):
            os.kill(os.getpid(), signal.SIGSTOP)  # with all of its threads
        turn(self, *what)

    def keeps(self, *what):
        hold(self, *what)
        tell(keeps=self.rank.number)

    one.meet, one._sent, one._turn, shardhandover.Held.__init__ = meets, gives, turns, keeps
