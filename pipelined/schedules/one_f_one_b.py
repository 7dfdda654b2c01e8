"""1F1B with a flush (DAPPLE): a backward runs as soon as it can, so fewer microbatches are alive.

D = 4, N = 4, B = 2F:
  worker 0 (0)  |F0|F1|F2|F3|                 |B0   |  |B1   |  |B2   |  |B3   |
  worker 1 (1)     |F0|F1|F2|           |B0   |F3|B1   |  |B2   |  |B3   |
  worker 2 (2)        |F0|F1|     |B0   |F2|B1   |F3|B2   |  |B3   |
  worker 3 (3)           |F0|B0   |F1|B1   |F2|B2   |F3|B3   |

T = (N+D-1)(F+B), like GPipe; stage s holds min(N, D-s) live microbatches. Source: Fan et al., DAPPLE (2021).
"""

from pipelined.schedules.parts.placements import one_pipe
from pipelined.schedules.parts.stage_map import Shape, StageMap
from pipelined.schedules.parts.worker import Worker


def stage_map(shape: Shape) -> StageMap:
    """Stage s on worker s. Takes any depth and any number of microbatches."""
    return one_pipe("one_f_one_b", shape)


async def schedule(worker: Worker) -> None:
    """Run one step on one worker: warm-up, steady state, cool-down."""
    microbatches = len(worker.stage_map.microbatches[0])
    warm_up = min(microbatches, worker.stage_map.depth - 1 - worker.index)
    for _ in range(warm_up):
        await worker.forward(0)
    for _ in range(microbatches - warm_up):
        await worker.forward(0)
        await worker.backward(0)
    for _ in range(warm_up):
        await worker.backward(0)
