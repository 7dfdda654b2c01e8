"""PipeDream-2BW: no flush; one update per N >= D microbatches, with two versions of the weights.

D = 3, N = 3, two steps (updates after B2 and B5), B = 2F:
  worker 0 (0)  |F0|F1|F2|           |B0   |F3|B1   |F4|B2   |F5|B3   |  |B4   |  |B5   |
  worker 1 (1)     |F0|F1|     |B0   |F2|B1   |F3|B2   |F4|B3   |F5|B4   |  |B5   |
  worker 2 (2)        |F0|B0   |F1|B1   |F2|B2   |F3|B3   |F4|B4   |F5|B5   |

w(t+1) = w(t) - lr g(w(t-1)), the same on every stage: the forward and the backward of microbatch m, counted over the
whole run, use version max(m // N - 1, 0), so the length of a segment does not change the result. Stage s has D-s
microbatches alive; the order is that of pipedream.py.
Source: Narayanan et al., Memory-efficient pipeline-parallel DNN training (2021), section 3.1 (double-buffered weights).
"""

from pipelined.schedules.parts.orders import one_f_one_b_without_flush
from pipelined.schedules.parts.placements import one_pipe_without_flush, require_positive
from pipelined.schedules.parts.stage_map import ScheduleError, Shape, StageMap, Updates
from pipelined.schedules.parts.worker import Worker


def stage_map(shape: Shape) -> StageMap:
    """Stage s on worker s. Takes any depth, at least as many microbatches, and any number of steps.

    Raises:
        ScheduleError: fewer microbatches than stages, which would need more than two versions.
    """
    require_positive(shape)  # before an update of no microbatch is refused
    one_pipe = one_pipe_without_flush("pipedream_2bw", shape, Updates(every=shape.microbatches, delay=1))
    if shape.microbatches < shape.depth:
        fact = f"pipedream_2bw adds up at least D microbatches (microbatches: {shape.microbatches}, depth: "
        raise ScheduleError(f"{fact}{shape.depth}); use `microbatches={shape.depth}` or more, or pipedream")
    return one_pipe


async def schedule(worker: Worker) -> None:
    """Run one segment on one worker."""
    await one_f_one_b_without_flush(worker)
