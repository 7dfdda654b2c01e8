"""PipeDream: no flush; each gradient updates its stage at once; a backward uses the weights of its forward.

D = 3, N = 3, two steps, B = 2F:
  worker 0 (0)  |F0|F1|F2|           |B0   |F3|B1   |F4|B2   |F5|B3   |  |B4   |  |B5   |
  worker 1 (1)     |F0|F1|     |B0   |F2|B1   |F3|B2   |F4|B3   |F5|B4   |  |B5   |
  worker 2 (2)        |F0|B0   |F1|B1   |F2|B2   |F3|B3   |F4|B4   |F5|B5   |

Each worker computes all the time once the pipe is full: the order is that of one_f_one_b.py, with one cool-down at the
end of all steps. Stage s has D-s microbatches alive. Each of them used other weights, so the stage keeps D-s versions:
w(t+1) = w(t) - lr g(w_0(t-D+1), …, w_{D-1}(t)), where w_s is stage s. A step is N such updates.
Source: Narayanan et al., PipeDream (2019), section 3.3 (weight stashing).
"""

from pipelined.schedules.parts.orders import one_f_one_b_without_flush
from pipelined.schedules.parts.placements import one_pipe_without_flush
from pipelined.schedules.parts.stage_map import Shape, StageMap, Updates
from pipelined.schedules.parts.worker import Worker


def stage_map(shape: Shape) -> StageMap:
    """Stage s on worker s. Takes any depth, any number of microbatches, and any number of steps."""
    return one_pipe_without_flush("pipedream", shape, Updates(every=1))


async def schedule(worker: Worker) -> None:
    """Run one segment on one worker."""
    await one_f_one_b_without_flush(worker)
