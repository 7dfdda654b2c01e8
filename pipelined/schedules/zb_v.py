"""ZB-V: stages folded like a V and the backward split, so that no worker idles once the pipe is full.

P workers, D = 2P stages. Where the forward and both halves of a backward of a stage take one unit of time each,
T = 6N + P - 1 for N >= 2P-1: the only bubble is the wait for the first microbatch. With other costs it is longer.
2P stage inputs are alive on a worker, as much as P microbatches of 1F1B. With fewer microbatches the order is the same
without the missing ones. Source: Qi et al., Zero Bubble Pipeline Parallelism (2024), section 6.
"""

from collections.abc import Iterator

from pipelined.schedules.parts.shapes import PipeStage, folded, follow
from pipelined.schedules.parts.stage_map import Shape, StageMap
from pipelined.schedules.parts.worker import Worker


def stage_map(shape: Shape) -> StageMap:
    """Stages w and D-1-w on worker w. Takes any even depth and any number of microbatches."""
    return folded("zb_v", shape)


async def schedule(worker: Worker) -> None:
    """Run one step on one worker."""
    await follow(worker, _order(worker.index, worker.stage_map.workers, len(worker.stage_map.microbatches[0])))


def _order(worker: int, workers: int, microbatches: int) -> Iterator[tuple[str, PipeStage]]:
    """(op, place) in order; `down` is the worker's stage in the first half of the path, `up` in the second."""
    down, up = (0, worker), (0, 2 * workers - 1 - worker)
    later = workers - worker
    rounds = max(microbatches, 2 * workers - 1)
    backward_down, backward_up = [("I", down), ("W", down)], [("I", up), ("W", up)]
    yield from [("F", down)] * (2 * later - 1)
    yield from [("F", up), ("F", down)] * worker
    yield from [("F", up), *backward_up] * later
    yield from [("F", down), *backward_down, ("F", up), *backward_up] * (rounds - 2 * workers + 1 + worker)
    yield from [*backward_down, ("F", up), *backward_up] * (later - 1)
    yield from [("I", down), ("I", up)] * worker
    yield from backward_down * later
    yield from [("W", up)] * worker + [("W", down)] * worker
