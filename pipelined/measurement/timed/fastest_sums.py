"""The choice of the fastest all-reduce for each bucket of gradients, timed on the ranks that hold the bucket.

The ranks time sums of the same sizes as in training, and at the same time where training sums at the same time. Rank 0
decides and broadcasts the choice as a string (`collectives.all_reduce.format_choice`). No torch.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from collectives import Group, measure
from collectives.algorithms import format_choice
from collectives.objects import broadcast_object, gather_objects
from pipelined.measurement.timed.channels import SUMS_CHANNEL
from pipelined.programs.plan import Plan
from pipelined.simulation import Parameters
from transports import Transport

MAX_BYTES = 64 << 20
"""The most bytes in a trial; beyond this size the fastest algorithm does not change."""

SecondsByChoice = Mapping[str, float]


async def measured_sums(transport: Transport, plan: Plan, parameters: Sequence[Parameters]) -> str:
    """The algorithm for each size of bucket of this plan, as a string; all ranks call this together and get the same.

    Args:
        parameters: the buckets to sum, `Workload.parameters`.
    Cost: each algorithm that the holders can run, at least five times at each bucket's size.
    """
    mine: list[tuple[int, SecondsByChoice]] = []
    for index, bucket in enumerate(parameters):
        holders = plan.holders(*bucket.stages)
        nbytes = min(bucket.nbytes, MAX_BYTES)
        if transport.rank not in holders or len(holders) < 2 or not nbytes:
            continue
        measured = await measure(Group(transport, holders, SUMS_CHANNEL + index), (nbytes,))
        if transport.rank == holders[0]:
            mine.append((bucket.nbytes, {name: measured.seconds(name, nbytes) for name in measured.points}))
    everyone = await gather_objects(transport, "sums tried", mine)
    trials = [trial for of_rank in everyone for trial in of_rank]
    return await broadcast_object(transport, "sums decided", decided(trials))


def decided(trials: Sequence[tuple[int, SecondsByChoice]]) -> str:
    """The fastest algorithm at each size, as a string; "auto" if there are no sums.

    Groups with buckets of the same size get the same algorithm: of those that all of them can run, the one with the
    least average loss against the best of each group.
    """
    by_size: dict[int, list[SecondsByChoice]] = defaultdict(list)
    for nbytes, seconds in trials:
        by_size[nbytes].append(seconds)
    return format_choice({nbytes: _fastest_choice(groups) for nbytes, groups in by_size.items()}) if by_size else "auto"


def _fastest_choice(groups: Sequence[SecondsByChoice]) -> str:
    every = set.intersection(*(set(seconds) for seconds in groups))
    return min(sorted(every), key=lambda name: sum(seconds[name] / min(seconds.values()) for seconds in groups))
