"""DualPipe-V: DualPipe cut in half; the stages are folded like a V, and weights are held once.

D = 4, N = 4 (P = 2), F = I = Wg:
  worker 0 (0 3)  |0F0|0F1|0F2|3F0|3I0|3W0|3F1|0F3|3I1|3W1|3F2|0I0|0W0|3I2|3W2|3F3|0I1|0W1|3I3|3W3|0I2|0W2|   |0I3|0W3|
  worker 1 (1 2)      |1F0|2F0|1F1|2F1|1F2|2I0|2W0|2F2|1I0|1W0|1F3|2I1|2W1|2F3|1I1|1W1|2I2|2W2|1I2|1W2|2I3|1I3|2W3|1W3|

P workers, D = 2P stages. The stages that DualPipe puts on the other half of the workers run here on the same workers,
in reverse order. f, i and w are the seconds of a forward, an input half and a weight half of one stage:
bubble = (P-1)(f + i - w) for N >= 2P, w <= i <= f and f <= i + w. 2P+1 stage inputs are alive on a worker. With fewer
microbatches the order is the same without the missing ones.
Source: Qi et al., DualPipe could be better without the Dual (Sea AI Lab, 2025); github.com/deepseek-ai/DualPipe.
"""

from pipelined.schedules.parts.orders import dualpipe_order, run_order
from pipelined.schedules.parts.placements import folded_pipe
from pipelined.schedules.parts.stage_map import Shape, StageMap
from pipelined.schedules.parts.worker import Worker


def stage_map(shape: Shape) -> StageMap:
    """Stages w and D-1-w on worker w. Takes any even depth and any number of microbatches."""
    return folded_pipe("dualpipe_v", shape)


async def schedule(worker: Worker) -> None:
    """Run one step on one worker."""
    workers = worker.stage_map.workers
    microbatches = len(worker.stage_map.microbatches[0])
    first = (0, worker.index)
    second = (0, 2 * workers - 1 - worker.index)
    await run_order(worker, dualpipe_order(worker.index, workers, max(microbatches, 2 * workers), first, second))
