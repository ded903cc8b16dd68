"""A loop with JAX, data-parallel over all processes, elastic by a few lines."""

import time

import jax
import jax.numpy as jnp
import numpy
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import concertina.jax
import points
from concertina.batches import Batches
from concertina.checkpoints import Checkpoints
from concertina.stopping import join

RATE = 0.1


def loss_of(parameters, x, y):
    """The mean loss of a batch."""
    logits = jnp.tanh(x @ parameters["in"]) @ parameters["out"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1))


@jax.jit
def update(parameters, x, y):
    """One step of gradient descent. The batch lies over all processes, so the mean is over all of it."""
    loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
    return jax.tree.map(lambda p, g: p - RATE * g, parameters, gradients), loss


def barrier():
    """Returns once all processes are here."""
    multihost_utils.sync_global_devices("checkpoint")


options = points.arguments()
job = join(total_steps=points.STEPS)
concertina.jax.initialize()
mesh = Mesh(numpy.array(jax.devices()), "batch")
divided, everywhere = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())

checkpoints = Checkpoints(options.checkpoints)
step, path = checkpoints.newest()
if path:
    with numpy.load(path) as saved:
        parameters = dict(saved)
else:
    keys = jax.random.split(jax.random.key(0))
    parameters = {"in": jax.random.normal(keys[0], (points.FEATURES, 16)), "out": 0.1 * jax.random.normal(keys[1], (16, 2))}
parameters = jax.device_put(jax.tree.map(numpy.asarray, parameters), everywhere)

batches = Batches(points.SAMPLES, points.GLOBAL_BATCH, done=step, rank=jax.process_index(), size=jax.process_count())
while step < points.STEPS:
    for numbers in batches:
        begin = time.monotonic()
        x, y = (jax.make_array_from_process_local_data(divided, whole[numbers]) for whole in (points.X, points.Y))
        parameters, loss = update(parameters, x, y)
        step += 1
        points.tell(step, loss, numbers)
        time.sleep(max(0, begin + options.step_seconds - time.monotonic()))
        stop = job.should_stop(step)
        if stop or step % options.every == 0:
            with checkpoints.saving(step, barrier=barrier) as path:
                if jax.process_index() == 0:
                    with open(path, "wb") as file:
                        numpy.savez(file, **parameters)
        if stop:
            job.exit()
