"""How long torchrun's agents wait for their ranks: python3 benchmarks/ranked.py [AGENTS] prints seconds.

torchrun_N_ranked_p50 is over N agents, from the moment at which the last of them asks for a world (next_rendezvous of
torch.distributed.elastic, c10d, for N to 2N nodes, with the defaults) to the moment at which each of them has its rank, in
processes on this machine that have imported everything before. torchrun_N_tuned_* is the same with last_call_timeout=1.
"""

import multiprocessing
import os
import socket
import statistics
import sys
import time

from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

RUNS = 3


def agent(number: int, port: int, agents: int, config: dict[str, str], gate, up, results) -> None:
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=f"127.0.0.1:{port}",
        run_id="ranked",
        min_nodes=agents,
        max_nodes=2 * agents,
        is_host=number == 0,
        **config,
    )
    if number > 0:
        up.wait()  # the first one has the store
    backend, store = create_backend(parameters)
    up.set()
    handler = create_handler(store, backend, parameters)
    gate.wait()
    asked = time.monotonic()
    handler.next_rendezvous()
    results.put((asked, time.monotonic()))
    results.close()
    results.join_thread()
    gate.wait()  # the store is up until all have their rank
    os._exit(0)


def ranked(agents: int, config: dict[str, str]) -> list[float]:
    """Seconds from the last one that asks to each one's rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    gate, up, results = fork.Barrier(agents), fork.Event(), fork.Queue()
    processes = [fork.Process(target=agent, args=(number, port, agents, config, gate, up, results)) for number in range(agents)]
    for process in processes:
        process.start()
    times = [results.get(timeout=180) for _ in processes]
    for process in processes:
        process.join()
    last = max(asked for asked, _ in times)
    return [done - last for _, done in times]


def main() -> None:
    agents = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    for name, config, runs in (("", {}, 1), ("tuned_", {"last_call_timeout": "1"}, RUNS)):
        seconds = [second for _ in range(runs) for second in ranked(agents, config)]
        print(f"torchrun_{agents}_{name}ranked_p50", round(statistics.median(seconds), 3), "s")


if __name__ == "__main__":
    main()
