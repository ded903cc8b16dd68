"""What a snapshot of a PyTorch state costs: python3 benchmarks/snapshot.py [MIB] [FOLDER] prints the
milliseconds to copy it, to write the file and to load it again, the medians of several runs."""

import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import torch  # noqa: E402

from concertina import keeper, snapshot  # noqa: E402
from concertina.codec import Room  # noqa: E402
from concertina.tensors import TensorCodec  # noqa: E402

RUNS = 9


def state(mib: int) -> dict:
    """A linear network and its Adam, of so many MiB together."""
    net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(max(1, mib // 3))))
    opt = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 512)).sum().backward()
    opt.step()
    return {"net": net, "opt": opt}


def main() -> None:
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    path = os.path.join(sys.argv[2] if len(sys.argv) > 2 else "/dev/shm", "benchmark.part")
    things, codec, room = state(mib), TensorCodec(), None
    times: dict[str, list[float]] = {"copy": [], "write": [], "load": []}

    def timed(name, action):
        begin = time.perf_counter()
        result = action()
        times[name].append((time.perf_counter() - begin) * 1000)
        return result

    def copy():
        image = snapshot.Image({name: thing.state_dict() for name, thing in things.items()}, {"step": 1}, codec)
        image.keep(room)
        return image

    size = snapshot.Image({name: thing.state_dict() for name, thing in things.items()}, {}, codec).bytes
    room = memoryview(Room(size))
    whole = keeper.Keeper(things, codec, dict)
    for _ in range(RUNS):
        image = timed("copy", copy)
        timed("write", lambda: image.write(image.whole(path)))
        timed("load", lambda: whole.load(path))
        os.unlink(path)
    print(f"snapshot_mib {size / 2**20:.0f} MiB")
    for name, measured in times.items():
        print(f"snapshot_{name}_ms {statistics.median(measured):.1f} ms")


main()
