"""Which all-reduce sums each bucket of gradients in the least time, as tried on the ranks that hold it.

The rule: ranks time what training will do, at the very sizes and at once where training does; rank 0 decides, and what
it says in words (`collectives.all_reduce`) is all that the others hear of it. No torch.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from collectives import Group, measure
from collectives.all_reduce import in_words
from pipelined.actors.agree import broadcast, gather
from pipelined.programs.plan import Plan
from pipelined.simulation.workload import Parameters
from transports import Transport

CHANNEL = 1
"""The first bare-buffer channel of the trials; each bucket has its own."""
MOST_BYTES = 64 << 20
"""Of a larger bucket only so much is summed: beyond, nothing changes any more."""

Seconds = Mapping[str, float]


async def measured_sums(transport: Transport, plan: Plan, parameters: Sequence[Parameters]) -> str:
    """The algorithm for each size of bucket that this plan sums; all ranks call this together and get the same words.

    Args:
        parameters: what is summed, as `Workload.parameters` has it.
    Cost: each algorithm that the holders can run, at least five times at each bucket's size.
    """
    mine: list[tuple[int, Seconds]] = []
    for place, bucket in enumerate(parameters):
        holders, nbytes = plan.holders(*bucket.stages), min(bucket.nbytes, MOST_BYTES)
        if transport.rank not in holders or len(holders) < 2 or not nbytes:
            continue
        prices = await measure(Group(transport, holders, CHANNEL + place), (nbytes,))
        if transport.rank == holders[0]:
            mine.append((bucket.nbytes, {name: prices.price(name, nbytes) for name in prices.points}))
    told = await gather(transport, "sums tried", mine)
    return await broadcast(transport, "sums decided", decided([trial for each in told for trial in each]))


def decided(trials: Sequence[tuple[int, Seconds]]) -> str:
    """The words for what was found at each size; auto where nothing is summed.

    Groups that sum equally much are given one algorithm: that which all of them have and which loses least, on average,
    against the best of each.
    """
    found: dict[int, list[Seconds]] = defaultdict(list)
    for nbytes, seconds in trials:
        found[nbytes].append(seconds)
    return in_words({nbytes: _best(groups) for nbytes, groups in found.items()}) if found else "auto"


def _best(groups: Sequence[Seconds]) -> str:
    every = set.intersection(*(set(seconds) for seconds in groups))
    return min(sorted(every), key=lambda name: sum(seconds[name] / min(seconds.values()) for seconds in groups))
