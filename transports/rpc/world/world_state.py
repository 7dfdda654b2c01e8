"""What one rank of a world has received, which of the others it has lost, and what it waits for. No I/O."""

import asyncio

from transports.errors import PeerAborted, PeerLost, TransportError
from transports.inboxes import Inboxes
from transports.mailbox import Mailbox
from transports.rpc.base import Rejected
from transports.rpc.world.holders import Holders
from transports.state import ABORT_CHARACTERS
from transports.wire.arrays import Block
from transports.wire.frames import Header

Blocks = tuple[Block, ...]


class WorldState:
    """The state of a world at one of its holders.

    Attributes:
        inboxes: what the other ranks sent.
        from_twin: what the twin sent, under this rank.
        transport: the errors that end operations here.
        pending: requests without a reply, with the seat that each is for; they end with the holder or this rank.
    """

    def __init__(self, name: str, holders: Holders):
        self.name = name
        self.holders = holders
        self.rank = holders.ranks[holders.own_seat]
        self.inboxes = Inboxes[tuple[Header, Blocks], Block](holders.world_size)
        self.from_twin = Mailbox[tuple[Header, Blocks]](2)
        self.transport = self.inboxes.state
        self.pending = dict[asyncio.Future[None], int]()

    def end(self, error: TransportError) -> None:
        """Fail every operation here, now and later, with the first reason given."""
        self.from_twin.fail_all(self.inboxes.end(error))
        self._cancel({*self.pending.values()})

    def lose(self, seat: int, reason: str) -> None:
        """Lose a holder, and with its last holder a rank."""
        rank = self.holders.ranks[seat]
        error = self.holders.lost.setdefault(seat, PeerLost(rank, reason))
        if rank == self.rank:
            self.from_twin.fail_peer(rank, error)
        elif not self.holders.remaining(rank):
            self.inboxes.lose(error)
        if self.holders.have_backups:  # a silent holder never answers
            self._cancel({seat})

    def lose_unless_ended(self, seat: int, error: TransportError) -> TransportError:
        """Lose a holder, unless this rank has ended. Returns the error for its operations."""
        if self.transport.ended_by is None:
            self.lose(seat, str(error))
        return (self.transport.ended_by or self.holders.lost[seat]).with_traceback(None)

    def check_not_lost(self, seat: int) -> None:
        """Raises PeerLost: the holder is lost."""
        if seat in self.holders.lost:
            raise self.holders.lost[seat].with_traceback(None)

    def check_taken(self, seat: int) -> None:
        """Raises Rejected: the world has ended, or the sender is lost: its messages might leave a gap."""
        self.check_open()
        if self.holders.have_backups and seat in self.holders.lost:
            raise Rejected("closed", world=self.name[:64])

    def check_open(self) -> None:
        """Raises Rejected: some rank has aborted."""
        if isinstance(error := self.transport.ended_by, PeerAborted):
            raise Rejected("aborted", rank=error.rank, why=error.reason[:ABORT_CHARACTERS])

    def _cancel(self, seats: set[int]) -> None:
        """Cancel the requests to these holders."""
        for task in [task for task, seat in self.pending.items() if seat in seats]:
            task.cancel()
