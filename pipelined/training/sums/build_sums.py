"""The gradient sums of one rank, built from the description of its job: how it accumulates and how it sums."""

from collections.abc import Mapping, Sequence

from collectives import Group
from collectives.algorithms import may_share_memory
from pipelined.actors.device.executor import Executor
from pipelined.aio.clock import Clock
from pipelined.programs.updates.channels import Channels
from pipelined.programs.updates.exact_grid import require_exact
from pipelined.sharding import Shards
from pipelined.traces.tracer import Tracer
from pipelined.training.job.description import JobDescription
from pipelined.training.sums.accumulation import Accumulation
from pipelined.training.sums.all_reduce_halves import require_divisible
from pipelined.training.sums.bucket import Bucket
from pipelined.training.sums.divided_sums import DividedSums
from pipelined.training.sums.exact_sums import ExactSums
from pipelined.training.sums.gradient_sums import GradientSums
from pipelined.training.sums.update_shards import BucketShare
from pipelined.training.teams.pieces import TeamSums
from transports import Transport


def build_accumulation(
    job: JobDescription, world: Group, executor: Executor, *, buckets: Sequence[Bucket], names: Sequence[str]
) -> Accumulation:
    """Build the accumulation of a rank's gradients.

    Args:
        buckets: the rank's.
        names: every parameter of the model, in the same order on all ranks.
    Raises:
        UsageError: exact sums do not go with the plan or the codec.
    """
    if not job.numerics.exact_sums:
        return Accumulation()
    require_exact(job.plan, job.numerics.compress)
    return ExactSums(
        world,
        executor,
        buckets=buckets,
        tied=getattr(job.model, "tied", ()),
        microbatches=job.plan.total_microbatches,
        names=names,
    )


def build_sums(
    job: JobDescription,
    transport: Transport,
    *,
    buckets: Sequence[Bucket],
    channels: Channels,
    layouts: Mapping[str, Shards],
    clock: Clock,
    tracer: Tracer,
) -> GradientSums:
    """Build the sums of a rank's buckets, over all their holders.

    The members of a team first sum, among themselves, what several of them hold. Where holders divide updates, each
    share is one sum over all that hold it, in teams and between them.

    Args:
        layouts: how each parameter lies in the team of the rank.
    Raises:
        PlanError, UsageError: the update cannot be divided with this schedule or this all-reduce.
    """
    algorithm = job.numerics.all_reduce
    if job.numerics.shard_optimizer:
        require_divisible(job.plan, algorithm)
        return DividedSums(_groups_of_shares(transport, buckets, channels), algorithm, tracer)
    groups = {bucket.stages: Group(transport, bucket.holders, channels.bucket_sum(bucket.stages)) for bucket in buckets}
    if job.plan.tensor == 1:
        return GradientSums(groups, algorithm, tracer)
    members = job.plan.team(transport.rank)
    shared = may_share_memory(algorithm)
    team = TeamSums(layouts, transport, members, channels, clock, through_memory=shared)
    return GradientSums(groups, algorithm, tracer, team)


def _groups_of_shares(transport: Transport, buckets: Sequence[Bucket], channels: Channels) -> dict[BucketShare, Group]:
    """A group for each share of the buckets: all ranks that hold its parameters, or the same pieces of them."""
    divided = [(bucket.stages, bucket.update_shards) for bucket in buckets if bucket.update_shards is not None]
    return {
        share: Group(transport, share.holders, channels.share_sum(stages, share.copies))
        for stages, shards in divided
        for share in shards.shares
    }
