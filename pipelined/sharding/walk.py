"""A walk along the messages of moves: when each rank is ready, carried from one move to the next.

The price of a path adds up what the busiest rank of each move takes, as if all ranks waited for it there. Ranks wait
only for messages, so one that ends a move early begins the next early, and one that gets a long message late delays
those that wait for it in turn. Here each message leaves when its sender is ready:

    a rank is ready            its earlier messages to this peer have left
            |--- waits for the link ---|--- bytes · beta ---|--- alpha ---|--- bytes · gamma, where it is added
                                                                          the receiver is ready

A send returns at once, as into the buffer of a socket. A whole strategy is predicted so; the searches add up prices.
"""

from collections.abc import Iterator, Sequence

from collectives import Links, segments
from pipelined.sharding.collective_moves import AllGather, AllToAll, CollectiveMove, Move, ReduceScatter, ReduceToAll
from pipelined.sharding.path import Path

Sending = tuple[int, int, int]
"""Sender and receiver, as indices in a group, and elements."""


class LinkWalk:
    """The ranks of a mesh on their way along paths.

    Args:
        ranks: of the meshes of all paths.
        links, node: as of `Move.seconds`. Ranks of one node move through its memory if the links have its price.
        message_bytes: what every message carries beside its elements.

    Attributes:
        ready: seconds from the start at which each rank has ended its moves. Its last messages may not have left yet.
    """

    def __init__(self, ranks: int, links: Links, node: int = 0, message_bytes: int = 0):
        self.ready = [0.0] * ranks
        self._links, self._node, self._message_bytes = links, node, message_bytes
        self._free_at = dict[tuple[int, int], float]()

    @property
    def seconds(self) -> float:
        """The time of the last rank."""
        return max(self.ready)

    def carry(self, path: Path, itemsize: int = 4) -> None:
        """All ranks take a path.

        Args:
            itemsize: bytes of an element.
        """
        for move in path.steps:
            if isinstance(move, CollectiveMove) and move.group_size > 1:
                for group in sorted({move.group(rank) for rank in range(len(self.ready))}):
                    self._run(move, group, itemsize)

    def _run(self, move: CollectiveMove, group: Sequence[int], itemsize: int) -> None:
        links = self._links
        if links.memory is not None and len({self._node_of(rank) for rank in group}) == 1:
            end = max(self.ready[rank] for rank in group) + links.memory.seconds(move.name, move.longest * itemsize)
            for rank in group:
                self.ready[rank] = end
            return
        for step, messages in enumerate(_steps(move, group)):
            adds = move.op is not None and step < len(group) - 1
            transfers = [(group[sender], group[receiver], itemsize * n) for sender, receiver, n in messages]
            self._exchange(transfers, links, adds)

    def _exchange(self, messages: Sequence[Sending], links: Links, adds: bool) -> None:
        """The messages of one step, each from a rank as it is ready before the step."""
        ready = list(self.ready)
        for sender, receiver, nbytes in messages:
            is_far = links.far is not None and self._node_of(sender) != self._node_of(receiver)
            hop = links.far if is_far and links.far else links
            free_at = self._free_at.get((sender, receiver), 0.0)
            departure = max(ready[sender], free_at) + (nbytes + self._message_bytes) * hop.beta
            self._free_at[sender, receiver] = departure
            adding = nbytes * links.gamma if adds else 0.0
            self.ready[receiver] = max(ready[receiver], departure + hop.alpha) + adding

    def _node_of(self, rank: int) -> int:
        return rank // self._node if self._node else 0


def _steps(move: Move, group: Sequence[int]) -> Iterator[list[Sending]]:
    """The messages of each step of a move in one group, as its algorithm sends them."""
    size = len(group)
    match move:
        case AllToAll():
            for step in range(1, size):
                pairs = [(index, (index + step) % size) for index in range(size)]
                yield [(sender, receiver, move.overlap(group[sender], group[receiver])) for sender, receiver in pairs]
        case AllGather():
            yield from _ring([move.source.size(rank) for rank in group], size - 1, 2 * size - 2)
        case ReduceScatter():
            yield from _ring([move.target.size(rank) for rank in group], 0, size - 1)
        case ReduceToAll():
            spans = segments(move.source.size(group[0]), size)
            yield from _ring([high - low for low, high in spans], 0, 2 * size - 2)


def _ring(lengths: Sequence[int], start: int, stop: int) -> Iterator[list[Sending]]:
    """Steps of a ring's pass: see `collectives.algorithms.parts.ring_pass`. Empty segments are not sent."""
    size = len(lengths)
    for step in range(start, stop):
        sent_lengths = [lengths[(index - 1 - step) % size] for index in range(size)]
        yield [(index, (index + 1) % size, elements) for index, elements in enumerate(sent_lengths) if elements]
