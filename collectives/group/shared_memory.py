"""The memory that the ranks of a group share: one window per rank, and symmetric arrays.

A symmetric array exists once on every rank, with the same size, in memory that all ranks map. The label of a
place in it is equal on all ranks for the same place.

Source: OpenSHMEM 1.5, section 3.2 (symmetric data objects).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectives.arrays import Vector
from collectives.group.fifo_lock import FifoLock
from collectives.group.identity import GroupIdentity
from transports.base import SharedWindows


@dataclass(frozen=True, slots=True)
class SymmetricView:
    """A vector that lies in a symmetric array.

    Args:
        label: the array and the offset in it, as text.
        arrays: the vectors at this offset on each rank, in the group's order.
    """

    label: str
    arrays: tuple[Vector, ...]


class SymmetricArray:
    """One symmetric array.

    Args:
        number: its number in the group, from 0.
        windows: the memory of each rank, in the group's order.
        rank: the position of this rank among them.
    Attributes:
        array: the array of this rank, as bytes.
    """

    def __init__(self, number: int, windows: Sequence[memoryview], rank: int):
        self._number = number
        self._arrays = [np.frombuffer(window, np.uint8) for window in windows]
        self.array = self._arrays[rank]
        self._start = _address(self.array)

    def find(self, vector: Vector) -> SymmetricView | None:
        """The vectors of all ranks at the place of this vector, or None if it does not lie in this array."""
        if (low := self.offset(vector.data)) is None:
            return None
        views = tuple(vector.over(array[low : low + vector.nbytes]) for array in self._arrays)
        return SymmetricView(f"array {self._number} at {low}", views)

    def offset(self, data: memoryview) -> int | None:
        """Where in this rank's array these bytes begin, or None if they do not lie in it."""
        low = _address(np.frombuffer(data, np.uint8)) - self._start
        return low if low >= 0 and low + data.nbytes <= self.array.nbytes else None

    def read(self, rank: int, low: int, nbytes: int) -> memoryview:
        """These bytes of a rank's array."""
        return self._arrays[rank][low : low + nbytes].data


class SharedMemory:
    """The shared memory of one group; all ranks make the same calls, and allocate inside a call of the group.

    Args:
        identity: the ranks of the group.
        window: bytes that each rank shares with the others.
    Attributes:
        memory: the windows; None if the ranks share no memory, and before `open`.
        read_again_at: the number of the barrier after which other ranks may still read the half that is written next;
            -1: none.
    """

    def __init__(self, identity: GroupIdentity, window: int):
        self.memory: SharedWindows | None = None
        self.read_again_at = -1
        self._identity, self._window = identity, window
        self._allocated: list[SymmetricArray] = []
        self._is_opened = False
        self._lock = FifoLock(f"Group{identity}")

    async def open(self) -> SharedWindows | None:
        """The windows, or None if the ranks share no memory; the same answer on all ranks.

        They are opened once: calls at the same time wait for the first.

        Raises: as `Transport.open_shared`. BrokenGroup: an earlier call failed or was cancelled while it opened them.
        """
        if self._is_opened:
            return self.memory
        if not self._lock.acquire_nowait():
            await self._lock.acquire()
        error: BaseException | None = None
        try:
            if not self._is_opened:
                self.memory = await self._open(self._window)
                self._is_opened = True
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._lock.release(error)
        return self.memory

    def windows(self, vector: Vector) -> list[Vector]:
        """The windows of all ranks, each as a whole number of elements of the vector's dtype."""
        assert self.memory is not None
        usable = self._window // vector.itemsize * vector.itemsize
        return [vector.over(np.frombuffer(window, np.uint8, usable)) for window in self.memory.windows]

    async def allocate(self, nbytes: int) -> np.ndarray | None:
        """This rank's part of a new symmetric array, or None if the ranks share no memory; the same on all ranks."""
        if await self.open() is None:
            return None
        memory = await self._open(nbytes)
        if memory is None:
            return None
        rank = self._identity.rank
        self._allocated.append(SymmetricArray(len(self._allocated), memory.windows, rank))
        return self._allocated[-1].array

    async def _open(self, nbytes: int) -> SharedWindows | None:
        identity = self._identity
        return await identity.transport.open_shared(identity.ranks, identity.channel, nbytes)

    def find(self, vector: Vector) -> SymmetricView | None:
        """The symmetric array in which the vector lies, with the vectors of all ranks at its place."""
        views = (array.find(vector) for array in self._allocated)
        return next((view for view in views if view is not None), None)

    def locate(self, data: memoryview) -> tuple[int, int] | None:
        """The number of the symmetric array in which these bytes lie, and where they begin in it."""
        offsets = ((number, array.offset(data)) for number, array in enumerate(self._allocated))
        return next(((number, offset) for number, offset in offsets if offset is not None), None)

    def read(self, rank: int, number: int, low: int, nbytes: int) -> memoryview:
        """Bytes of a rank's array, from an offset as `locate` returns it."""
        return self._allocated[number].read(rank, low, nbytes)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]
