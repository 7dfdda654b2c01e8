"""The stage map and the order that asynchronous schedules share: one pipe, filled once per segment, not once per step.

The microbatches alive on a stage have a limit: D - s on stage s unless the stage map says otherwise. Without one the
age of the weights that a microbatch uses would depend on the length of the segment.
"""

from dataclasses import replace

from pipelined.schedules.parts.shapes import one_pipe
from pipelined.schedules.parts.stage_map import Shape, StageMap, Updates
from pipelined.schedules.parts.worker import Worker


def segment(name: str, shape: Shape, updates: Updates) -> StageMap:
    """A single pipe that takes the microbatches of all steps of a segment one after another.

    Raises:
        ScheduleError: the shape has more pipes or chunks, or a scale.
    """
    microbatches = tuple(range(shape.steps * shape.microbatches))
    return replace(one_pipe(name, shape), microbatches=(microbatches,), updates=updates)


async def one_f_one_b(worker: Worker) -> None:
    """Run one segment on one worker: warm-up, then a forward and a backward in turn, and one cool-down at the end."""
    alive, most = 0, worker.stage_map.most_alive(worker.index)
    while await worker.wait(("F", 0)):
        await worker.forward(0)
        alive += 1
        if alive == most:
            await worker.backward(0)
            alive -= 1
    for _ in range(alive):
        await worker.backward(0)
