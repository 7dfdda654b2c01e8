"""The contract of every transport: addressed messages and bare buffers between ranks.

*Addressed* messages carry a key. A receive may be posted before or after the message arrives, in any order. *Bare*
buffers carry only bytes, on a numbered channel between two ranks that both know the size; collectives use them.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from transports.state import Traffic
from transports.wire.arrays import Block
from transports.wire.frames import Key


class Message(NamedTuple):
    """An addressed message as its receiver sees it.

    Args:
        source: the rank that sent it.
        key: what its receive matches it by; only ints and strings, at most 16 of them.
        blocks: the arrays, in the order they were sent.
        note: any small value that msgpack can encode; tuples arrive as lists, so no map may have one as a key.
    """

    source: int
    key: Key
    blocks: tuple[Block, ...] = ()
    note: Any = None


class NativeCollectives(Protocol):
    """A transport's own collectives over one group of ranks; `Transport.open_native` returns one."""

    async def all_reduce(self, block: Block, op: str) -> None:
        """Reduce the block's memory in place over the ranks of the group; all ranks end with the same bits.

        Args:
            op: "sum" or "max".
        Raises:
            ValueError: the transport cannot reduce this dtype or op (the error names it). Else as `Transport.receive`.
        """


class SharedWindows(Protocol):
    """Memory that the ranks of a group share, as `Transport.open_shared` opens it: one window a rank, and barriers.

    What a rank writes into its window before a barrier is visible to all other ranks after it. The memory and its
    descriptors are freed with this object and the last array that views a window.
    """

    @property
    def windows(self) -> Sequence[memoryview]:
        """Writable memory of each rank, in the group's order; only its owner may write to it."""

    @property
    def epoch(self) -> int:
        """The number of barriers so far."""

    async def barrier(self) -> None:
        """Wait for every rank of the group to reach this barrier; the loop runs meanwhile.

        Raises: as `Transport.receive`: a missing rank is lost, or some rank failed.
        """

    @property
    def is_threadsafe(self) -> bool:
        """Whether `arrive` may be called in other threads than that of the loop."""

    def arrive(self) -> bool:
        """Arrive at a barrier, and wait for the other ranks for some milliseconds at most; the loop is not needed.

        Returns: whether all ranks have arrived; else the caller awaits `wait_for_missing` before any other call.
        """

    async def wait_for_missing(self) -> None:
        """Wait for the ranks that are missing at a barrier. Raises: as `barrier`."""

    async def yield_core(self) -> None:
        """Let the loop run, and other ranks of the node if they need this core; for long work between two barriers."""


