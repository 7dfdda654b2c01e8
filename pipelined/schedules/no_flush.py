"""What the asynchronous schedules share: one pipe that is filled once a stretch, not once a step.

The rule: stage s has at most D - s microbatches alive; so the weights a microbatch meets on its way are those of a
definite past, however long the stretch is.
"""

from dataclasses import replace

from pipelined.schedules.layout import Shape, StageMap, Updates
from pipelined.schedules.shapes import one_pipe
from pipelined.schedules.worker import Worker


def stretch(name: str, shape: Shape, updates: Updates) -> StageMap:
    """A single pipe that takes the microbatches of all steps of a stretch one after another.

    Raises:
        ScheduleError: the shape asks for more pipes, chunks, or a scale of its own.
    """
    microbatches = tuple(range(shape.steps * shape.microbatches))
    return replace(one_pipe(name, shape), microbatches=(microbatches,), updates=updates)


async def one_f_one_b(worker: Worker) -> None:
    """One stretch of one worker: warm-up, then a forward and a backward in turn, and a single cool-down at the end."""
    alive, most = 0, worker.layout.depth - worker.index
    while await worker.enters(0):
        await worker.forward(0)
        alive += 1
        if alive == most:
            await worker.backward(0)
            alive -= 1
    for _ in range(alive):
        await worker.backward(0)
