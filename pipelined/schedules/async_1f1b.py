"""Asynchronous 1F1B, Ravnest's pipeline inside a cluster: no flush; a worker takes what has arrived, gradients first.

D = 3, N = 3, two steps, B = 2F, free links:
  worker 0 (0)  |F0|F1|F2|           |B0   |F3|B1   |F4|B2   |F5|B3   |  |B4   |  |B5   |
  worker 1 (1)     |F0|F1|     |B0   |F2|B1   |F3|B2   |F4|B3   |F5|B4   |  |B5   |
  worker 2 (2)        |F0|B0   |F1|B1   |F2|B2   |F3|B3   |F4|B4   |F5|B5   |

When a gradient has arrived, its stage runs the backward and updates its weights at once. A stage runs a forward when no
gradient has arrived and fewer than K_s microbatches are alive on it (stage s): D-s, unless `ahead` sets it, as slow
links need more to keep all stages busy. So the order, and with it the delay of a gradient, depends on the timing:
w(t+1) = w(t) - lr g(w(t-tau)). tau is the number of updates that the stage made since the microbatch's forward: at most
K_s-1; training reports it. The gradient is computed at the weights of the forward, which are kept. A step is N updates.
At equal costs the order is that of pipedream.py. Source: Ravnest (2024), Algorithm 1 and equation 2.
"""

from collections.abc import Iterator
from dataclasses import replace

from pipelined.schedules.parts.knobs import AHEAD, alive_limits
from pipelined.schedules.parts.placements import one_pipe_without_flush
from pipelined.schedules.parts.stage_map import Shape, StageMap, Updates
from pipelined.schedules.parts.worker import WaitChoice, Worker

KNOBS = (AHEAD,)


def stage_map(shape: Shape) -> StageMap:
    """Stage s on worker s. Takes any depth, any number of microbatches, and any number of steps."""
    other_knobs = {name: value for name, value in shape.knobs.items() if name != AHEAD.name}  # the map below refuses it
    plain_map = one_pipe_without_flush("async_1f1b", replace(shape, knobs=other_knobs), Updates(every=1))
    return replace(plain_map, alive=alive_limits(shape))


async def schedule(worker: Worker) -> None:
    """Run one segment on one worker."""
    alive = 0
    limit = worker.stage_map.alive_limit(worker.stage_map.stages_of(worker.index)[0])

    def next_choices() -> Iterator[WaitChoice]:
        """What this worker may run next, gradients first."""
        if alive > 0:
            yield "B", 0
        if alive < limit:
            yield "F", 0

    while op := await worker.wait(*next_choices()):
        if op == "B":
            await worker.backward(0)
            alive -= 1
        else:
            await worker.forward(0)
            alive += 1
