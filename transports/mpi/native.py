"""MPI's own collectives over a group of ranks.

The call that creates a communicator blocks until every rank of the group has made it. So the ranks first exchange
messages, which do not block the loop, and make the call only when all have come.
"""

import asyncio
from collections.abc import Sequence

from mpi4py import MPI

from transports.base import Transport
from transports.mpi.all_gather import all_gather
from transports.mpi.frames import TAG
from transports.mpi.progress import ProgressEngine
from transports.wire.arrays import Block

_DATATYPES = {
    "uint8": MPI.UINT8_T, "int8": MPI.INT8_T, "int16": MPI.INT16_T, "uint16": MPI.UINT16_T, "int32": MPI.INT32_T,
    "uint32": MPI.UINT32_T, "int64": MPI.INT64_T, "uint64": MPI.UINT64_T, "float32": MPI.FLOAT, "float64": MPI.DOUBLE,
    "complex64": MPI.C_FLOAT_COMPLEX, "complex128": MPI.C_DOUBLE_COMPLEX,
}  # fmt: skip
_OPS = {"sum": MPI.SUM, "max": MPI.MAX}


class MpiNative:
    """All-reduce by `MPI_Iallreduce`; implements `transports.base.NativeCollectives`.

    Args:
        transport: carries the messages before the communicator is created.
        frames: the communicator that `ranks` refer to. It carries frames under `TAG`; creation uses other tags.
        channel: distinguishes this group's communicator from others that are created at the same time.
    """

    def __init__(
        self, transport: Transport, progress: ProgressEngine, frames: MPI.Intracomm, ranks: Sequence[int], channel: int
    ):
        self._transport, self._progress, self._frames = transport, progress, frames
        self._ranks, self._channel = tuple(ranks), channel
        self.comm: MPI.Intracomm | None = None
        self._making = asyncio.Lock()

    async def all_reduce(self, block: Block, op: str) -> None:
        """Reduce in place over the group. Cancelled: the reduction continues, so drop the block."""
        if block.dtype not in _DATATYPES or op not in _OPS or (op == "max" and block.dtype.startswith("complex")):
            raise ValueError(
                f"MPI cannot reduce {block.dtype} by {op!r}; known dtypes: {', '.join(_DATATYPES)}; known ops: "
                f"{', '.join(_OPS)} (max: not of complex)"
            )
        comm = await self._communicator()
        request = comm.Iallreduce(MPI.IN_PLACE, [block.data, _DATATYPES[block.dtype]], op=_OPS[op])
        await self._progress.wait(request, urgent=True)

    async def ready(self) -> None:
        """Make the group's communicator; see `transports.base.NativeCollectives`."""
        await self._communicator()

    async def _communicator(self) -> MPI.Intracomm:
        async with self._making:
            if self.comm is None:
                name = ",".join(map(str, self._ranks))
                await all_gather(self._transport, self._ranks, ("native", self._channel, name))
                group = self._frames.Get_group().Incl(self._ranks)
                self.comm = self._frames.Create_group(group, tag=TAG + 1 + self._channel)
                group.Free()
            return self.comm
