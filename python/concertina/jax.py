"""Concertina for JAX: the distributed runtime of the world that the agent describes.

    import concertina.jax

    concertina.jax.initialize()        # instead of jax.distributed.initialize(), which knows no such cluster
"""

import os

import jax

__all__ = ["initialize"]


def initialize(local_device_ids: list[int] | None = None, **options: object) -> None:
    """Calls jax.distributed.initialize with this process's place: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
    JAX_PROCESS_ID. Without them it does nothing, so that the program runs alone as it is.

    local_device_ids: the accelerators of this process; by default the one of LOCAL_RANK where the worker has several
    processes, and all that there are otherwise. On CPUs they mean nothing. options: for jax.distributed.initialize.

    Raises ValueError when only some of the variables are set, or one that must be a number is none.
    """
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    missing = [name for name in names if not os.environ.get(name)]
    if len(missing) == len(names):
        return
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be set where {names[0]} or its companions are")
    if local_device_ids is None and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1:
        local_device_ids = [int(os.environ["LOCAL_RANK"])]
    jax.distributed.initialize(
        os.environ[names[0]], int(os.environ[names[1]]), int(os.environ[names[2]]), local_device_ids, **options
    )
