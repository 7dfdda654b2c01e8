"""A group: the ranks that run collectives together, in one order, on a channel of their own."""

from collections.abc import Sequence

from collectives.cost_model import Links, MeasuredTimes
from collectives.group.communicator import Communicator
from collectives.group.identity import GroupIdentity
from collectives.group.sequence import PATIENCE_S, CallContext, CallSequence
from collectives.group.shared_memory import SharedMemory
from collectives.group.signature import FINGERPRINT_BYTES, Signature
from collectives.group.workspace import Workspace
from transports.base import NativeCollectives, Transport
from transports.state import CHANNELS

PIECE = 2 << 20
WINDOW_BYTES = 2 << 20
SLOT_HEADER_BYTES = 64
"""Bytes of a shared window, and of the header that each slot has beside them. A half has a slot for every rank."""


class Group(Communicator):
    """The ranks that take part in a collective; each of them constructs its own `Group`.

    Every rank constructs it with equal arguments, and all ranks call its collectives in one order. Groups that run
    collectives at the same time need different channels.

    Args:
        transport: this rank's end of the network.
        ranks: the transport's ranks that take part; the position of each is its rank in the group.
        channel: the number under which the group's bytes travel, 0 <= channel < 16384.
        links: the cost of messages between these ranks; `auto` chooses by it.
        piece: bytes of an array that are sent, and reduced, at once; small pieces stay in a core's cache.
        ahead: whether a ring sends a piece as soon as it has it, before the earlier ones have arrived: for slow lines,
            on which a reply waits behind the other end's own bytes.
        window: bytes of each rank's shared window, where the transport shares memory; at least 128 + 128 * size for
            `shared`. None: 2 MiB, and room for a header of every slot, so that even powers of two fit.
        patience: seconds that a rank waits in a collective before it reports its call (see `WaitCheck`).
    Attributes:
        measured: seconds of each all-reduce on this group (see `measure`), equal on all ranks; None: `auto` chooses by
            `links`.
    Raises:
        ValueError: no such channel; this rank is not among `ranks`, or a rank is named twice or does not exist.
    """

    def __init__(
        self,
        transport: Transport,
        ranks: Sequence[int],
        channel: int,
        *,
        links: Links | None = None,
        piece: int = PIECE,
        ahead: bool = False,
        window: int | None = None,
        patience: float = PATIENCE_S,
    ):
        _check(tuple(ranks), channel, transport)
        identity = GroupIdentity(transport, ranks, channel)
        super().__init__(identity, CallSequence(identity, patience), Workspace(piece, ahead))
        self.links = links or Links()
        self.measured: MeasuredTimes | None = None
        self._native: NativeCollectives | None = None
        if window is None:
            window = WINDOW_BYTES + 2 * (FINGERPRINT_BYTES + identity.size * SLOT_HEADER_BYTES)
        self.shared = SharedMemory(identity, window)

    def call(self, signature: Signature) -> CallContext:
        """The context in which a collective runs; its signature must be equal on all ranks."""
        return self.calls.call(signature)

    def subgroup(self, ranks: Sequence[int]) -> Communicator:
        """Some ranks of this group, this rank included, for messages inside the running call.

        Two ranks must not exchange messages in more than one such part at a time.
        """
        identity = GroupIdentity(self.transport, [self.ranks[rank] for rank in ranks], self.channel)
        return Communicator(identity, self.calls, self.workspace)

    async def open_native(self) -> NativeCollectives | None:
        """The transport's own collectives over these ranks, or None if it has none; see `Transport.open_native`."""
        if self._native is None:
            self._native = await self.transport.open_native(self.ranks, self.channel)
        return self._native


def _check(ranks: tuple[int, ...], channel: int, transport: Transport) -> None:
    rank, world_size = transport.rank, transport.world_size
    if not 0 <= channel < CHANNELS:
        raise ValueError(f"no such channel (channel: {channel}, channels: {CHANNELS}); choose a smaller one")
    if rank not in ranks:
        raise ValueError(f"rank {rank} is not in the group (ranks: {ranks}); construct it on these ranks alone")
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"a rank is named twice in a group (ranks: {ranks}); name each once")
    if min(ranks) < 0 or max(ranks) >= world_size:
        raise ValueError(f"no such rank (ranks: {ranks}, world size: {world_size}); ranks run from 0 to world size - 1")
