"""MPI's own collectives over a group of ranks.

The call that creates a communicator blocks until every rank of the group has made it. So the ranks first exchange
messages, which do not block the loop, and make the call only when all have come.
"""

from collections.abc import Sequence

from mpi4py import MPI

from transports.base import Transport
from transports.mpi.all_gather import all_gather_values
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
        comm: the group's communicator; see `create_communicator`.
    """

    def __init__(self, comm: MPI.Intracomm, engine: ProgressEngine):
        self.comm, self._engine = comm, engine

    async def all_reduce(self, block: Block, op: str) -> None:
        """Reduce in place over the group. Cancelled: the reduction continues, so drop the block."""
        if block.dtype not in _DATATYPES or op not in _OPS or (op == "max" and block.dtype.startswith("complex")):
            fact = f"MPI cannot reduce {block.dtype} by {op!r}; known dtypes: {', '.join(_DATATYPES)}"
            raise ValueError(f"{fact}; known ops: {', '.join(_OPS)} (max: not of complex)")
        request = self.comm.Iallreduce(MPI.IN_PLACE, [block.data, _DATATYPES[block.dtype]], op=_OPS[op])
        await self._engine.wait(request, urgent=True)


async def create_communicator(
    transport: Transport, frames: MPI.Intracomm, ranks: Sequence[int], channel: int
) -> MPI.Intracomm:
    """Create the communicator of these ranks, which all call this.

    Args:
        transport: carries the messages before the communicator is created.
        frames: the communicator that `ranks` refer to. It carries frames under `TAG`; creation uses other tags.
        channel: distinguishes this group's communicator from others that are created at the same time.
    Raises: as `Transport.receive`.
    """
    await all_gather_values(transport, ranks, ("native", channel, ",".join(map(str, ranks))))
    group = frames.Get_group().Incl(ranks)
    try:
        return frames.Create_group(group, tag=TAG + 1 + channel)
    finally:
        group.Free()
