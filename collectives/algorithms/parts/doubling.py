"""Which segments two ranks exchange when each holds twice as many after every step, for any number of ranks.

At distance d = 1, 2, 4, .. rank r holds the segments r .. r + d - 1 (mod n) and sends as many of them as the receiver
lacks to rank r - d:

    n = 5, rank 0    d = 1    sends 0 to 4          receives 1 from 1
                     d = 2    sends 0 1 to 3        receives 2 3 from 2
                     d = 4    sends 0 to 1          receives 4 from 4

So each rank receives every segment once, in ceil(log2 n) steps. Backwards in time, with sums in place of copies, the
same steps are a reduce-scatter: at d = .., 2, 1 rank r sends the segments that it would receive, and reduces into
those that it would send.

Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport
message-passing systems", section 3 (concatenation).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DoublingStep:
    """One step of one rank.

    Args:
        target, source: the ranks to send to and to receive from.
        sent_numbers, received_numbers: the segments that it holds and sends, and those that it receives.
    """

    target: int
    source: int
    sent_numbers: Sequence[int]
    received_numbers: Sequence[int]


def doubling_steps(size: int, rank: int) -> Iterator[DoublingStep]:
    """The steps of this rank, nearest first."""
    distance = 1
    while distance < size:
        numbers = range(min(distance, size - distance))
        source = (rank + distance) % size
        yield DoublingStep(
            target=(rank - distance) % size,
            source=source,
            sent_numbers=[(rank + number) % size for number in numbers],
            received_numbers=[(source + number) % size for number in numbers],
        )
        distance *= 2


def steps(size: int) -> int:
    """Messages one after another: ceil(log2 n)."""
    return (size - 1).bit_length()


def sent_bytes(links: Iterator[tuple[int, Sequence[int]]], lengths: Sequence[int]) -> dict[int, int]:
    """The bytes to each peer, without zeros.

    Args:
        links: peers, and the segments that each is sent.
        lengths: bytes of every segment.
    """
    bytes_by_peer = Counter[int]()
    for peer, numbers in links:
        bytes_by_peer[peer] += sum(lengths[number] for number in numbers)
    return dict(+bytes_by_peer)  # without zeros
