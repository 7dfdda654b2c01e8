"""Interleaved 1F1B: a worker holds V stages far apart, so that filling and draining take 1/V of the time.

D = 4, N = 4 (V = 2), with B = F, as the rows for B = 2F are too long for this page:
  worker 0 (0 2)  |0F0|0F1|2F0|2F1|0F2|2B0|0F3|2B1|2F2|0B0|2F3|0B1|   |2B2|   |2B3|0B2|0B3|
  worker 1 (1 3)      |1F0|1F1|3F0|3B0|3F1|3B1|1F2|1B0|1F3|1B1|3F2|3B2|3F3|3B3|1B2|1B3|

P workers, D = VP stages, N a multiple of P. Microbatches run in rounds of P: all of a round through the first P stages,
then all through the next P, and so on. With F and B the seconds of a forward and a backward of one stage:
T = NV(F+B) + (P-1)(F+B). Worker w has (V-1)P + 2(P-1-w) + 1 of its NV stage inputs alive, or all NV if that is fewer.
With V = 1, the default of `chunks`, the schedule is 1F1B, and D-w are alive.
Source: Narayanan et al., Efficient large-scale language model training (2021), section 2.2.
"""

from pipelined.schedules.parts.knobs import CHUNKS
from pipelined.schedules.parts.placements import require_settings, use_either
from pipelined.schedules.parts.stage_map import ScheduleError, Shape, StageMap
from pipelined.schedules.parts.worker import Worker

KNOBS = (CHUNKS,)


def stage_map(shape: Shape) -> StageMap:
    """Stage s on worker s mod P, where P is depth / chunks.

    Raises:
        ScheduleError: chunks that do not divide the depth, or workers that do not divide the microbatches.
    """
    require_settings("interleaved", shape)
    chunks = CHUNKS.of(shape)
    workers, stages_left = divmod(shape.depth, chunks)
    if stages_left or not workers:
        fact = f"interleaved needs a depth that is a multiple of the chunks (depth: {shape.depth}, chunks: {chunks})"
        raise ScheduleError(f"{fact}; {_use_nearest('depth', shape.depth, chunks)}")
    if shape.microbatches % workers:
        numbers = f"(microbatches: {shape.microbatches}, workers: {workers})"
        remedy = _use_nearest("microbatches", shape.microbatches, workers)
        raise ScheduleError(f"interleaved needs microbatches that are a multiple of its workers {numbers}; {remedy}")
    placement = {(0, stage): stage % workers for stage in range(shape.depth)}
    return StageMap(shape.depth, workers, placement, (tuple(range(shape.microbatches)),))


async def schedule(worker: Worker) -> None:
    """Run one step on one worker: warm-up, steady state, cool-down; each stage runs P microbatches, then the next.

    The first backward comes from the last stage: after (V-1)P forwards of the other stages, and 2 for each worker
    between this one and the end of the row. With one stage a worker, 1 is enough, as in 1F1B.
    """
    workers = worker.stage_map.workers
    stages = worker.stage_map.stages_of(worker.index)
    chunks = len(stages)
    total = len(stages) * len(worker.stage_map.microbatches[0])
    to_end = workers - 1 - worker.index
    warm_up = min(total, (chunks - 1) * workers + to_end * (2 if chunks > 1 else 1))
    for forward_number in range(warm_up + total):
        backward_number = forward_number - warm_up
        if forward_number < total:
            await worker.forward(0, stages[forward_number // workers % chunks])
        if backward_number >= 0:
            await worker.backward(0, stages[::-1][backward_number // workers % chunks])


def _use_nearest(name: str, number: int, divisor: int) -> str:
    """The remedy: the nearest multiples of `divisor` below and above a number."""
    below = number // divisor * divisor
    return use_either(name, below, below + divisor)
