"""The order of instructions that DualPipe and DualPipe-V share, for one worker and its two places.

The order depends only on the worker's distance from its end of the row and from the turning point. A microbatch passes
place `first` in the first half of its path and place `second` in the second half. The order is the same whether the
second half runs on other workers (DualPipe) or on the same ones (DualPipe-V).

Where the original computes a forward and a backward in one kernel, this order runs the forward, then the backward. Each
whole backward is an input half followed at once by its weight half, so its gradient is sent before the weight half.
Source: DeepSeek-V3 technical report (2024), section 3.2.1; github.com/deepseek-ai/DualPipe, `step`, phases 1-8.
"""

from collections.abc import Iterator

from pipelined.schedules.parts.shapes import PipeStage


def dualpipe_order(
    index: int, half: int, rounds: int, first: PipeStage, second: PipeStage
) -> Iterator[tuple[str, PipeStage]]:
    """(op, place) in order.

    Args:
        index: the number of workers between this one and the row's end.
        half: the number of workers in one half of the path, P.
        rounds: the number of microbatches that enter at each place, at least 2P.
    """
    inside = half - 1 - index
    yield from [("F", first)] * (2 * inside)
    yield from [("F", first), ("F", second)] * (index + 1)
    yield from [*_whole(second), ("F", second)] * inside
    yield from [("F", first), *_whole(second), ("F", second), *_whole(first)] * (rounds - 2 * half + index + 1)
    yield from [*_whole(second), ("F", second), *_whole(first)] * inside
    turns = [second, first] * (index + 1)
    for place in turns[: index + 1]:
        yield from _whole(place)
    postponed = turns[index + 1 :] + [first] * inside
    for place in turns[index + 1 :]:
        yield "I", place
    for place in postponed[:inside]:
        yield from [("W", place), ("I", first)]
    for place in postponed[inside:]:
        yield "W", place


def _whole(place: PipeStage) -> list[tuple[str, PipeStage]]:
    return [("I", place), ("W", place)]
