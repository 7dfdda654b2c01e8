"""GEMS: two copies of the model take turns from both ends of the workers, so that only one microbatch is alive.

D = 4, N = 2, B = 2F:
  worker 0 (0 3)  |F0|                          |B0   |F1|B1   |
  worker 1 (1 2)     |F0|                 |B0   |F1|           |B1   |
  worker 2 (1 2)        |F0|        |B0   |F1|                       |B1   |
  worker 3 (0 3)           |F0|B0   |F1|                                   |B1   |

The next microbatch starts its forwards right after the backwards of the one before: T = DF + (N-1)(DB + F) + DB for
B >= F; for B < F, DF + B takes the place of DB + F. Weights are held twice.
Source: Jain et al., GEMS (2020); Li and Hoefler, Chimera (2021), section 2 and Figure 2.
"""

from pipelined.schedules.parts.placements import both_ways
from pipelined.schedules.parts.stage_map import Shape, StageMap
from pipelined.schedules.parts.worker import Worker


def stage_map(shape: Shape) -> StageMap:
    """Pipe 0 runs down the workers, pipe 1 up; they take microbatches in turn. Takes any depth and any number of
    microbatches."""
    return both_ways("gems", shape, (tuple(range(0, shape.microbatches, 2)), tuple(range(1, shape.microbatches, 2))))


async def schedule(worker: Worker) -> None:
    """Run one step on one worker: forward and backward of one microbatch, then of the next in the other pipe."""
    for microbatch in range(sum(map(len, worker.stage_map.microbatches))):
        await worker.forward(microbatch % 2)
        await worker.backward(microbatch % 2)
