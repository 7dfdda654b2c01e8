"""What one rank of a world has received, and which of the others it has lost. No I/O."""

from transports.errors import PeerAborted, PeerLost, TransportError
from transports.inboxes import Inboxes
from transports.mailbox import Mailbox
from transports.rpc.base import Rejected
from transports.rpc.world.holders import Holders
from transports.rpc.world.pending_requests import PendingRequests
from transports.state import ABORT_CHARACTERS
from transports.wire.arrays import Block
from transports.wire.frames import Header

Blocks = tuple[Block, ...]


class WorldState:
    """The state of a world at one of its holders.

    Args:
        pending: this holder's requests; those to a lost holder, and all when the world ends here, are cancelled.
    Attributes:
        inboxes: what the other ranks sent.
        from_twin: what the twin sent, under this rank.
    """

    def __init__(self, name: str, holders: Holders, pending: PendingRequests):
        self.name = name
        self.holders = holders
        self.rank = holders.ranks[holders.own]
        self.inboxes = Inboxes[tuple[Header, Blocks], Block](holders.world_size)
        self.from_twin = Mailbox[tuple[Header, Blocks]](2)
        self._pending = pending

    @property
    def ended_by(self) -> TransportError | None:
        """The error that ended this end; None while it is open."""
        return self.inboxes.state.ended_by

    def end(self, error: TransportError) -> None:
        """Fail every operation here, now and later, with the first reason given."""
        self.from_twin.fail_all(self.inboxes.end(error))
        self._pending.cancel()

    def lose(self, seat: int, reason: str) -> None:
        """Lose a holder, and with its last holder a rank."""
        rank = self.holders.ranks[seat]
        error = self.holders.lost.setdefault(seat, PeerLost(rank, reason))
        if rank == self.rank:
            self.from_twin.fail_peer(rank, error)
        elif not self.holders.remaining(rank):
            self.inboxes.lose(error)
        if self.holders.have_backups:  # a silent holder never answers
            self._pending.cancel(seat)

    def lose_unless_ended(self, seat: int, error: TransportError) -> TransportError:
        """Lose a holder, unless this rank has ended. Returns the error for its operations."""
        if self.ended_by is None:
            self.lose(seat, str(error))
        return (self.ended_by or self.holders.lost[seat]).with_traceback(None)

    def check_not_ended(self) -> None:
        """Raises TransportError: this end has ended; the error is the reason."""
        self.inboxes.state.check(None)

    def check_sendable(self, rank: int) -> None:
        """Raises: as `check_not_ended`. PeerLost: the rank is lost."""
        self.inboxes.state.check_sendable(rank)

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
        if isinstance(error := self.ended_by, PeerAborted):
            raise Rejected("aborted", rank=error.rank, why=error.reason[:ABORT_CHARACTERS])
