"""Native: the transport's own all-reduce, if it has one (MPI_Allreduce under `mpi`)."""

from collectives.algorithms.base import AllReduceAlgorithm
from collectives.algorithms.parts.dissemination import dissemination_barrier
from collectives.arrays import Vector
from collectives.errors import Unsupported
from collectives.group import Group
from collectives.reduction import Reduction
from transports.wire.arrays import Block


class NativeAllReduce(AllReduceAlgorithm):
    """The transport's own all-reduce."""

    async def is_available(self, group: Group) -> bool:
        """No, as it refuses some dtypes."""
        return False

    async def run(self, group: Group, vector: Vector, reduction: Reduction) -> None:
        """Call the transport's all-reduce; a mean is divided here, on every rank.

        Raises:
            Unsupported: the transport has no collectives of its own, or none for this dtype.
        Cost: that of the transport's all-reduce, and a barrier before it.
        """
        native = await group.open_native()
        if native is None:
            name = type(group.transport).__name__
            fact = f"this transport has no all-reduce of its own (transport: {name})"
            raise Unsupported(f"{fact}; choose another algorithm")
        # compare the calls first: MPI checks no lengths or dtypes and could write beyond the array
        await dissemination_barrier(group)
        if group.size > 1 and len(vector):
            block = Block(vector.dtype, (len(vector),), vector.data)
            try:
                await native.all_reduce(block, "max" if reduction.op == "max" else "sum")
            except ValueError as refused:
                raise Unsupported(str(refused)) from refused
        reduction.finish(vector.elements, group.size)
