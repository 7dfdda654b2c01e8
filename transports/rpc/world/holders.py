"""The endpoints that hold the ranks of a world: one for each rank, and for some ranks a second one, the backup.

Both holders of a rank run one program that gives equal messages, and each sends all of them to every holder of the
receiving rank. A receiver keeps the first copy of each message, so a rank is lost only with its last holder.
"""

from collections.abc import Sequence

from transports.errors import PeerLost
from transports.rpc.base import Party, Rejected
from transports.wire.frames import Key


class Holders:
    """The holders of one world. Each has a seat, a number: those of the ranks come first, then those of the backups.

    Args:
        addresses: of the holder of each rank.
        backups: of the second holder of each rank, "" where there is none; empty: no rank has one.
        own_address: of this holder.

    Attributes:
        addresses: by seat.
        ranks: by seat, the rank that its holder has.
        own_seat: the seat of this holder.
        lost: by seat, why the holder is lost.
        closed: seats of holders that have left after their program's end: they need no message any more.
        parties: by seat, the identity with which the holder sent its first request.
    """

    def __init__(self, addresses: Sequence[str], backups: Sequence[str], own_address: str):
        spare = [(rank, address) for rank, address in enumerate(backups) if address]
        self.world_size = len(addresses)
        self.addresses = [*addresses, *(address for _, address in spare)]
        self.ranks = [*range(len(addresses)), *(rank for rank, _ in spare)]
        self.own_seat = self.addresses.index(own_address)
        self.lost, self.closed, self.parties = dict[int, PeerLost](), set[int](), dict[int, Party]()
        self._ahead = dict[tuple[str, int, Key], int]()

    def seat_of(self, party: Party) -> int:
        """The seat of a party; the handshake has proved the party's identity.

        Raises:
            Rejected: the party holds no rank of the world, or has restarted since its first request.
        """
        if party.address not in self.addresses:
            raise Rejected("not a member", address=party.address)
        seat = self.addresses.index(party.address)
        if self.parties.setdefault(seat, party) != party:
            raise Rejected("restarted", address=party.address)
        return seat

    @property
    def have_backups(self) -> bool:
        """Whether any rank has two holders."""
        return len(self.addresses) > self.world_size

    @property
    def others(self) -> list[int]:
        """The seats of all holders but this one."""
        return [seat for seat in range(len(self.addresses)) if seat != self.own_seat]

    @property
    def twin(self) -> int | None:
        """The seat of the other holder of this rank; None: there is none, or it is lost."""
        return next((seat for seat in self.remaining(self.ranks[self.own_seat]) if seat != self.own_seat), None)

    @property
    def is_last(self) -> bool:
        """Whether the rank fails with this holder: it has no twin, and no holder of the rank has ended its program."""
        return self.twin is None and not self.has_closed(self.ranks[self.own_seat])

    def remaining(self, rank: int) -> list[int]:
        """The seats of the holders of a rank that are not lost."""
        return [seat for seat, held_rank in enumerate(self.ranks) if held_rank == rank and seat not in self.lost]

    def has_closed(self, rank: int) -> bool:
        """Whether a holder of this rank has ended its program: then neither needs a message any more."""
        return any(self.ranks[seat] == rank for seat in self.closed)

    def record_copy(self, seat: int, kind: str, key: Key) -> bool:
        """Record a copy of a message, in the order of its sender. Returns whether it is the first one.

        Cost: an entry for each key of which one holder has sent more than the other.
        """
        rank = self.ranks[seat]
        if self.ranks.count(rank) == 1:
            return True
        sign = 1 if seat < self.world_size else -1
        at = (kind, rank, key)
        ahead = sign * self._ahead.pop(at, 0)  # messages that this holder has sent beyond the other
        if ahead < 0 or len(self.remaining(rank)) == 2:
            self._ahead[at] = sign * (ahead + 1)
            if ahead + 1 == 0:
                del self._ahead[at]
        return ahead >= 0
