"""Hierarchical: reduce inside every node, a ring between nodes, broadcast inside. For slow links between nodes.

    nodes      0: ranks 0 1 2      1: ranks 3 4      2: rank 5
    reduce         0 <- 1, 2           3 <- 4            5          up a binomial tree to the node's first rank
    ring           0 ----------------> 3 --------------> 5 ---> 0   between the first ranks
    broadcast      0 -> 1, 2           3 -> 4            5          down the same tree

Between nodes only the ring sends: 2(L-1)/L of the array from each of L nodes, however many ranks a node has.
"""

from collections import Counter
from collections.abc import Sequence

from collectives.algorithms.all_reduce.ring import RingAllReduce
from collectives.algorithms.base import AllReduceAlgorithm, ClosedForms
from collectives.algorithms.parts.binomial_tree import branches, broadcast_down
from collectives.algorithms.parts.pieces import reduce_pieces, send_pieces
from collectives.algorithms.parts.ring_pass import RingPass
from collectives.arrays import Vector, segments
from collectives.cost_model import Links, ProblemSize, ring_of_equal_links
from collectives.group import Communicator, Group
from collectives.reduction import Reduction


class HierarchicalAllReduce(AllReduceAlgorithm, ClosedForms):
    """Trees inside nodes, a ring between them."""

    async def is_available(self, group: Group) -> bool:
        return len(set(group.nodes)) > 1

    async def run(self, group: Group, vector: Vector, reduction: Reduction) -> None:
        """Reduce up the trees, all-reduce over the ring, broadcast down the trees; extra memory is one piece.

        Cost: with k ranks on the largest of L nodes, 2 ceil(log2 k) steps inside nodes and 2(L-1) between them; where
            a rank may send several messages at once, 2 floor(log2 k) inside nodes (`steps`). A rank sends the array
            once to each child in the tree, and, unless it is the first of its node, once to its parent; the first rank
            of a node sends 2(L-1)/L of the array over the ring.
        Source: Thakur, Rabenseifner, Gropp, section 4.4 (the trees); Patarasuk, Yuan (the ring).
        """
        node = group.nodes[group.rank]
        leaders = leaders_of(group.nodes)
        inside = group.subgroup([rank for rank in range(group.size) if group.nodes[rank] == node])
        parent, children = branches(inside.rank, inside.size)
        for child in reversed(children):
            await reduce_pieces(inside, child, vector, (0, len(vector)), reduction=reduction)
        if parent is not None:
            await send_pieces(inside, parent, vector, (0, len(vector)))
        else:
            await _reduce_between(group.subgroup(leaders), vector, reduction, group.size)
        await broadcast_down(inside, vector)

    def seconds(self, problem: ProblemSize, links: Links) -> float:
        """Seconds: ceil(log2 k) (2 alpha + m (2 beta + gamma)) in the largest node, plus a ring's on far links."""
        inside = (max(Counter(problem.nodes).values()) - 1).bit_length()
        trees = inside * (2 * links.alpha + problem.nbytes * (2 * links.beta + links.gamma))
        return trees + ring_of_equal_links(len(set(problem.nodes)), problem.nbytes, links.far or links)

    def steps(self, problem: ProblemSize) -> int:
        """The most messages one after another, if a rank may send several at once: up the deepest tree, ring, down.

        2 floor(log2 k) + 2(L-1), as in `run`: a rank's depth in its tree is the number of bits set in its number.
        """
        sizes = Counter(problem.nodes).values()
        deepest = max((position.bit_count() for size in sizes for position in range(size)), default=0)
        return 2 * deepest + 2 * (len(sizes) - 1)

    def bytes_to(self, problem: ProblemSize, rank: int) -> dict[int, int]:
        """The whole array, to the parent and to each child; between the first ranks of nodes, the bytes of `ring`."""
        nodes = problem.nodes
        inside = [peer for peer in range(problem.size) if nodes[peer] == nodes[rank]]
        parent, children = branches(inside.index(rank), len(inside))
        bytes_by_peer = Counter(
            {inside[peer]: problem.nbytes for peer in (*children, *([] if parent is None else [parent]))}
        )
        if parent is None:
            leaders = leaders_of(nodes)
            ring = ProblemSize(leaders, problem.nbytes, problem.itemsize)
            for position, sent_bytes in RingAllReduce().bytes_to(ring, leaders.index(rank)).items():
                bytes_by_peer[leaders[position]] += sent_bytes
        return dict(+bytes_by_peer)  # without zeros


async def _reduce_between(leaders: Communicator, vector: Vector, reduction: Reduction, size: int) -> None:
    """All-reduce over a ring of the leaders; a mean is divided at the end by the size of the whole group."""
    ring_reduction = Reduction("max" if reduction.op == "max" else "sum", vector.elements)
    await RingPass(leaders, vector, segments(len(vector), leaders.size)).all_reduce(ring_reduction)
    reduction.finish(vector.elements, size)


def leaders_of(nodes: Sequence[int]) -> list[int]:
    """The first rank of every node, in order."""
    return sorted(set(nodes))
