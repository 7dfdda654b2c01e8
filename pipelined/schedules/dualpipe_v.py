"""DualPipe-V: DualPipe cut in half; the stages are folded like a V, and weights are held once.

P workers, D = 2P stages. The stages that DualPipe puts on the other half of the workers run here on the same workers,
in reverse order: the picture is the upper half of that in dualpipe.py. f, i and w are the seconds of a forward, an
input half and a weight half of one stage: bubble = (P-1)(f + i - w) for N >= 2P, w <= i <= f and f <= i + w. 2P+1 stage
inputs are alive on a worker. With fewer microbatches the order is the same without the missing ones.
Source: Qi et al., DualPipe could be better without the Dual (Sea AI Lab, 2025); github.com/deepseek-ai/DualPipe.
"""

from pipelined.schedules.parts.orders import dualpipe_order, follow
from pipelined.schedules.parts.placements import folded
from pipelined.schedules.parts.stage_map import Shape, StageMap
from pipelined.schedules.parts.worker import Worker


def stage_map(shape: Shape) -> StageMap:
    """Stages w and D-1-w on worker w. Takes any even depth and any number of microbatches."""
    return folded("dualpipe_v", shape)


async def schedule(worker: Worker) -> None:
    """Run one step on one worker."""
    workers, entering = worker.stage_map.workers, len(worker.stage_map.microbatches[0])
    first, second = (0, worker.index), (0, 2 * workers - 1 - worker.index)
    await follow(worker, dualpipe_order(worker.index, workers, max(entering, 2 * workers), first, second))
