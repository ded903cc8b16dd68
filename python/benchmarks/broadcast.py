"""How long ranks on this machine take to broadcast so many bytes with gloo, and nothing else:

    python3 benchmarks/broadcast.py RANKS MIB TIMES

prints `broadcast SECONDS`, of the rank that it took longest, so many times; once before that it warms up.
"""

import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist


def rank(mib: int, times: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    number = dist.get_rank()
    state = torch.full((mib << 18,), float(number))
    for i in range(times + 1):
        dist.barrier()
        begin = time.perf_counter()
        dist.broadcast(state, 0)
        took = torch.tensor(time.perf_counter() - begin)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        if i and number == 0:
            print(f"broadcast {took.item():.6f}", flush=True)
    if state[-1].item():
        raise SystemExit(f"rank {number} has not what rank 0 has")
    dist.destroy_process_group()


def main() -> None:
    ranks, mib, times = (int(argument) for argument in sys.argv[1:])
    if "RANK" in os.environ:
        rank(mib, times)
        return
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    env = os.environ | {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [subprocess.Popen([sys.executable, *sys.argv], env=env | {"RANK": str(i)}) for i in range(ranks)]
    sys.exit(max(abs(process.wait()) for process in started))


main()
