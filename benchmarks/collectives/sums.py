"""The contenders that sum an array over all ranks, for `benchmarks.all_reduce`, and the bare pass that no sum can beat.

Each starts from the same contents and sums in place, a number of times at which sums never overflow.
"""

import asyncio
import zlib
from itertools import count, cycle
from time import perf_counter, thread_time
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from benchmarks.harness.resident import begin_peak, resident
from collectives import Group, all_reduce, allocate
from collectives.arrays import Vector
from collectives.arrays import pieces as cut
from transports import Transport
from transports.aio.event_loop import yield_to_timers

TICK_S = 1e-3
PIECE_BYTES = 256 << 10
SMALLEST = 1e-20
"""What float32 starts from, so that a few dozen sums of sums stay far below its largest number; halves start from 1."""


class Contents:
    """What each rank holds at first: normal numbers, small enough to be summed again and again.

    Args:
        dtype: float32 makes a numpy array, others a torch tensor.
        nbytes: of the array.
        memory: so many bytes to hold the array; None: its own.
    Attributes:
        array: what is summed in place.
    """

    def __init__(self, dtype: str, nbytes: int, rank: int, memory: np.ndarray | None = None):
        generator = np.random.default_rng((rank, nbytes))
        if dtype == "float32":
            self._first = generator.standard_normal(nbytes // 4, np.float32) * np.float32(SMALLEST)
            self.array, self._bytes = self._first.copy() if memory is None else memory.view(np.float32), np.uint8
            self._precision = float(np.finfo(np.float32).eps)
        else:
            import torch

            numbers = torch.from_numpy(generator.standard_normal(nbytes // 2, np.float32))
            self._first = numbers.to(getattr(torch, dtype))
            held = self._first.clone() if memory is None else torch.from_numpy(memory).view(self._first.dtype)
            self.array, self._bytes = held, torch.uint8
            self._precision = torch.finfo(self._first.dtype).eps
        self.refill()

    def refill(self) -> None:
        """Begin anew."""
        self.array[:] = self._first

    def checksum(self) -> int:
        """Of all the array's bits."""
        return zlib.crc32(np.asarray(self.array.view(self._bytes)))

    def right(self, comm: MPI.Comm, every: int = 997) -> bool:
        """Whether the array holds the sum of all ranks' first contents, by a sample in float64; a collective call."""
        before = np.array(comm.allgather(_doubles(self._first[::every])))
        bound = np.abs(before).sum(axis=0) * comm.size * self._precision
        return bool((np.abs(_doubles(self.array[::every]) - before.sum(axis=0)) <= bound).all())


def _doubles(sample: Any) -> np.ndarray:
    return sample.astype("float64") if isinstance(sample, np.ndarray) else sample.double().numpy()


class Sum(Protocol):
    """A contender."""

    async def __call__(self, array: Any) -> None:
        """Sum in place over all ranks."""


class Ours:
    """The collectives of this project, from a coroutine.

    Args:
        allocates: whether arrays lie in memory that all ranks map.
    """

    def __init__(self, transport: Transport, algorithm: str, allocates: bool = False):
        self._transport, self._algorithm, self._channels = transport, algorithm, count(1)
        self._allocates = allocates
        self._group = self._new_group()

    async def __call__(self, array: Any) -> None:
        await all_reduce(self._group, array, "sum", self._algorithm)

    async def memory(self, nbytes: int) -> np.ndarray | None:
        """So many bytes for an array; None: its own will do."""
        return await allocate(self._group, nbytes, np.uint8) if self._allocates else None

    async def extra(self, array: Any) -> int:
        """Bytes by which a new group's first sum makes this process larger, with all windows that it maps.

        The other ranks' arrays, which it may map, too, are in memory before: they are those ranks' own.
        """
        group, vector = self._new_group(), Vector.of(array)
        if self._allocates:
            vector = vector.over(await allocate(group, vector.nbytes, np.uint8))
            for each in group.shared.find(vector).arrays:
                each.data[:] = bytes(each.nbytes)
        before = begin_peak()
        await all_reduce(group, vector.elements, "sum", self._algorithm)
        return max(0, resident("VmHWM") - before)

    def _new_group(self) -> Group:
        return Group(self._transport, range(self._transport.world_size), next(self._channels))


class ByMpi:
    """MPI_Allreduce, in place and blocking."""

    def __init__(self, comm: MPI.Comm):
        self._comm = comm

    async def __call__(self, array: Any) -> None:
        self._comm.Allreduce(MPI.IN_PLACE, array)


class ByGloo:
    """torch.distributed's all_reduce over gloo, on loopback."""

    def __init__(self, comm: MPI.Comm):
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        store = distributed.TCPStore("127.0.0.1", 0, is_master=True) if comm.rank == 0 else None
        port = comm.bcast(store.port if store else None)
        store = store or distributed.TCPStore("127.0.0.1", port)
        distributed.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
        self._distributed, self._tensor = distributed, torch.as_tensor

    async def __call__(self, array: Any) -> None:
        self._distributed.all_reduce(self._tensor(array))

    def close(self) -> None:
        """Leave the other ranks in order."""
        self._distributed.destroy_process_group()


class OnePass:
    """Read the array once and write it once, in place, on all ranks at a time: no sum can move less memory.

    A copy into another array moves half as much again: the processor reads what it is about to write.
    """

    async def __call__(self, array: Any) -> None:
        np.multiply(array, 1, out=array)


class Alone:
    """Move memory for as long as sums last took, and let the loop run on time, without a word to another rank.

    Other tasks of its loop are as late as the system makes them on any rank that computes there.

    Attributes:
        seconds: of the last sum; the benchmark sets them.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    async def __call__(self, array: Any) -> None:
        memory = np.frombuffer(Vector.of(array).data, np.uint8)
        pieces = cycle([memory[low:high] for low, high in cut(0, len(memory), PIECE_BYTES)])
        into, end = np.empty(PIECE_BYTES, np.uint8), perf_counter() + self.seconds
        while (now := perf_counter()) < end:
            while perf_counter() - now < TICK_S:
                piece = next(pieces)
                np.copyto(into[: len(piece)], piece)
            await yield_to_timers()


class Ticker:
    """Another task of the loop, that means to run every millisecond, while the context lasts.

    Attributes:
        late_s: how late it ran at the worst.
        held_s: how much of it was this thread's own work: processor time beyond a millisecond between two runs.
    """

    def __init__(self) -> None:
        self.late_s = self.held_s = 0.0

    async def __aenter__(self) -> "Ticker":
        self._begin()
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._note()
        self._task.cancel()
        await asyncio.wait([self._task])

    def _begin(self) -> None:
        self._due, self._worked_s = perf_counter() + TICK_S, thread_time()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._due - perf_counter()))
            self._note()
            self._begin()

    def _note(self) -> None:
        self.late_s = max(self.late_s, perf_counter() - self._due)
        self.held_s = max(self.held_s, thread_time() - self._worked_s - TICK_S)
