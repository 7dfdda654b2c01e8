"""The identity of a group on one of its ranks, which all parts of the group share."""

from collections.abc import Sequence

from transports.base import Transport


class GroupIdentity:
    """The ranks of a group.

    Args:
        transport: this rank's end of the network.
        ranks: the transport's ranks that are in the group, this one included; the position of each is its rank there.
        channel: the channel of the group.

    Attributes:
        size, rank: the number of these ranks, and the rank of this one among them.
    """

    __slots__ = ("channel", "rank", "ranks", "size", "transport")

    def __init__(self, transport: Transport, ranks: Sequence[int], channel: int):
        self.transport = transport
        self.ranks = tuple(ranks)
        self.channel = channel
        self.size = len(self.ranks)
        self.rank = self.ranks.index(transport.rank)

    def __str__(self) -> str:
        return f"(ranks={self.ranks}, channel={self.channel})"
