"""How an array is cut: into one segment per rank, and each segment into consecutive pieces.

Both ends of a link compute the same cut from numbers that both know, so no size is ever sent.
"""

from collections.abc import Iterator

Range = tuple[int, int]


def segment(length: int, parts: int, index: int) -> Range:
    """The range [low, high) of part `index`, if `length` elements are cut evenly; sizes differ by at most one."""
    return index * length // parts, (index + 1) * length // parts


def segments(length: int, parts: int) -> list[Range]:
    """All ranges of `segment`, in order; some are empty if there are fewer elements than parts."""
    return [segment(length, parts, index) for index in range(parts)]


def pieces(low: int, high: int, most: int) -> Iterator[Range]:
    """Cut [low, high) into ranges of at most `most` elements; an empty range has no pieces."""
    return ((start, min(start + most, high)) for start in range(low, high, most))
