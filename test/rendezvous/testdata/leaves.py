"""A program that is started anew in each world. It makes a step every few milliseconds; rank 0 saves for all."""

import os
import time

import concertina

notes, rank = os.environ["NOTES"], int(os.environ["RANK"])


def note(name: str, text: str) -> None:
    with open(f"{notes}/{name}", "a") as file:
        file.write(text + "\n")


def save(step: int) -> None:
    if rank == 0:
        with open(f"{notes}/saved.part", "w") as file:
            file.write(str(step))
        os.replace(f"{notes}/saved.part", f"{notes}/saved")


step = 0
if os.path.exists(f"{notes}/saved"):
    with open(f"{notes}/saved") as file:
        step = int(file.read())

job = concertina.join()
while not os.path.exists(f"{notes}/end"):
    time.sleep(0.005)
    step += 1
    note("steps", f"{os.environ['CONCERTINA_ROUND']} {rank} {step}")
    if job.should_stop(step):
        save(step)
        job.exit()
job.finished()