class Transport(ABC):
    """One rank's end of the network. Every coroutine here runs on the event loop that opened the transport.

    After `close`, `abort`, or the loss of the peer concerned, every pending and every later operation raises a
    `TransportError`; no operation waits for ever.
    """

    def __init__(self, rank: int, world_size: int):
        self.rank = rank
        self.world_size = world_size
        self.traffic = Traffic()
        self._serials = Counter[Hashable]()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.world_size}>"

    @property
    def nodes(self) -> tuple[int, ...]:
        """The number of each rank's node: ranks with the same number run on one machine. Equal on all ranks.

        A node's number is its lowest rank. Without information from the transport, all ranks are on one node.
        """
        return (0,) * self.world_size

    @property
    def ranks_here(self) -> tuple[int, ...]:
        """The ranks that share this rank's machine, its cores and its memory, this rank included."""
        return tuple(rank for rank, node in enumerate(self.nodes) if node == self.nodes[self.rank])

    @property
    def activity(self) -> int:
        """A number that changes while bytes of messages reach this rank, or pass an emulated link from it.

        It counts a message that is not whole yet where the transport knows of one.
        """
        return self.traffic.bytes_received

    @property
    def aborts_as_one(self) -> bool:
        """Whether all ranks must be ended together: after `abort` no rank can exit alone, so call `abort_job`."""
        return False

    @abstractmethod
    async def send(self, peer: int, key: Key, *arrays: Any, note: Any = None) -> None:
        """Send an addressed message; return when the arrays' memory may be reused.

        The message may stay at the sender until its receive is posted. If waiting for that could deadlock the program,
        run the send as a task. Two messages with the same key from the same rank are received in the order sent. A
        rank may send to itself.

        Raises:
            PeerLost: the peer is gone. PeerAborted: some rank failed. Closed: this end is closed.
            ValueError: no such rank. WireError: the key, note or an array has no wire form, or they exceed a limit.
            Rejected: the peer has no memory for the message ("busy"); only between endpoints.
            TransportError: too many messages to this peer wait for their receives.
        Cancelled: the message is either delivered whole or not at all. Until then the transport may still read the
            arrays, so drop them and do not write to them.
        """

    @abstractmethod
    async def receive(self, peer: int | None, key: Key, into: Sequence[Any] | None = None) -> Message:
        """Receive the message with this key from this peer (None: from any peer); wait for it if necessary.

        Args:
            into: writable arrays, one for each block, that are filled in place; the message's blocks then view them.
                Byte sizes must match. The transport avoids a copy where it can.
        Raises:
            ValueError: an array in `into` cannot be filled in place (gaps, read-only, another byte order, or a dtype
                without a wire form; checked before the first await), or does not fit the message (which stays
                available). Else as `send`.
        Cancelled: a message that is not yet in transfer stays available; one in transfer is kept for the next receive.
        """

    @abstractmethod
    def probe(self, peer: int | None, key: Key) -> bool:
        """Whether a message with this key has arrived from this peer (None: from any peer) and can be received."""

    @abstractmethod
    async def send_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        """Send bare bytes on a channel (0 <= channel < 16384); order is kept per (peer, channel).

        Raises:
            WireError: the buffer has gaps, or items that are not plain numbers. Else as `send`.
        """

    @abstractmethod
    async def receive_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        """Fill `buffer` with the next buffer from this peer on this channel; the sizes must be equal.

        Raises:
            SizeMismatch: the sizes differ; do not use the channel again. WireError: as `send_buffer`.
            ValueError: the buffer is read-only (checked before the first await). Else as `receive`.
        """

    @abstractmethod
    async def abort(self, reason: str) -> None:
        """Send every peer the reason for this rank's failure (best effort, at most 1 s); then close without waiting."""

    @abstractmethod
    async def close(self) -> None:
        """Close in order: deliver what was sent, then close. Idempotent."""

    def abort_job(self, code: int) -> None:
        """End every rank of the job now, with this exit code; only where `aborts_as_one`.

        Raises:
            TypeError: each rank can exit by itself.
        """
        raise TypeError(f"ranks of {type(self).__name__} exit one by one; end each of them")

    def set_computing(self, busy: bool) -> None:  # noqa: B027 (a hint may be ignored)
        """Hint that the local device is busy (poll rarely) or idle (poll often)."""

    def last_key(self, peer: int) -> Key | None:
        """The key of the last message that arrived from this peer, for the report of a lost peer."""
        return None

    def next_serial(self, what: Hashable) -> int:
        """The next serial number of `what` on this rank, from 0.

        Ranks that make the same calls get the same numbers.
        """
        self._serials[what] += 1
        return self._serials[what] - 1

    async def open_native(self, ranks: Sequence[int], channel: int) -> NativeCollectives | None:
        """Open the transport's own collectives over these ranks; None if it has no such collectives.

        Every rank of the group must call this; the group keeps the result. If groups overlap, every rank must open them
        in the same order (by channel, for example) before two of them reduce at the same time: the library may block
        meanwhile.

        Raises: as `receive`.
        """
        return None

    async def open_shared(self, ranks: Sequence[int], channel: int, nbytes: int) -> SharedWindows | None:
        """Open memory that these ranks share, with a window of `nbytes` bytes for each rank; None if they cannot share.

        Every rank of the group must call this with equal arguments and in the same order; all get None or none does.
        Each call opens new memory.

        Raises: as `receive`.
        """
        return None

    async def __aenter__(self) -> "Transport":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
