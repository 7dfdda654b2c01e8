"""Ravnest's pipeline inside a cluster: no flush, and each worker takes what is there, gradients first.

As soon as a gradient has come its stage goes back and is updated, whatever else is under way; a forward is taken when
no gradient is there and fewer than D-s microbatches are alive on stage s. So the order, and with it the delay of a
gradient, depends on the timing: w(t+1) = w(t) - lr g(w(t-tau)), where tau, the updates the stage made since the
microbatch's forward, is at most D-1-s, none on the last stage, and reported. The gradient is taken at the weights of
the forward, which are kept. A step is N updates. Source: Ravnest (2024), Algorithm 1 and equation 2.
"""

from pipelined.schedules.layout import Shape, StageMap, Updates
from pipelined.schedules.no_flush import stretch
from pipelined.schedules.worker import Worker


def layout(shape: Shape) -> StageMap:
    """Stage s on worker s. Takes any depth, any number of microbatches, and any number of steps."""
    return stretch("async_1f1b", shape, Updates(every=1))


async def schedule(worker: Worker) -> None:
    """One stretch of one worker."""
    alive, most = 0, worker.layout.depth - worker.index
    while True:
        entering = await worker.enters(0)
        if not entering and not alive:
            return
        backward, forward = [("B", 0)] * (alive > 0), [("F", 0)] * (entering and alive < most)
        if await worker.first_of(*backward, *forward) == "B":
            await worker.backward(0)
            alive -= 1
        else:
            await worker.forward(0)
            alive += 1
