"""The rings of a round between clusters that cut a model in different ways: one for each slice that none cuts further.

    cluster 0    | rank 0         | rank 1                 |
    cluster 1    | rank 2 | rank 3        | rank 4         |
    rings        | 0 2    | 0 3   | 1 3   | 1 4            |

A rank with a large share is in several rings; its neighbours in each ring hold the same elements in other clusters. The
bytes that each place sends in a round are known in closed form.

Source: Ravnest, section 3.2 (parallel multi-ring all-reduce).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise

from collectives import ProblemSize
from collectives.algorithms.all_reduce.ring import RingAllReduce
from pipelined.ravnest.planning.stage_sizes import NUMBER_BYTES, LayerSize, LayerSpan


@dataclass(frozen=True, slots=True)
class Share:
    """The elements [low, high) of the model that one rank of a cluster holds."""

    rank: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Ring:
    """The ranks that hold the elements [low, high): one of every cluster, in the order of the clusters."""

    ranks: tuple[int, ...]
    low: int
    high: int


def rings_of(clusters: Sequence[Sequence[Share]]) -> list[Ring]:
    """The rings, in the order of their elements.

    Args:
        clusters: the shares of each cluster, which together hold every element once; a rank may hold several shares,
            all in one cluster.
    Raises:
        ValueError: no cluster, shares that overlap or leave a gap, clusters of different lengths, or a rank in two.
    """
    ordered = [sorted(cluster, key=lambda share: share.low) for cluster in clusters]
    _check(ordered)
    cuts = sorted({cut for cluster in ordered for share in cluster for cut in (share.low, share.high)})
    positions = [0] * len(ordered)
    rings = []
    for low, high in pairwise(cuts):
        for index, cluster in enumerate(ordered):
            while cluster[positions[index]].high <= low:
                positions[index] += 1
        ranks = tuple(cluster[position].rank for cluster, position in zip(ordered, positions, strict=True))
        rings.append(Ring(ranks, low, high))
    return rings


def shares_of(clusters: Sequence[Sequence[LayerSpan]], sizes: Iterable[int]) -> list[list[Share]]:
    """The elements that each node holds; ranks count the nodes of all clusters, cluster by cluster.

    Args:
        clusters: the stages of each.
        sizes: elements of each layer.
    """
    starts = [0, *accumulate(sizes)]
    ranks = count()
    return [[Share(next(ranks), starts[stage.first], starts[stage.end]) for stage in stages] for stages in clusters]


def rings_between(clusters: Sequence[Sequence[LayerSpan]], layers: Sequence[LayerSize]) -> list[Ring]:
    """A ring for every slice of the model's elements that no cluster cuts further; `clusters` as for `shares_of`."""
    return rings_of(shares_of(clusters, [layer.parameters for layer in layers]))


def number_bytes(layers: Sequence[LayerSize]) -> int:
    return max((layer.number_bytes for layer in layers), default=NUMBER_BYTES)


def round_bytes(rings: Sequence[Ring], layers: Sequence[LayerSize], places: int) -> list[int]:
    """Bytes that each of these places sends in a round: the ring's own closed form, over its slices."""
    ring = RingAllReduce()
    sent_bytes = [0] * places
    number = number_bytes(layers)
    for part in rings:
        problem = ProblemSize.on_one_node(len(part.ranks), (part.high - part.low) * number, number)
        for place, rank in enumerate(part.ranks):
            sent_bytes[rank] += sum(ring.bytes_to(problem, place).values())
    return sent_bytes


def _check(clusters: Sequence[Sequence[Share]]) -> None:
    if not clusters:
        raise ValueError("no clusters (clusters: 0); give at least one")
    for index, cluster in enumerate(clusters):
        ends = [0, *(share.high for share in cluster)]
        for share, end in zip(cluster, ends, strict=False):
            if share.low != end or share.high <= share.low:
                fact = f"cluster {index}: rank {share.rank} holds [{share.low}, {share.high}), expected from {end} on"
                raise ValueError(f"the shares do not hold every element once ({fact}); cut them end to end")
    lengths = [max((share.high for share in cluster), default=0) for cluster in clusters]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"the clusters hold models of different lengths (elements: {lengths}); give all the same model"
        )
    members = [rank for cluster in clusters for rank in {share.rank for share in cluster}]
    if repeated_ranks := sorted({rank for rank in members if members.count(rank) > 1}):
        raise ValueError(f"ranks in more than one cluster (ranks: {repeated_ranks}); a ring takes one rank of each")
