"""Measured times of every all-reduce on a group: alpha and beta are fitted between every two neighbouring lengths.

One line for all lengths (the model of `Links`) does not fit, because of caches, eager messages and shared memory. Short
calls are timed more often than long ones, and nearly equal algorithms are timed again, to reduce noise.

All ranks must hold equal times, bit by bit, so that `auto` makes the same choice on all of them.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

import numpy as np

from collectives.algorithms import ALL_REDUCE
from collectives.algorithms.parts.dissemination import dissemination_barrier
from collectives.cost_model import MeasuredTimes
from collectives.group import Group
from collectives.group.signature import Signature
from collectives.operations.all_reduce import all_reduce
from collectives.operations.barrier import barrier

LENGTHS = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
"""Array sizes, in bytes, at which algorithms are timed."""
ROUNDS, MAX_ROUNDS = 5, 40
BYTES_AT_A_LENGTH = 16 << 20
"""Bytes that an algorithm reduces in all rounds of one length, beyond which `ROUNDS` rounds are enough."""
CLOSE_FACTOR = 1.3
"""Algorithms within this factor of the best at a length are timed there again, twice as often."""

Times = Mapping[tuple[int, str], Sequence[float]]


async def measure(
    group: Group, lengths: Sequence[int] = LENGTHS, rounds: int = ROUNDS, clock: Callable[[], float] = perf_counter
) -> MeasuredTimes:
    """Time every algorithm that these ranks can run; assign the result to the group's `measured` for `auto`.

    All ranks of the group call this at the same time, while nothing else runs.

    Args:
        lengths: one or more sizes in bytes, ascending; multiples of 4.
        rounds: at least this many; each round times all algorithms at all lengths. A time is that of the slowest rank;
            the result is the median of the rounds.
    """
    names = await runnable(group)
    first_times = await _times(group, dict.fromkeys(lengths, names), rounds, clock)
    close_times = await _times(group, _close(first_times), 2 * rounds, clock)
    seconds = {key: median([*times, *close_times.get(key, ())]) for key, times in first_times.items()}
    return MeasuredTimes({name: tuple((nbytes, seconds[nbytes, name]) for nbytes in lengths) for name in names})


def rounds_at(nbytes: int, rounds: int = ROUNDS) -> int:
    """How often an array of this size is timed: system noise matters more for shorter arrays."""
    return max(rounds, min(rounds * MAX_ROUNDS // ROUNDS, BYTES_AT_A_LENGTH // max(nbytes, 1)))


async def runnable(group: Group) -> list[str]:
    """The algorithms that these ranks can run for every dtype; the same list on all ranks."""
    async with group.call(Signature("list of runnable algorithms")):
        names = [name for name in ALL_REDUCE.names if await ALL_REDUCE.find(name).is_available(group)]
        await dissemination_barrier(group)
    return names


def _close(times: Times) -> dict[int, list[str]]:
    """The algorithms within `CLOSE_FACTOR` of the best, by length, where there is more than one."""
    medians: dict[int, dict[str, float]] = defaultdict(dict)
    for (nbytes, name), seconds in times.items():
        medians[nbytes][name] = median(seconds)
    close = {
        nbytes: [
            name for name, seconds in seconds_by_name.items() if seconds <= CLOSE_FACTOR * min(seconds_by_name.values())
        ]
        for nbytes, seconds_by_name in medians.items()
    }
    return {nbytes: names for nbytes, names in close.items() if len(names) > 1}


async def _times(
    group: Group, names_by_length: Mapping[int, Sequence[str]], rounds: int, clock: Callable[[], float]
) -> dict[tuple[int, str], list[float]]:
    """Seconds of the slowest rank in each round, by length and algorithm; equal on all ranks."""
    timed = [
        (nbytes, name)
        for number in range(rounds_at(min(names_by_length, default=BYTES_AT_A_LENGTH), rounds))
        for nbytes, names in names_by_length.items()
        if number < rounds_at(nbytes, rounds)
        for name in names
    ]
    seconds = np.array([await _time(group, name, nbytes, clock) for nbytes, name in timed])
    await all_reduce(group, seconds, "max", "ring")
    times: dict[tuple[int, str], list[float]] = defaultdict(list)
    for key, slowest in zip(timed, seconds.tolist(), strict=True):
        times[key].append(slowest)
    return times


async def _time(group: Group, name: str, nbytes: int, clock: Callable[[], float]) -> float:
    array = np.full(nbytes // 4, 1.0 + group.rank, np.float32)
    await barrier(group)
    start = clock()
    await all_reduce(group, array, "sum", name)
    return clock() - start
