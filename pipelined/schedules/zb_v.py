"""ZB-V: stages folded like a V and the backward split, so that no worker idles once the pipe is full.

D = 4, N = 3 (P = 2), F = I = Wg:
  worker 0 (0 3)  |0F0|0F1|0F2|3F0|3I0|3W0|3F1|3I1|3W1|0I0|0W0|3F2|3I2|3W2|0I1|0W1|0I2|0W2|
  worker 1 (1 2)      |1F0|2F0|1F1|2F1|2I0|2W0|1F2|1I0|1W0|2F2|2I1|2W1|1I1|2I2|1I2|1W1|2W2|1W2|

P workers, D = 2P stages. Where the forward and both halves of a backward of a stage take one unit of time each,
T = 6N + P - 1 for N >= 2P-1: the only bubble is the wait for the first microbatch. With other costs it is longer.
2P stage inputs are alive on a worker, as much as P microbatches of 1F1B. With fewer microbatches the order is the same
without the missing ones. Source: Qi et al., Zero Bubble Pipeline Parallelism (2024), section 6.
"""

from pipelined.schedules.parts.orders import WorkerOrder, backward_in_halves, run_order
from pipelined.schedules.parts.placements import folded_pipe
from pipelined.schedules.parts.stage_map import Shape, StageMap
from pipelined.schedules.parts.worker import Worker


def stage_map(shape: Shape) -> StageMap:
    """Stages w and D-1-w on worker w. Takes any even depth and any number of microbatches."""
    return folded_pipe("zb_v", shape)


async def schedule(worker: Worker) -> None:
    """Run one step on one worker."""
    await run_order(worker, _order(worker.index, worker.stage_map.workers, len(worker.stage_map.microbatches[0])))


def _order(worker: int, workers: int, microbatches: int) -> WorkerOrder:
    """The order of a worker; `down` is its stage before the turn of the V, `up` its stage after it."""
    down = (0, worker)
    up = (0, 2 * workers - 1 - worker)
    to_turn = workers - 1 - worker
    rounds = max(microbatches, 2 * workers - 1)  # `run_order` skips those that are missing
    backward_down, backward_up = backward_in_halves(down), backward_in_halves(up)
    yield from [("F", down)] * (2 * to_turn + 1)  # warm-up
    yield from [("F", up), ("F", down)] * worker
    yield from [("F", up), *backward_up] * (to_turn + 1)
    yield from [("F", down), *backward_down, ("F", up), *backward_up] * (rounds - 2 * workers + 1 + worker)  # steady
    yield from [*backward_down, ("F", up), *backward_up] * to_turn
    yield from [("I", down), ("I", up)] * worker  # cool-down
    yield from backward_down * (to_turn + 1)
    yield from [("W", up)] * worker + [("W", down)] * worker
