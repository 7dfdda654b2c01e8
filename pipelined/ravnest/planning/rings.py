"""The rings of a round between clusters, and the bytes that each place sends in it, in closed form."""

from collections.abc import Sequence
from typing import Protocol

from collectives import ProblemSize
from collectives.algorithms.all_reduce.ring import RingAllReduce
from collectives.clusters import Ring, Share, rings_of
from pipelined.ravnest.planning.stage import NUMBER_BYTES, LayerSize


class LayerSpan(Protocol):
    """A place: it holds the layers [first, end)."""

    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...


def rings_between(rows: Sequence[Sequence[LayerSpan]], layers: Sequence[LayerSize]) -> list[Ring]:
    """A ring for every slice of the model's elements that no cluster cuts further.

    Args:
        rows: of each cluster its places; their ranks are counted through all clusters.
    """
    starts = [sum(layer.parameters for layer in layers[:index]) for index in range(len(layers) + 1)]
    shares, rank = [], 0
    for row in rows:
        shares.append([Share(rank + i, starts[place.first], starts[place.end]) for i, place in enumerate(row)])
        rank += len(row)
    return rings_of(shares)


def number_bytes(layers: Sequence[LayerSize]) -> int:
    """Bytes of a parameter."""
    return max((layer.number_bytes for layer in layers), default=NUMBER_BYTES)


def round_bytes(rings: Sequence[Ring], layers: Sequence[LayerSize], places: int) -> list[int]:
    """Bytes that each of these places sends in a round: the ring's own closed form, over its slices."""
    ring, sent, number = RingAllReduce(), [0] * places, number_bytes(layers)
    for part in rings:
        problem = ProblemSize.on_one_node(len(part.ranks), (part.high - part.low) * number, number)
        for place, rank in enumerate(part.ranks):
            sent[rank] += sum(ring.bytes_to(problem, place).values())
    return sent
