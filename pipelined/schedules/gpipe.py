"""GPipe: all forwards, then all backwards.

T = (N+D-1)(F+B); every worker holds N live microbatches. Backwards run in the order of the forwards; the figure of the
paper has the last microbatch first, in equal time and memory. Source: Huang et al., GPipe (2019).
"""

from pipelined.schedules.parts.placements import one_pipe
from pipelined.schedules.parts.stage_map import Shape, StageMap
from pipelined.schedules.parts.worker import Worker


def stage_map(shape: Shape) -> StageMap:
    """Stage s on worker s. Takes any depth and any number of microbatches."""
    return one_pipe("gpipe", shape)


async def schedule(worker: Worker) -> None:
    """Run one step on one worker."""
    microbatches = len(worker.stage_map.microbatches[0])
    for _ in range(microbatches):
        await worker.forward(0)
    for _ in range(microbatches):
        await worker.backward(0)
