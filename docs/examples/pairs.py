"""1F1B without a flush, in which the gradients of two microbatches at a time update a stage.

Source: Narayanan et al., PipeDream (2019), which updates after every gradient.
"""

from pipelined.schedules import Shape, StageMap, Updates, Worker


def stage_map(shape: Shape) -> StageMap:
    """Stage s on worker s; the microbatches of all steps of a segment one after another."""
    placement = {(0, stage): stage for stage in range(shape.depth)}
    microbatches = tuple(range(shape.steps * shape.microbatches))
    return StageMap(shape.depth, shape.depth, placement, (microbatches,), updates=Updates(every=2))


async def schedule(worker: Worker) -> None:
    """One segment of one worker."""
    alive = 0
    while await worker.wait(("F", 0)):
        await worker.forward(0)
        alive += 1
        if alive == worker.stage_map.depth - worker.index:
            await worker.backward(0)
            alive -= 1
    for _ in range(alive):
        await worker.backward(0)
