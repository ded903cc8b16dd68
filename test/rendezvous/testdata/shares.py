"""A training program with a large state: every step writes its number all over it. Ranks wait for each other in each step.

It ends with 9 when its state is not the one after the steps that were made. With STEPS, rank 0 appends each step to that file.
With STAND it stands in a step for as long as that file is there.
"""

import ctypes
import os
import signal
import socket
import sys
import time

from concertina.job import Job

ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # Like a node that ends, the agent takes everything along.
SIZE = int(os.environ["STATE_BYTES"])
CLEAN = os.environ["CLEAN"] == "yes"
STEPS = os.environ.get("STEPS")
STAND = os.environ.get("STAND", "")
PLACES = range(0, SIZE - 8, 1 << 20)


class State:
    def __init__(self):
        self.weights = bytearray(SIZE)
        self.moments = bytearray(SIZE // 2)
        self.steps = 0

    def state_dict(self):
        return {"weights": self.weights, "moments": self.moments, "steps": self.steps}

    def load_state_dict(self, state):
        self.weights, self.moments, self.steps = state["weights"], state["moments"], state["steps"]

    def check(self):
        for at in PLACES:
            if int.from_bytes(self.weights[at : at + 8]) != self.steps:
                print(f"after {self.steps} steps {self.weights[at : at + 8]} is at {at}", flush=True)
                os._exit(9)

    def update(self, number):
        self.steps = number
        for at in PLACES:
            self.weights[at : at + 8] = number.to_bytes(8)


def connect(address, port):
    """Rank 0 may listen a moment later."""
    end = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection((address, port), 20)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


class Team(Job):
    def _form(self, world, listener):
        self.peers = []
        if world.rank == 0:
            listener.settimeout(20)
            self.peers = [listener.accept()[0] for _ in range(world.size - 1)]
            listener.close()
        else:
            self.peers = [connect(world.master_address, world.master_port)]
        for peer in self.peers:
            peer.settimeout(60)

    def _leave(self):
        for peer in self.peers:
            peer.close()

    def meet(self, world):
        """Returns once every rank is here."""
        for say in (world.rank != 0, world.rank == 0):
            for peer in self.peers:
                if say:
                    peer.sendall(b"x")
                elif not peer.recv(1):
                    raise ConnectionError("a peer has gone")


state = State()
job = Team({"net": state}, seed=0)
for step in job.steps(range(1000), global_batch=1, epochs=1000):
    with step:
        state.check()
        time.sleep(0.02)
        while os.path.exists(STAND):
            time.sleep(0.02)
        job.meet(step.world)
        if CLEAN:
            step.begin_update()
        state.update(step.number)
        if STEPS and step.world.rank == 0:
            with open(STEPS, "a") as file:
                file.write(f"{step.number}\n")
sys.exit(0)
