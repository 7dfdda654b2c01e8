"""Orders of instructions that several schedules share, and the run of a fixed order on a worker."""

from collections import Counter
from collections.abc import Iterable, Iterator

from pipelined.schedules.parts.worker import Worker

Place = tuple[int, int]
"""A (pipe, stage) that a worker holds."""
WorkerOrder = Iterator[tuple[str, Place]]
"""(op, place) of one worker, in order; op is F, B, I or W, and takes the next microbatch of its place."""


async def run_order(worker: Worker, order: Iterable[tuple[str, Place]]) -> None:
    """Run an order on a worker; skip instructions past the last microbatch of their pipe."""
    counts: Counter[tuple[str, Place]] = Counter()
    for op, (pipe, stage) in order:
        counts[op, (pipe, stage)] += 1
        if counts[op, (pipe, stage)] <= len(worker.stage_map.microbatches[pipe]):
            await worker.do(op, pipe, stage)


async def one_f_one_b_without_flush(worker: Worker) -> None:
    """Run one segment of one pipe: warm-up, then a forward and a backward in turn, and one cool-down at the end.

    The microbatches alive have a limit, D - s on stage s unless the stage map says otherwise. Without one the age of
    the weights that a microbatch uses would depend on the length of the segment.
    """
    alive = 0
    limit = worker.stage_map.alive_limit(worker.stage_map.stages_of(worker.index)[0])
    while await worker.wait(("F", 0)):
        await worker.forward(0)
        alive += 1
        if alive == limit:
            await worker.backward(0)
            alive -= 1
    for _ in range(alive):
        await worker.backward(0)


def backward_in_halves(place: Place) -> list[tuple[str, Place]]:
    """A whole backward, with its gradient sent before the weight half begins."""
    return [("I", place), ("W", place)]


def dualpipe_order(to_end: int, half: int, microbatches: int, first: Place, second: Place) -> WorkerOrder:
    """The order that DualPipe and DualPipe-V share.

    A microbatch passes place `first` in the first half of its path and place `second` in the second half. The order is
    the same whether the second half runs on other workers (DualPipe) or on the same ones (DualPipe-V).

    Where the original computes a forward and a backward in one kernel, this order runs the forward, then the backward.

    Args:
        to_end: the number of workers between this one and the end of the row.
        half: the number of workers in one half of the path, P.
        microbatches: the number of microbatches that enter at each place, at least 2P.
    Source: DeepSeek-V3 technical report (2024), section 3.2.1; github.com/deepseek-ai/DualPipe, `step`, steps 1-8.
    """
    to_middle = half - 1 - to_end
    forward_first, forward_second = ("F", first), ("F", second)
    backward_first, backward_second = backward_in_halves(first), backward_in_halves(second)
    yield from [forward_first] * (2 * to_middle)  # step 1
    yield from [forward_first, forward_second] * (to_end + 1)  # 2
    yield from [*backward_second, forward_second] * to_middle  # 3
    steady = microbatches - 2 * half + to_end + 1
    yield from [forward_first, *backward_second, forward_second, *backward_first] * steady  # 4
    yield from [*backward_second, forward_second, *backward_first] * to_middle  # 5
    turns = [second, first] * (to_end + 1)  # 6: whole backwards, then as many with pending weight halves
    for place in turns[: to_end + 1]:
        yield from backward_in_halves(place)
    for place in turns[to_end + 1 :]:
        yield "I", place
    pending_halves = turns[to_end + 1 :] + [first] * to_middle
    for place in pending_halves[:to_middle]:  # 7: the oldest pending weight half, and one more input half
        yield from [("W", place), ("I", first)]
    for place in pending_halves[to_middle:]:  # 8
        yield "W", place
