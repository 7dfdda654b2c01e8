"""The costs of messages in a group: the alpha, beta and gamma of the Hockney model, and measured times of all-reduces.

All ranks of a group must have equal links and equal measured times, because `auto` chooses by them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from collectives.arrays import segments


@dataclass(frozen=True, slots=True)
class MemoryCosts:
    """The price of a collective through memory that its ranks share, alpha + m * beta seconds.

    It depends little on messages: ranks copy, wait for one another and read. m is the bytes of the longest array that a
    rank has before or after it.

    Args:
        all_gather, reduce_scatter, all_reduce, all_to_all: alpha and beta of each.
    """

    all_gather: tuple[float, float]
    reduce_scatter: tuple[float, float]
    all_reduce: tuple[float, float]
    all_to_all: tuple[float, float]

    def seconds(self, collective: str, nbytes: float) -> float:
        """Seconds of a collective, by its name here."""
        alpha, beta = getattr(self, collective)
        seconds: float = alpha + nbytes * beta
        return seconds


@dataclass(frozen=True, slots=True)
class Links:
    """The price of one message of m bytes, alpha + m * beta seconds, and of reducing it, m * gamma seconds.

    The defaults have the magnitude of ranks that share one machine's memory; measure, and pass measured values.

    Args:
        alpha: seconds per message, whatever its size.
        beta: seconds per byte on the wire.
        gamma: seconds to reduce one byte of an array into another.
        far: the links between ranks of different nodes; None: the same as inside a node.
        memory: of collectives between ranks that share memory; None: they are priced as messages.
    Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", section 2.
    """

    alpha: float = 2e-5
    beta: float = 1.5e-10
    gamma: float = 5e-11
    far: "Links | None" = None
    memory: MemoryCosts | None = None

    def __post_init__(self) -> None:
        if min(self.alpha, self.beta, self.gamma) < 0:
            raise ValueError(f"a link costs less than nothing ({self}); measure again")

    def slowest(self, nodes: Sequence[int]) -> "Links":
        """The links that price a step in which all ranks wait: those between nodes, if there are several nodes."""
        return self.far if self.far is not None and len(set(nodes)) > 1 else self


@dataclass(frozen=True, slots=True)
class ProblemSize:
    """What the closed forms of a collective depend on: where its ranks run, and the array.

    Args:
        nodes: for each rank, the lowest rank on its node.
        nbytes: of the array; of an all-to-all, of what one rank has for all.
        itemsize: bytes of an element.
        lengths: the elements of each rank's segment; None: the array is cut evenly.
    """

    nodes: Sequence[int]
    nbytes: int
    itemsize: int = 1
    lengths: Sequence[int] | None = None

    @classmethod
    def on_one_node(cls, size: int, nbytes: int, itemsize: int = 1) -> "ProblemSize":
        """The problem of this number of ranks of one node, of an array that is cut evenly."""
        return cls((0,) * size, nbytes, itemsize)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.nodes)

    @property
    def segment_bytes(self) -> list[int]:
        """The bytes of each rank's segment."""
        ranges = segments(self.nbytes // self.itemsize, self.size, self.lengths)
        return [(high - low) * self.itemsize for low, high in ranges]


def ring_of_equal_links(size: int, nbytes: int, link: Links, messages: int = 1) -> float:
    """Seconds of an all-reduce over a ring: 2(n-1) k alpha + (n-1)/n m (2 beta + gamma), of k messages a step."""
    return 2 * (size - 1) * (messages * link.alpha) + (size - 1) / size * nbytes * (2 * link.beta + link.gamma)


def ring_seconds(nodes: Sequence[int], nbytes: int, links: Links, *, reduce_steps: int, gather_steps: int) -> float:
    """Seconds of a ring over several nodes, computed step by step: only some of its links lie between nodes.

    A rank sends the next segment once it has received it and its link is free. So with alpha alone a segment waits for
    the far links on its way, and with beta alone all segments wait for the slowest link.

    Args:
        nodes: for each rank, the lowest rank on its node; the ring goes from each rank to the next.
        nbytes: of the array, cut evenly.
        reduce_steps, gather_steps: of each half of the ring's pass: n-1, or 0 if it is not run.
    Cost: n² steps, once for equal arguments; constant time on one node.
    """
    part = nbytes / len(nodes)
    if links.far is None or len(set(nodes)) == 1:
        message = links.alpha + part * links.beta
        return reduce_steps * (message + part * links.gamma) + gather_steps * message
    return _simulate_ring(tuple(nodes), part, links, reduce_steps, gather_steps)


@lru_cache(maxsize=1024)
def _simulate_ring(
    nodes: tuple[int, ...], part: float, near_links: Links, reduce_steps: int, gather_steps: int
) -> float:
    far_links = near_links.far or near_links
    next_nodes = (*nodes[1:], nodes[0])
    links = [near_links if node == next_node else far_links for node, next_node in zip(nodes, next_nodes, strict=True)]
    alpha = np.array([link.alpha for link in links])
    occupied = np.array([part * link.beta for link in links])
    ready_at, free_at = np.zeros(len(nodes)), np.zeros(len(nodes))
    for step in range(reduce_steps + gather_steps):
        free_at = np.maximum(ready_at, free_at) + occupied
        arrived = free_at + alpha + (part * near_links.gamma if step < reduce_steps else 0.0)
        ready_at[0] = arrived[-1]
        ready_at[1:] = arrived[:-1]
    return float(ready_at.max())


def ring_pass_seconds(nodes: int, ranks: int, nbytes: float, links: Links, *, sums: bool) -> float:
    """Seconds of one half of a ring over nodes of equal size: those of `ring_seconds`, in constant time.

    The time is that of the critical path: along part of the ring, then the remaining messages over its slowest link.
    Over several nodes the slowest of four such parts counts: (1) one far link; (2) one far link with the near links on
    both sides; (3) from the first far link to the last; (4) the whole ring but one link.

    Args:
        nodes, ranks: nodes, and ranks of each; the ranks of a node follow one another.
        nbytes: of the array, cut evenly.
        links: those between nodes are not faster than those inside.
        sums: whether a rank adds what it receives (a reduce-scatter) or not (an all-gather).
    """
    size = nodes * ranks
    far_links = links.far or links
    part = nbytes / size
    adding = part * links.gamma if sums else 0.0
    inside, outside = (link.alpha + part * link.beta + adding for link in (links, far_links))
    if 1 in (nodes, ranks):
        return (size - 1) * (inside if nodes == 1 else outside)
    around = (nodes - 1) * (ranks - 1)
    side = ranks - 1
    occupied = part * far_links.beta
    return max(
        outside + (size - 2) * occupied,
        outside + 2 * side * inside + (size - 2 - 2 * side) * occupied,
        nodes * outside + around * inside + (ranks - 2) * occupied,
        nodes * outside + (around + ranks - 2) * inside,
    )


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Measured seconds by algorithm and bytes.

    Args:
        points: for each algorithm, (bytes, seconds) in order of bytes; a single point holds at every size.
    """

    points: Mapping[str, Sequence[tuple[int, float]]]

    def seconds(self, name: str, nbytes: int) -> float:
        """Seconds, interpolated between the two nearest points.

        Below the first point: its seconds. Beyond the last: on the line of the last two, but not less than its seconds.
        """
        points = self.points[name]
        (min_bytes, seconds) = points[0]
        (max_bytes, last_seconds) = points[-1]
        if nbytes <= min_bytes or len(points) == 1:
            return seconds
        (low, start), (high, stop) = next((pair for pair in pairwise(points) if nbytes <= pair[1][0]), points[-2:])
        beta = (stop - start) / (high - low)
        if nbytes > max_bytes:
            return last_seconds + (nbytes - max_bytes) * max(0.0, beta)
        return start + (nbytes - low) * beta

    def fastest(self, nbytes: int) -> str:
        """The algorithm that takes the least time; of equals, the first by name."""
        return min(sorted(self.points), key=lambda name: self.seconds(name, nbytes))
