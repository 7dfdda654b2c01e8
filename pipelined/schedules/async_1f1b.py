"""Asynchronous 1F1B, Ravnest's pipeline inside a cluster: no flush; a worker takes what has arrived, gradients first.

When a gradient has arrived, its stage runs the backward and updates its weights at once. A stage runs a forward when no
gradient has arrived and fewer than K_s microbatches are alive on it (stage s): D-s, unless `ahead` sets it, as slow
links need more to keep all stages busy. So the order, and with it the delay of a gradient, depends on the timing:
w(t+1) = w(t) - lr g(w(t-tau)). tau is the number of updates that the stage made since the microbatch's forward: at most
K_s-1; training reports it. The gradient is computed at the weights of the forward, which are kept. A step is N updates.
Source: Ravnest (2024), Algorithm 1 and equation 2.
"""

from dataclasses import replace

from pipelined.schedules.parts.knobs import AHEAD, alive_limits
from pipelined.schedules.parts.placements import segment
from pipelined.schedules.parts.stage_map import Shape, StageMap, Updates
from pipelined.schedules.parts.worker import Worker

KNOBS = (AHEAD,)


def stage_map(shape: Shape) -> StageMap:
    """Stage s on worker s. Takes any depth, any number of microbatches, and any number of steps."""
    without = replace(shape, knobs={name: value for name, value in shape.knobs.items() if name != AHEAD.name})
    return replace(segment("async_1f1b", without, Updates(every=1)), alive=alive_limits(shape))


async def schedule(worker: Worker) -> None:
    """Run one segment on one worker."""
    alive, most = 0, worker.stage_map.most_alive(worker.index)
    while op := await worker.wait(*[("B", 0)] * (alive > 0), *[("F", 0)] * (alive < most)):
        if op == "B":
            await worker.backward(0)
            alive -= 1
        else:
            await worker.forward(0)
            alive += 1
