"""ZB-H1: 1F1B with the backward split; a worker delays its weight halves by its index, and they fill its cool-down.

D = 4, N = 4, F = I = Wg:
  worker 0 (0)  |F0|F1|F2|F3|        |I0|W0|I1|W1|I2|W2|I3|W3|
  worker 1 (1)     |F0|F1|F2|     |I0|F3|I1|W0|I2|W1|I3|W2|W3|
  worker 2 (2)        |F0|F1|  |I0|F2|I1|F3|I2|W0|I3|W1|W2|W3|
  worker 3 (3)           |F0|I0|F1|I1|F2|I2|F3|I3|W0|W1|W2|W3|

bubble = (D-1)(F + I - Wg) for N >= D and Wg <= I <= F, where 1F1B's is (D-1)(F + I + Wg); I and Wg are the seconds of
the input and of the weight half. Every worker has min(N, D) microbatches alive, like the first worker of 1F1B.
Source: Qi et al., Zero Bubble Pipeline Parallelism (2024), section 2 and Figure 3.
"""

from pipelined.schedules.parts.placements import one_pipe
from pipelined.schedules.parts.stage_map import Shape, StageMap
from pipelined.schedules.parts.worker import Worker


def stage_map(shape: Shape) -> StageMap:
    """Stage s on worker s. Takes any depth and any number of microbatches."""
    return one_pipe("zb_h1", shape)


async def schedule(worker: Worker) -> None:
    """Run one step on one worker: 1F1B's order of F and I; the weight half of an I runs `index` input halves later."""
    microbatches = len(worker.stage_map.microbatches[0])
    warm_up = min(microbatches, worker.stage_map.depth - 1 - worker.index)
    delayed_halves = min(microbatches, worker.index)
    for _ in range(warm_up):
        await worker.forward(0)
    for backwards in range(microbatches):
        if backwards < microbatches - warm_up:
            await worker.forward(0)
        await worker.backward_input(0)
        if backwards >= delayed_halves:
            await worker.backward_weight(0)
    for _ in range(delayed_halves):
        await worker.backward_weight(0)
