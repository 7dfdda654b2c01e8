"""All-gather, reduce-scatter and all-to-all beside MPI's own, for `benchmarks.all_reduce --collective`.

All begin with the same whole numbers, which float32 sums exactly, and before a round counts each rank compares its
result with the known one. Rounds are interleaved, each in an order of its own.
"""

from collections.abc import Mapping

import numpy as np
from mpi4py import MPI

from benchmarks.collectives.shard_row import ShardRow
from benchmarks.harness.turns import Call, take_turns
from collectives import Group, all_gather, all_to_all, allocate, reduce_scatter, segments


class Shards:
    """The arrays of one size on one rank, and the calls that fill them.

    Args:
        array: what we gather or reduce in, float32.
    """

    def __init__(self, group: Group, comm: MPI.Comm, array: np.ndarray):
        self._group, self._comm, self._array, self._peer = group, comm, array, np.empty_like(array)
        self._counts = [high - low for low, high in segments(len(array), group.size)]
        low = sum(self._counts[: group.rank])
        self._mine = slice(low, low + self._counts[group.rank])
        self._out = np.empty(self._counts[group.rank], np.float32)
        self._exchanged = np.empty((group.size, self._counts[group.rank]), np.float32)
        self._whole = (np.arange(len(array)) % 1021).astype(np.float32)

    def calls(self, collective: str) -> Mapping[str, Call]:
        """Our call and MPI's; each takes what `refill` wrote."""
        ours, theirs = {
            "all_gather": (self._all_gather_ours, self._all_gather_mpi),
            "reduce_scatter": (self._reduce_scatter_ours, self._reduce_scatter_mpi),
            "all_to_all": (self._all_to_all_ours, self._all_to_all_mpi),
        }[collective]
        return {"ours": ours, "mpi": theirs}

    def refill(self, collective: str) -> None:
        """Write what a call begins with: everything, or for an all-gather this rank's segment alone."""
        for array in (self._array, self._peer):
            array[:] = 0 if collective == "all_gather" else self._whole * (self._group.rank + 1)
            array[self._mine] = self._whole[self._mine] * (1 if collective == "all_gather" else self._group.rank + 1)

    def is_right(self, collective: str, name: str) -> bool:
        """Whether the call that has run last filled this rank's result with the known numbers."""
        ranks = np.arange(1, self._group.size + 1, dtype=np.float32)
        if collective == "all_gather":
            return bool(((self._array if name == "ours" else self._peer) == self._whole).all())
        if collective == "reduce_scatter":
            found = self._array[self._mine] if name == "ours" else self._out
            return bool((found == self._whole[self._mine] * ranks.sum()).all())
        return bool((self._exchanged == self._whole[self._mine] * ranks[:, None]).all())

    async def _all_gather_ours(self) -> None:
        await all_gather(self._group, self._array)

    async def _all_gather_mpi(self) -> None:
        self._comm.Allgatherv(MPI.IN_PLACE, [self._peer, self._counts])

    async def _reduce_scatter_ours(self) -> None:
        await reduce_scatter(self._group, self._array)

    async def _reduce_scatter_mpi(self) -> None:
        self._comm.Reduce_scatter(self._peer, self._out, self._counts)

    async def _all_to_all_ours(self) -> None:
        outgoing = [self._array[low:high] for low, high in segments(len(self._array), self._group.size)]
        await all_to_all(self._group, outgoing, list(self._exchanged))

    async def _all_to_all_mpi(self) -> None:
        received = [self._exchanged.shape[1]] * self._group.size
        self._comm.Alltoallv([self._peer, self._counts], [self._exchanged, received])


async def shard_row(
    group: Group, comm: MPI.Comm, collective: str, *, nbytes: int, arrays: str, rounds: int
) -> ShardRow:
    """Time our collective and MPI's, in `rounds` rounds after one that is not timed.

    Raises:
        RuntimeError: a result is wrong on some rank.
    """
    length = nbytes // 4
    array = await allocate(group, length) if arrays == "allocated" else np.empty(length, np.float32)
    shards = Shards(group, comm, array)
    taken = await take_turns(
        comm,
        f"{collective} of {nbytes} bytes",
        shards.calls(collective),
        rounds=rounds,
        seed=nbytes,
        before=lambda: shards.refill(collective),
        is_right=lambda name: shards.is_right(collective, name),
    )
    pairs = list(zip(taken["ours"], taken["mpi"], strict=True))
    return ShardRow(collective, nbytes, group.size, arrays, pairs)
