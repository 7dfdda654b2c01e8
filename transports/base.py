"""The contract of every transport: addressed messages and bare buffers between ranks.

*Addressed* messages carry a key and may be received in any order, before or after they arrive. *Bare* buffers carry
only bytes, on a numbered channel between two ranks that both know the size: the collectives' inner loop.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from transports.wire.arrays import Block
from transports.wire.frames import Key


class Message(NamedTuple):
    """An addressed message as its receiver sees it.

    Args:
        source: the rank that sent it.
        key: the address; only ints and strings, at most 16 of them.
        blocks: the arrays, in the order they were sent.
        note: anything small that msgpack can carry.
    """

    source: int
    key: Key
    blocks: tuple[Block, ...] = ()
    note: Any = None


@dataclass(slots=True)
class Traffic:
    """Payload bytes and messages moved so far by this rank; headers are not counted.

    Of a buffer the caller says how many of its bytes are a header; one that is a header alone is no message.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    bytes_to: dict[int, int] = field(default_factory=dict)

    def count_sent(self, peer: int, nbytes: int, header: int = 0) -> None:
        """One more message or buffer went to this peer."""
        if header and header == nbytes:
            return
        self.messages_sent += 1
        self.bytes_sent += nbytes - header
        self.bytes_to[peer] = self.bytes_to.get(peer, 0) + nbytes - header

    def count_received(self, nbytes: int, header: int = 0) -> None:
        """One more message or buffer came."""
        if header and header == nbytes:
            return
        self.messages_received += 1
        self.bytes_received += nbytes - header


class Native(Protocol):
    """A transport's own collectives over one group of ranks, as `Transport.native` gives them."""

    async def ready(self) -> None:
        """Make ready on all ranks of the group; `all_reduce` does so at its first call.

        Where groups overlap, all ranks must make them ready in one order (by channel, say) before any two reduce at
        once: a library may have to block for it.
        """

    async def all_reduce(self, block: Block, op: str) -> None:
        """Reduce the block's memory in place over the ranks of the group; all ranks end with the same bits.

        Args:
            op: "sum" or "max".
        Raises:
            ValueError: a dtype or op that the transport cannot reduce (it is named). Else as `Transport.receive`.
        """


class Shared(Protocol):
    """Memory that the ranks of a group share, as `Transport.shared` gives it: a window for each rank, and meetings.

    What a rank has written into its window before a meeting, all others see after it. The memory and its descriptors
    are freed with this object and the last array that views a window.

    Attributes:
        windows: writable memory of each rank, in the group's order; only its owner may write to it.
        meetings: how many there were.
    """

    windows: Sequence[memoryview]
    meetings: int

    async def ready(self) -> bool:
        """Let the ranks find one another's memory; whether all could, which all learn alike. Nothing else before it.

        Raises: as `Transport.receive`.
        """

    async def meet(self) -> None:
        """Return once every rank of the group has called it as often as this one; let the loop run meanwhile.

        Raises: as `Transport.receive`: a rank that has not come is gone, or some rank failed.
        """

    async def pause(self) -> None:
        """Let the loop run, and others of the node if they need this core; for long work between two meetings."""


class Transport(ABC):
    """One rank's end of the network. Every coroutine here runs on the event loop that opened the transport.

    After `close`, `abort`, or the loss of the peer concerned, every pending and every later operation raises a
    `TransportError`: no operation waits for ever.
    """

    rank: int
    world_size: int
    traffic: Traffic
    kill_world: Callable[[int], None] | None = None
    """End every rank of the job now, with this exit code; None where each rank can end by itself after `abort`."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """For every rank the number of its node: ranks of one number run on one machine. Equal on all ranks.

        A node's number is its lowest rank. All are on one node where the transport knows of no other.
        """
        return (0,) * self.world_size

    @abstractmethod
    async def send(self, peer: int, key: Key, *arrays: Any, note: Any = None) -> None:
        """Send an addressed message; return when the arrays' memory may be reused.

        The message may stay at this end until its receive is posted, so do not await this where waiting would stop
        the program: make it a task. Two messages with one key from one rank are received in the order sent. A rank may
        send to itself.

        Raises:
            PeerLost: the peer is gone. PeerAborted: some rank failed. Closed: this end is closed.
            ValueError: no such rank. WireError: a key, note or array that the wire cannot carry.
        Cancelled: the message is either delivered whole or not at all; the arrays may still be read until then, so
            drop them rather than write to them.
        """

    @abstractmethod
    async def receive(self, peer: int | None, key: Key, into: Sequence[Any] | None = None) -> Message:
        """Take the message with this key from this peer (None: from anyone); wait for it if need be.

        Args:
            into: writable arrays, one a block, to be filled in place where their byte sizes match (no copy is made
                where the transport can avoid it); the message's blocks then view them.
        Raises:
            ValueError: an array in `into` cannot be filled in place (gaps, read-only, another byte order, or a dtype
                without a wire form), which is checked before anything is awaited, or does not fit what came (the
                message stays available). Else as `send`.
        Cancelled: a message not yet begun stays available; one being received is kept for the next receive.
        """

    @abstractmethod
    def holds(self, peer: int | None, key: Key) -> bool:
        """Whether a message with this key has come from this peer (None: from anyone), for `receive` to take it."""

    @abstractmethod
    async def send_buffer(self, peer: int, channel: int, buffer: memoryview, header: int = 0) -> None:
        """Send bare bytes on a channel (0 <= channel < 16384); order is kept per (peer, channel).

        Args:
            header: bytes of the buffer that `traffic` does not count, such as a collective's greeting.
        Raises:
            WireError: the buffer has gaps, or holds what is no plain number. Else as `send`.
        """

    @abstractmethod
    async def receive_buffer(self, peer: int, channel: int, buffer: memoryview, header: int = 0) -> None:
        """Fill `buffer` with the next bare bytes from this peer on this channel; the sizes must be equal.

        Args:
            header: bytes of the buffer that `traffic` does not count.
        Raises:
            SizeMismatch: the sizes differ; do not use the channel any more. WireError: as `send_buffer`. Else as
            `receive`.
        """

    @abstractmethod
    async def abort(self, reason: str) -> None:
        """Tell every peer, best effort and within a second, that this rank failed; then close without waiting."""

    @abstractmethod
    async def close(self) -> None:
        """Close in order: what was sent is delivered first. Idempotent."""

    def computing(self, busy: bool) -> None:  # noqa: B027 (a hint may be ignored)
        """A hint that the local device is (or no longer is) busy, so that polling should be gentle (or keen)."""

    def last_key(self, peer: int) -> Key | None:
        """The key of the last message heard of from this peer, to report what a lost peer did last."""
        return None

    def count(self, what: Hashable) -> int:
        """How often this was counted here before: for what all ranks do equally often, to tell the times apart."""
        counted = self.__dict__.setdefault("_counted", Counter())
        counted[what] += 1
        return counted[what] - 1

    def native(self, ranks: Sequence[int], channel: int) -> Native | None:
        """The transport's own collectives over these ranks, or None where it has none.

        Every rank of the group asks, in the same order among its groups; the answer is kept by the group.
        """
        return None

    def shared(self, ranks: Sequence[int], channel: int, nbytes: int) -> Shared | None:
        """Memory that these ranks share, a window of so many bytes each, or None, on all alike, where they share none.

        Every rank of the group asks with equal arguments, in the same order; each time it is other memory.
        """
        return None

    async def __aenter__(self) -> "Transport":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
