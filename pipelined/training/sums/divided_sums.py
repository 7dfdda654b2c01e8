"""Gradient sums where the holders of a parameter divide its update: a reduce-scatter, and a gather of new values."""

from collections.abc import Iterable, Sequence

import collectives
from collectives import ProblemSize
from collectives.algorithms import ALL_GATHER, AUTO, REDUCE_SCATTER, ClosedForms, algorithm_for
from collectives.algorithms.registry import AlgorithmTable
from pipelined.actors.device.executor import Executor
from pipelined.training.sums.all_reduce_halves import HALVES, Halves
from pipelined.training.sums.bucket import Bucket
from pipelined.training.sums.gradient_sums import GradientSums
from pipelined.training.sums.update_shards import BucketShare


class DividedSums(GradientSums):
    """Sums this rank's buckets as far as this rank updates them, and gathers what all holders have updated.

    Args:
        groups: the holders of each share of this rank's buckets.
        algorithm: an all-reduce, by name or by size, of `HALVES`.
        tracer: records each sum.
    Cost: (R-1)/R of a bucket's bytes in each half, for R holders.
    """

    async def sum(self, bucket: Bucket) -> None:
        """Sum a bucket's gradient, in place: afterwards this rank's part of each share is the sum."""
        with self.tracer.span("all_reduce", f"stage {'+'.join(map(str, bucket.stages))}"):
            host = bucket.summed.cpu()
            for share in _shared_shares(bucket):
                part = host[slice(*share.span)]
                algorithm = self._halves(part.nbytes).reduce_scatter
                await collectives.reduce_scatter(self.groups[share], part, "sum", share.lengths, algorithm)
            if host is not bucket.summed:
                bucket.summed.copy_(host)

    async def publish(self, buckets: Sequence[Bucket], executor: Executor) -> None:
        """Gather the values that the holders have updated, in the memory of the gradients."""
        for bucket in buckets:
            await executor.run("values", bucket.pack_values)
            await self._gather(bucket)
            await executor.run("values", bucket.unpack_values)

    async def _gather(self, bucket: Bucket) -> None:
        """Fill the gradient's memory with the values that its holders have put there; see `Bucket.pack_values`."""
        host = bucket.gradient.cpu()
        for share in _shared_shares(bucket):
            part = host[slice(*share.span)]
            algorithm = self._halves(part.nbytes).all_gather
            await collectives.all_gather(self.groups[share], part, share.lengths, algorithm)
        if host is not bucket.gradient:
            bucket.gradient.copy_(host)

    async def allocate_shared(self, buckets: Iterable[Bucket]) -> None:
        """Does nothing: the shares may have different holders, so a bucket cannot lie in one shared window."""

    async def _bytes_to_sum(self, bucket: Bucket) -> int:
        sent = 0
        for share in _shared_shares(bucket):
            itemsize = bucket.summed.element_size()
            algorithm = self._halves(sum(share.lengths) * itemsize).reduce_scatter
            sent += await self._bytes_sent(REDUCE_SCATTER, algorithm, share, itemsize)
            itemsize = bucket.gradient.element_size()
            algorithm = self._halves(sum(share.lengths) * itemsize).all_gather
            sent += await self._bytes_sent(ALL_GATHER, algorithm, share, itemsize)
        return sent

    async def _bytes_sent(self, table: AlgorithmTable, name: str, share: BucketShare, itemsize: int) -> int:
        """Bytes that this rank sends in one half; 0 if the algorithm has no closed forms."""
        group = self.groups[share]
        nbytes = sum(share.lengths) * itemsize
        forms = table.find(await table.choose(group, nbytes) if name == AUTO else name)
        if not nbytes or not isinstance(forms, ClosedForms):
            return 0
        return sum(forms.bytes_to(ProblemSize(group.nodes, nbytes, itemsize, share.lengths), group.rank).values())

    def _halves(self, nbytes: int) -> Halves:
        """The algorithms for a share of this size."""
        return HALVES[self.algorithm if self.algorithm == AUTO else algorithm_for(self.algorithm, nbytes)]


def _shared_shares(bucket: Bucket) -> list[BucketShare]:
    """The shares of a bucket that several ranks hold."""
    assert bucket.update_shards is not None  # all buckets of a rank have one, or none has
    return [share for share in bucket.update_shards.shares if len(share.holders) > 1]
