"""The order that DualPipe and DualPipe-V share, for one worker and its two places.

The rule: a worker knows how far it is from its end of the row and from the turning point, and nothing else. A
microbatch comes by `first` on its way in and by `second` on its way out; there it matters not whether the second half
of the way is on other workers (DualPipe) or on the same ones (DualPipe-V).

Forwards and backwards that the original computes as one kernel follow each other here, forward first, and each whole
backward is an input half with its weight half right behind, so that its gradient leaves before the weights' is done.
Source: DeepSeek-V3 technical report (2024), section 3.2.1; github.com/deepseek-ai/DualPipe, `step`, phases 1-8.
"""

from collections.abc import Iterator

from pipelined.schedules.shapes import Place


def dualpipe_order(index: int, half: int, rounds: int, first: Place, second: Place) -> Iterator[tuple[str, Place]]:
    """(op, place) in their order.

    Args:
        index: workers between this one and the row's end.
        half: workers of one half of the way, P.
        rounds: microbatches that enter by each place, at least 2P.
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
    put_off = turns[index + 1 :] + [first] * inside
    for place in turns[index + 1 :]:
        yield "I", place
    for place in put_off[:inside]:
        yield from [("W", place), ("I", first)]
    for place in put_off[inside:]:
        yield "W", place


def _whole(place: Place) -> list[tuple[str, Place]]:
    return [("I", place), ("W", place)]
