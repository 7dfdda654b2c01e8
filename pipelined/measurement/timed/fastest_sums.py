"""The choice of the fastest all-reduce for each bucket of gradients, timed on the ranks that hold the bucket.

The ranks time sums of the same sizes as in training, and at the same time where training sums at the same time. Rank 0
decides and broadcasts the choice as a string (`collectives.all_reduce.format_choice`). No torch.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

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


async def fastest_sums(transport: Transport, plan: Plan, parameters: Sequence[Parameters]) -> str:
    """The fastest algorithm for each size of bucket of this plan, as a string; all ranks call this together.

    Args:
        parameters: the buckets to sum, `Workload.parameters`.
    Cost: each algorithm that the holders can run, at least five times at each bucket's size.
    """
    trials = list[tuple[int, SecondsByChoice]]()
    for index, bucket in enumerate(parameters):
        holders = plan.holders(*bucket.stages)
        nbytes = min(bucket.nbytes, MAX_BYTES)
        if transport.rank not in holders or len(holders) < 2 or not nbytes:
            continue
        timings = await measure(Group(transport, holders, SUMS_CHANNEL + index), (nbytes,))
        if transport.rank == holders[0]:
            trials.append((bucket.nbytes, {name: timings.seconds(name, nbytes) for name in timings.points}))
    trials_by_rank = await gather_objects(transport, "sums tried", trials)
    return await broadcast_object(transport, "sums decided", choose_sums([*chain.from_iterable(trials_by_rank)]))


def choose_sums(trials: Sequence[tuple[int, SecondsByChoice]]) -> str:
    """The fastest algorithm at each size, as a string; "auto" if there are no sums.

    Groups with buckets of the same size get the same algorithm: of the algorithms that all these groups can run, the
    one with the least average loss against the best of each group.
    """
    by_size = defaultdict[int, list[SecondsByChoice]](list)
    for nbytes, seconds in trials:
        by_size[nbytes].append(seconds)
    return format_choice({nbytes: _fastest_choice(groups) for nbytes, groups in by_size.items()}) if by_size else "auto"


def _fastest_choice(groups: Sequence[SecondsByChoice]) -> str:
    names = set.intersection(*(set(seconds) for seconds in groups))
    return min(sorted(names), key=lambda name: sum(seconds[name] / min(seconds.values()) for seconds in groups))
