"""A group: some ranks of a transport, numbered anew from 0, with a channel of their own for bare bytes.

The one rule: both ends of a message know its size beforehand, and an empty one is never sent. Knows no algorithm.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from collectives._links import Links
from collectives._pieces import Range, pieces
from collectives._together import together
from collectives._turn import Turn
from collectives._vector import Vector
from transports._contract import Native, Shared, Transport


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
        window: int = 2 << 20,
    ):
        self.transport, self.ranks, self.channel = transport, tuple(ranks), channel
        self.links, self.piece, self._window = links or Links(), piece, window
        self._check()
        self.size = len(self.ranks)
        self.rank = self.ranks.index(transport.rank)
        self.turn = Turn(repr(self))
        self._memory: dict[int, np.ndarray] = {}
        self._windows: dict[str, list[Vector]] = {}
        self._shared: Shared | None = None
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

    def __repr__(self) -> str:
        return f"Group(ranks={self.ranks}, channel={self.channel})"

    async def send(self, to: int, view: memoryview) -> None:
        """Send bytes to a rank of the group, in order; return when their memory may be reused.

        Raises: as `Transport.send_buffer`.
        """
        if view.nbytes:
            await self.transport.send_buffer(self.ranks[to], self.channel, view)

    async def receive(self, source: int, view: memoryview) -> None:
        """Fill `view` with the next bytes of a rank of the group.

        Raises: as `Transport.receive_buffer`.
        """
        if view.nbytes:
            await self.transport.receive_buffer(self.ranks[source], self.channel, view)

    async def exchange(self, to: int, outgoing: memoryview, source: int, incoming: memoryview) -> None:
        """Send and receive at once; when either fails, the other is cancelled and the error is raised."""
        await together(self.send(to, outgoing), self.receive(source, incoming))

    def scratch(self, vector: Vector, length: int, lane: int = 0) -> Vector:
        """Memory for one piece (or `length` elements, if that is less) of the vector's dtype.

        It is kept by the group, one for each lane, and its contents last until the next call with the same lane.
        """
        needed = min(length, self._most(vector)) * vector.itemsize
        memory = self._memory.get(lane)
        if memory is None or memory.nbytes < needed:
            memory = self._memory[lane] = np.empty(needed, np.uint8)
        return vector.over(memory[:needed])

    def pieces(self, vector: Vector, span: Range) -> Iterator[Range]:
        """Cut a range of the vector's elements; an empty one has no pieces."""
        return pieces(*span, self._most(vector))

    def _most(self, vector: Vector) -> int:
        return max(self.piece // vector.itemsize, 1)

    @cached_property
    def native(self) -> Native | None:
        """The transport's own collectives over these ranks, or None where it has none."""
        return self.transport.native(self.ranks, self.channel)

    async def shared(self) -> Shared | None:
        """The memory that the ranks share, or None, on all of them alike, where they share none; inside the turn."""
        if not self._asked:
            memory = self.transport.shared(self.ranks, self.channel, self._window)
            self._shared = memory if memory is not None and await memory.ready() else None
            self._asked = True
        return self._shared

    def windows(self, vector: Vector) -> list[Vector]:
        """The ranks' windows in the memory they share, each as a whole number of elements of the vector's dtype."""
        if vector.dtype not in self._windows:
            usable = self._window // vector.itemsize * vector.itemsize
            views = [np.frombuffer(window, np.uint8, usable) for window in self._shared.windows]
            self._windows[vector.dtype] = [vector.over(view) for view in views]
        return self._windows[vector.dtype]
