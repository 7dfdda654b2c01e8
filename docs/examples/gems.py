"""GEMS: two copies of the model take turns, so that one microbatch alone is alive.

T = DF + (N-1)(DB + F) + DB. Source: Jain et al., GEMS (2020).
"""

from pipelined.schedules import Shape, StageMap, Worker


def stage_map(shape: Shape) -> StageMap:
    """Pipe 0 runs down the workers, pipe 1 up; they take the microbatches in turn."""
    down = {(0, stage): stage for stage in range(shape.depth)}
    up = {(1, stage): shape.depth - 1 - stage for stage in range(shape.depth)}
    turns = tuple(range(0, shape.microbatches, 2)), tuple(range(1, shape.microbatches, 2))
    return StageMap(shape.depth, shape.depth, down | up, turns)


async def schedule(worker: Worker) -> None:
    """One step of one worker: each microbatch there and back, then the next from the other end."""
    for microbatch in range(sum(map(len, worker.stage_map.microbatches))):
        await worker.forward(microbatch % 2)
        await worker.backward(microbatch % 2)
