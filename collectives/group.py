"""A group: some ranks of a transport, numbered anew from 0, with a channel of their own for bare bytes.

The one rule: both ends of a message know its size beforehand, and an empty one is never sent. The first message to each
peer in a call brings a greeting with it (see `collectives.signature`), which is no payload. Knows no algorithm.
"""

import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives.arrays import Vector
from collectives.call import PATIENCE_S, Call, Watchdog
from collectives.concurrency import together
from collectives.cost_model import Links
from collectives.partition import Range, pieces
from collectives.signature import GREETING_BYTES
from collectives.symmetric import Allocated, Found
from collectives.turn import Turn
from transports.base import Key, Native, Shared, Transport
from transports.errors import SizeMismatch

if TYPE_CHECKING:
    from collectives.tuning import Prices

PACKED_BYTES = 16 << 10
"""A first message up to this size travels in one with its greeting: copying it costs less than a message more."""


class Group:
    """The ranks that take part in a collective, as one of them sees them.

    Every rank of the group makes it with equal arguments, and all call its collectives in one order. Groups that may
    be busy at the same time need channels of their own.

    Args:
        transport: this rank's end of the network.
        ranks: the transport's ranks that take part; the position of each is its rank in the group.
        channel: the number under which the group's bytes travel, 0 <= channel < 16384.
        links: what messages cost between these ranks; `auto` chooses by it.
        piece: bytes of an array that are sent, and reduced, at once. Small pieces stay in a core's cache and follow
            one another closely, but each costs a message.
        window: bytes that each rank lends the others where the transport lets them share memory.
        patience: seconds that a rank waits in a collective before it sends its call to the first rank (see `Watchdog`).
    Attributes:
        prices: what each all-reduce takes here, as `measure` found; None: `auto` goes by `links`. Equal on all ranks.
    Raises:
        ValueError: this rank is not among `ranks`, or a rank is named twice or does not exist.
    """

    def __init__(
        self,
        transport: Transport,
        ranks: Sequence[int],
        channel: int,
        links: Links | None = None,
        piece: int = 2 << 20,
        window: int = (2 << 20) + 2 * GREETING_BYTES,
        patience: float = PATIENCE_S,
    ):
        self.transport, self.ranks, self.channel = transport, tuple(ranks), channel
        self.links, self.piece, self._window = links or Links(), piece, window
        self._check()
        self.size = len(self.ranks)
        self.rank = self.ranks.index(transport.rank)
        self.turn = Turn(repr(self))
        self.watchdog = Watchdog(transport, self.ranks, self._watched_key(), patience)
        self.prices: Prices | None = None
        self.call: Call | None = None
        self.calls = 0
        self._lanes: dict[int, np.ndarray] = {}
        self._scratch: dict[int, Vector] = {}
        self._made: dict[Hashable, Any] = {}
        self._last: tuple[Hashable, Any] = (None, None)
        self._allocated: list[Allocated] = []
        self.memory: Shared | None = None
        self._asked = False

    def _check(self) -> None:
        if self.transport.rank not in self.ranks:
            raise ValueError(
                f"rank {self.transport.rank} is not in the group (ranks: {self.ranks}); leave it out there"
            )
        if len(set(self.ranks)) < len(self.ranks):
            raise ValueError(f"a rank is named twice in a group (ranks: {self.ranks}); name each once")
        if min(self.ranks) < 0 or max(self.ranks) >= self.transport.world_size:
            raise ValueError(
                f"no such rank (ranks: {self.ranks}, world size: {self.transport.world_size}); name others"
            )

    def _watched_key(self) -> Key:
        """The key under which ranks send their calls: neither another group's nor an earlier one's of these ranks."""
        name = "collective", self.channel, zlib.crc32(repr(self.ranks).encode())
        return *name, self.transport.count(name)

    def __repr__(self) -> str:
        return f"Group(ranks={self.ranks}, channel={self.channel})"

    async def send(self, to: int, view: memoryview) -> None:
        """Send bytes to a rank of the group, in order; return when their memory may be reused.

        Raises: as `Transport.send_buffer`.
        """
        if not view.nbytes:
            return
        peer, call = self.ranks[to], self.call
        if call is None or not call.greets(peer):
            await self.transport.send_buffer(peer, self.channel, view)
        elif view.nbytes <= PACKED_BYTES:
            packed = memoryview(b"".join((call.greeting, view)))
            await self.transport.send_buffer(peer, self.channel, packed, header=GREETING_BYTES)
        else:
            await self._greet(peer, call.greeting)
            await self.transport.send_buffer(peer, self.channel, view)

    async def receive(self, source: int, view: memoryview) -> None:
        """Fill `view` with the next bytes of a rank of the group.

        Raises: as `Transport.receive_buffer`.
        """
        if not view.nbytes:
            return
        peer, call = self.ranks[source], self.call
        if call is None or not call.hears(peer):
            await self.transport.receive_buffer(peer, self.channel, view)
        elif view.nbytes <= PACKED_BYTES:
            packed = memoryview(bytearray(GREETING_BYTES + view.nbytes))
            await self._receive_first(peer, call, packed)
            call.compare(peer, packed)
            view[:] = packed[GREETING_BYTES:]
        else:
            await self._heed(peer, call)
            await self.transport.receive_buffer(peer, self.channel, view)

    async def meet(self) -> None:
        """Return once every rank of the group has called this, in the middle of a call; no payload is moved.

        Cost: ceil(log2 n) steps of a header.
        Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (dissemination).
        """
        distance = 1
        while distance < self.size:
            to, source = self.ranks[(self.rank + distance) % self.size], self.ranks[(self.rank - distance) % self.size]
            self.call.greets(to), self.call.hears(source)
            await together(self._greet(to, self.call.greeting), self._heed(source, self.call))
            distance *= 2

    async def _greet(self, peer: int, greeting: bytes) -> None:
        await self.transport.send_buffer(peer, self.channel, memoryview(greeting), header=GREETING_BYTES)

    async def _heed(self, peer: int, call: Call) -> None:
        greeting = memoryview(bytearray(GREETING_BYTES))
        await self._receive_first(peer, call, greeting)
        call.compare(peer, greeting)

    async def _receive_first(self, peer: int, call: Call, view: memoryview) -> None:
        """Receive the first bytes of a peer in a call. Of another size than expected, they still tell its terms."""
        try:
            await self.transport.receive_buffer(peer, self.channel, view, header=GREETING_BYTES)
        except SizeMismatch as misfit:
            if len(misfit.beginning) >= GREETING_BYTES:
                call.compare(peer, misfit.beginning)
            raise

    def calling(self, terms: str) -> Call:
        """The context in which a collective runs: its turn, and the terms that all ranks must mean alike."""
        return Call(self, terms)

    def among(self, ranks: Sequence[int]) -> "Group":
        """Some ranks of the group, this one with them, as a group within the running call, on the same channel.

        No two ranks may exchange messages in more than one such part at a time.
        """
        part = copy(self)
        part.ranks, part.size = tuple(self.ranks[rank] for rank in ranks), len(ranks)
        part.rank = ranks.index(self.rank)
        return part

    async def exchange(self, to: int, outgoing: memoryview, source: int, incoming: memoryview) -> None:
        """Send and receive at once; when either fails, the other is cancelled and the error is raised."""
        await together(self.send(to, outgoing), self.receive(source, incoming))

    def scratch(self, vector: Vector, length: int, lane: int = 0) -> Vector:
        """Memory for one piece (or `length` elements, if that is less) of the vector's dtype.

        It is kept by the group, one for each lane, and its contents last until the next call with the same lane.
        """
        length = min(length, self._most(vector))
        last = self._scratch.get(lane)
        if last is None or len(last) != length or not last.like(vector):
            last = self._scratch[lane] = vector.over(self._lane(lane, length * vector.itemsize))
        return last

    def _lane(self, lane: int, nbytes: int) -> np.ndarray:
        memory = self._lanes.get(lane)
        if memory is None or memory.nbytes < nbytes:
            memory = self._lanes[lane] = np.empty(nbytes, np.uint8)
        return memory[:nbytes]

    def pieces(self, vector: Vector, span: Range) -> Iterator[Range]:
        """Cut a range of the vector's elements; an empty one has no pieces."""
        return pieces(*span, self._most(vector))

    def _most(self, vector: Vector) -> int:
        return max(self.piece // vector.itemsize, 1)

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """For every rank of the group the lowest one that runs on the same node."""
        names = self.transport.nodes
        mine = [names[rank] for rank in self.ranks]
        return tuple(mine.index(name) for name in mine)

    @cached_property
    def native(self) -> Native | None:
        """The transport's own collectives over these ranks, or None where it has none."""
        return self.transport.native(self.ranks, self.channel)

    async def shared(self) -> Shared | None:
        """The memory that the ranks share, or None, on all of them alike, where they share none; inside the turn."""
        if not self._asked:
            memory = self.transport.shared(self.ranks, self.channel, self._window)
            self.memory = memory if memory is not None and await memory.ready() else None
            self._asked = True
        return self.memory

    def windows(self, vector: Vector) -> list[Vector]:
        """The ranks' windows in the memory they share, each as a whole number of elements of the vector's dtype."""
        usable = self._window // vector.itemsize * vector.itemsize
        return [vector.over(np.frombuffer(window, np.uint8, usable)) for window in self.memory.windows]

    async def allocate(self, nbytes: int) -> np.ndarray | None:
        """So many bytes in memory that all ranks of the group map, or None, on all alike; inside the turn."""
        if await self.shared() is None:
            return None
        memory = self.transport.shared(self.ranks, self.channel, nbytes)
        if memory is None or not await memory.ready():
            return None
        self._allocated.append(Allocated(len(self._allocated), memory.windows, self.rank))
        return self._allocated[-1].array

    def allocated(self, vector: Vector) -> Found | None:
        """Where in what `allocate` gave the vector lies, with all ranks' vectors there."""
        found = (allocated.find(vector) for allocated in self._allocated)
        return next((one for one in found if one is not None), None)

    def again(self, asked: Hashable, make: Callable[[], Any]) -> Any:
        """What was made for this the last time, if this is what was asked for then: most calls are like the last."""
        if self._last[0] != asked:
            self._last = asked, make()
        return self._last[1]

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """What an algorithm made at its first call of this group, and needs at each; it must not name the group."""
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = make()
        return made
