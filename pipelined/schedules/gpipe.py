"""GPipe: all forwards, then all backwards.

D = 4, N = 4, B = 2F:
  worker 0 (0)  |F0|F1|F2|F3|                          |B0   |B1   |B2   |B3   |
  worker 1 (1)     |F0|F1|F2|F3|                 |B0   |B1   |B2   |B3   |
  worker 2 (2)        |F0|F1|F2|F3|        |B0   |B1   |B2   |B3   |
  worker 3 (3)           |F0|F1|F2|F3|B0   |B1   |B2   |B3   |

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
