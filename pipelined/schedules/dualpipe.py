"""DualPipe: microbatches enter at both ends of the workers at once, and weight halves fill the cool-down.

With F and B one after the other, bubble = (D/2-1)(F + I - Wg) for even N >= 2D, Wg <= I <= F and F <= I + Wg; where a
forward takes longer than a whole backward it is longer. D+1 microbatches are alive on a worker, weights are held twice.
Fewer microbatches, or an odd number, keep the order with those beyond left out.
Source: DeepSeek-V3 technical report (2024), section 3.2.1, Figure 5 and Table 2.
"""

from pipelined.schedules.dualpipe_steps import dualpipe_order
from pipelined.schedules.layout import Shape, StageMap
from pipelined.schedules.shapes import both_ways, check_even, follow
from pipelined.schedules.worker import Worker


def layout(shape: Shape) -> StageMap:
    """Pipe 0 runs down the workers, pipe 1 up, each with half of the microbatches; an odd one goes down.

    Raises:
        ScheduleError: an odd depth, or the shape asks for other pipes, chunks, or a scale of its own.
    """
    down = (shape.microbatches + 1) // 2
    made = both_ways("dualpipe", shape, (tuple(range(down)), tuple(range(down, shape.microbatches))))
    check_even("dualpipe", shape)
    return made


async def schedule(worker: Worker) -> None:
    """One step of one worker: the same from both ends of the row."""
    depth, entering = worker.layout.depth, len(worker.layout.microbatches[0])
    index, first, second = worker.index, (0, worker.index), (1, depth - 1 - worker.index)
    if index >= depth // 2:
        index, first, second = depth - 1 - index, second, first
    await follow(worker, dualpipe_order(index, depth // 2, max(entering, depth), first, second))
