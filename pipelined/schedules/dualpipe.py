"""DualPipe: microbatches enter at both ends of the workers at once, and weight halves fill the cool-down.

D = 4, N = 8, F = I = Wg:
  worker 0 (0 3)  |F0|F1|F2|F4|I4|W4|F5|F3|I5|W5|F6|I0|W0|I6|W6|F7|I1|W1|I7|W7|I2|W2|  |I3|W3|
  worker 1 (1 2)     |F0|F4|F1|F5|F2|I4|W4|F6|I0|W0|F3|I5|W5|F7|I1|W1|I6|W6|I2|W2|I7|I3|W7|W3|
  worker 2 (1 2)     |F4|F0|F5|F1|F6|I0|W0|F2|I4|W4|F7|I1|W1|F3|I5|W5|I2|W2|I6|W6|I3|I7|W3|W7|
  worker 3 (0 3)  |F4|F5|F6|F0|I0|W0|F1|F7|I1|W1|F2|I4|W4|I2|W2|F3|I5|W5|I3|W3|I6|W6|  |I7|W7|

With F and B one after the other, bubble = (D/2-1)(F + I - Wg) for even N >= 2D, Wg <= I <= F and F <= I + Wg; it is
longer where a forward takes longer than a whole backward. D+1 microbatches are alive on a worker, and each stage's
weights are held twice. With fewer microbatches, or an odd number, the order is the same without the missing ones.
Source: DeepSeek-V3 technical report (2024), section 3.2.1, Figure 5 and Table 2.
"""

from pipelined.schedules.parts.orders import dualpipe_order, run_order
from pipelined.schedules.parts.placements import both_ways, require_even
from pipelined.schedules.parts.stage_map import Shape, StageMap
from pipelined.schedules.parts.worker import Worker


def stage_map(shape: Shape) -> StageMap:
    """Pipe 0 runs down the workers, pipe 1 up, each with half of the microbatches; pipe 0 has one more if N is odd.

    Raises:
        ScheduleError: an odd depth, or the shape has another number of pipes or chunks, or a scale.
    """
    middle = (shape.microbatches + 1) // 2
    two_pipes = both_ways("dualpipe", shape, (tuple(range(middle)), tuple(range(middle, shape.microbatches))))
    require_even("dualpipe", shape)
    return two_pipes


async def schedule(worker: Worker) -> None:
    """Run one step on one worker; the order is symmetric about the middle of the row of workers."""
    depth = worker.stage_map.depth
    microbatches = len(worker.stage_map.microbatches[0])
    index = worker.index
    first = (0, worker.index)
    second = (1, depth - 1 - worker.index)
    if index >= depth // 2:
        index, first, second = depth - 1 - index, second, first
    await run_order(worker, dualpipe_order(index, depth // 2, max(microbatches, depth), first, second))
