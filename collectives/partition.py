"""How an array is cut: into a segment for each rank, and a segment into pieces that follow one another.

The one rule: both ends of a link cut alike from numbers that both know, so no size is ever sent. Numbers only: knows
neither memory nor messages.
"""

from collections.abc import Iterator

Range = tuple[int, int]


def segment(length: int, parts: int, index: int) -> Range:
    """The range [low, high) that is part `index` of `length` elements cut evenly; sizes differ by one at most."""
    return index * length // parts, (index + 1) * length // parts


def segments(length: int, parts: int) -> list[Range]:
    """All the ranges of `segment`, in order; some are empty where there are fewer elements than parts."""
    return [segment(length, parts, index) for index in range(parts)]


def pieces(low: int, high: int, most: int) -> Iterator[Range]:
    """Cut [low, high) into ranges of at most `most`; an empty range has no pieces."""
    return ((start, min(start + most, high)) for start in range(low, high, most))
