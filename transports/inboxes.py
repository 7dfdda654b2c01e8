"""Messages that one rank has received and not yet taken. Waiting for more ends by a loss, or by the end of the rank.

A rank over MPI has no `Inboxes`: MPI keeps the buffers until they are received, so the rank needs a mailbox for
messages only. `transports.mpi.shutdown` ends it.
"""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from transports.errors import PeerLost, TransportError
from transports.mailbox import Arrival, Mailbox
from transports.state import TransportState
from transports.wire.arrays import ArrayType, Block, blocks_for

MessageItem = TypeVar("MessageItem")
BufferItem = TypeVar("BufferItem")


class Inboxes(Generic[MessageItem, BufferItem]):
    """The two mailboxes of one rank, which end with its state.

    Attributes:
        state: whether this rank is open, and which peers are lost.
        messages, buffers: what has arrived, by peer and key, and by peer and channel.
    """

    def __init__(self, world_size: int):
        self.state = TransportState(world_size)
        self.messages = Mailbox[MessageItem](world_size)
        self.buffers = Mailbox[BufferItem](world_size)

    def lose(self, error: PeerLost) -> None:
        """Fail the receives from a lost peer, now and later; what arrived before stays available."""
        self.state.lose(error)
        error = self.state.lost[error.rank]
        self.messages.fail_peer(error.rank, error)
        self.buffers.fail_peer(error.rank, error)

    def end(self, error: TransportError) -> TransportError:
        """Fail every operation, now and later. Returns the reason that is kept: the first."""
        error = self.state.end_with(error)
        self.messages.fail_all(error)
        self.buffers.fail_all(error)
        return error


def fit_or_put_back(
    mailbox: Mailbox[Any], arrival: Arrival[Any], layouts: Sequence[ArrayType], into: Sequence[Block] | None
) -> tuple[Block, ...]:
    """Blocks for a taken message: over the memory of `into`, or in new memory.

    Raises:
        ValueError: `into` does not fit; the message is available again.
    """
    try:
        return blocks_for(layouts, into)
    except ValueError:
        mailbox.put_back(arrival)
        raise
