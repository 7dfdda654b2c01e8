"""Parallel rings over disjoint slices of the array, each with different neighbours. For networks with many links.

Ring g goes from rank r to r + g (mod n), for each g that has no divisor in common with n:

    n = 5, g = 1:  0 1 2 3 4        n = 5, g = 2:  0 2 4 1 3        and g = 4, 3: the same, backwards

No two rings share a directed link, so all rings use one channel without mixing their bytes.

Source: Ravnest, section 3.2 (rings in parallel, each over the slice its ranks hold).
"""

from collections import Counter
from dataclasses import replace
from math import gcd

from collectives.algorithms.all_reduce.ring import RingAllReduce
from collectives.algorithms.base import AllReduceAlgorithm, ClosedForms
from collectives.algorithms.parts.ring_pass import RingPass
from collectives.arrays import Vector, segments
from collectives.cost_model import Links, ProblemSize, ring_of_equal_links
from collectives.group import Group
from collectives.reduction import Reduction
from transports import Nursery

MAX_RINGS = 4  # more rings only make the messages smaller

RING = RingAllReduce()


class MultiRingAllReduce(AllReduceAlgorithm, ClosedForms):
    """Up to four rings at once."""

    async def run(self, group: Group, vector: Vector, reduction: Reduction) -> None:
        """Cut the array into one slice per ring and run all k rings at once; extra memory is one piece per ring.

        Cost: 2(n-1) steps of k messages; a rank sends 2(n-1)/n of each slice, so in total as many bytes as one ring.
        """
        rings = strides(group.size)
        slices = (vector.slice(*span) for span in segments(len(vector), len(rings)))
        passes = (
            RingPass(group, part, segments(len(part), group.size), stride)
            for part, stride in zip(slices, rings, strict=True)
        )
        async with Nursery() as tasks:
            for ring_pass in passes:
                tasks.create_task(ring_pass.all_reduce(reduction))

    def seconds(self, problem: ProblemSize, links: Links) -> float:
        """Seconds if all rings of a rank share one port: those of one ring, but with k alpha per step."""
        link = links.slowest(problem.nodes)
        rings = len(strides(problem.size))
        return ring_of_equal_links(problem.size, problem.nbytes, link, messages=rings)

    def steps(self, problem: ProblemSize) -> int:
        """Messages one after another: 2(n-1), in every ring."""
        return RING.steps(problem)

    def bytes_to(self, problem: ProblemSize, rank: int) -> dict[int, int]:
        """The bytes that `ring` sends for each slice at this rank's position there, to the next rank of that ring."""
        size, itemsize = problem.size, problem.itemsize
        rings = strides(size)
        bytes_by_peer = Counter[int]()
        for stride, (low, high) in zip(rings, segments(problem.nbytes // itemsize, len(rings)), strict=True):
            position = rank * pow(stride, -1, size) % size
            slice_problem = replace(problem, nbytes=(high - low) * itemsize)
            for following, nbytes in RING.bytes_to(slice_problem, position).items():
                bytes_by_peer[following * stride % size] += nbytes
        return dict(bytes_by_peer)


def strides(size: int) -> list[int]:
    """The distance to the next rank in each ring, for at most `MAX_RINGS` rings; each ring is next to its reverse."""
    forward = [stride for stride in range(1, size // 2 + 1) if gcd(stride, size) == 1]
    distances = dict.fromkeys(distance for stride in forward for distance in (stride, size - stride))
    return list(distances)[:MAX_RINGS] or [1]
