"""Times lie between those measured, and `auto` runs the algorithm that is then fastest."""

import asyncio

import numpy as np
import pytest

from collectives import Group, MeasuredTimes, ProblemSize, all_reduce, measure
from collectives.algorithms import ALL_REDUCE
from collectives.tuning import _close, rounds_at
from tests.conformance.worlds import local_world

TIMES = MeasuredTimes(
    {"ring": ((100, 1.0), (200, 2.0), (400, 3.0)), "rabenseifner": ((100, 0.5), (200, 2.5), (400, 6.0))}
)


@pytest.mark.parametrize(("nbytes", "seconds"), [(0, 1.0), (100, 1.0), (150, 1.5), (200, 2.0), (300, 2.5), (800, 5.0)])
def test_a_time_lies_on_the_line_between_two_points(nbytes, seconds):
    assert TIMES.seconds("ring", nbytes) == pytest.approx(seconds)


@pytest.mark.parametrize(("nbytes", "seconds"), [(1, 10.0), (4, 7.5), (5, 6.25), (6, 5.0), (100, 5.0)])
def test_a_time_that_falls_is_the_measured_one_at_each_measured_size(nbytes, seconds):
    """`auto` once took the time of the shorter array for the longer, and chose a slower algorithm."""
    measured = MeasuredTimes({"ring": ((2, 10.0), (6, 5.0)), "shared": ((2, 8.0), (6, 8.0))})
    assert measured.seconds("ring", nbytes) == seconds
    assert measured.fastest(nbytes) == ("ring" if seconds < 8.0 else "shared")


@pytest.mark.parametrize(("nbytes", "name"), [(50, "rabenseifner"), (160, "ring"), (1000, "ring")])
def test_the_fastest_changes_with_the_bytes(nbytes, name):
    assert TIMES.fastest(nbytes) == name


def test_auto_runs_the_fastest_measured():
    ends, arrays = local_world(5), [np.ones(40) for _ in range(5)]

    async def main():
        groups = [Group(end, range(5), 0) for end in ends]
        for group in groups:
            group.measured = MeasuredTimes({"multi_ring": ((1, 1.0), (2, 1.0)), "ring": ((1, 2.0), (2, 2.0))})
        await asyncio.gather(*map(all_reduce, groups, arrays))

    asyncio.run(main())
    assert [end.traffic.bytes_to for end in ends] == [
        ALL_REDUCE.forms("multi_ring").bytes_to(ProblemSize.on_one_node(5, 320, 8), r) for r in range(5)
    ]


async def test_all_ranks_measure_the_same_times_of_what_they_can_run():
    groups = [Group(end, range(4), 0) for end in local_world(4, (0, 0, 2, 2))]
    measured_times = await asyncio.gather(*(measure(group, (1 << 8, 1 << 12), 2) for group in groups))
    assert all(times == measured_times[0] for times in measured_times)
    assert set(measured_times[0].points) == {"hierarchical", "multi_ring", "rabenseifner", "recursive_doubling", "ring"}
    assert all(seconds > 0 for line in measured_times[0].points.values() for _, seconds in line)


def test_an_algorithm_of_one_point_takes_that_time_everywhere():
    measured = MeasuredTimes({"ring": ((100, 2.0),), "rabenseifner": ((100, 1.0),)})
    assert [measured.seconds("ring", nbytes) for nbytes in (0, 100, 10**6)] == [2.0] * 3
    assert measured.fastest(10**6) == "rabenseifner"


def test_short_arrays_are_timed_more_often_and_none_less_than_requested():
    counts = [rounds_at(nbytes, 5) for nbytes in (0, 1 << 10, 1 << 18, 1 << 20, 1 << 22, 1 << 30)]
    assert counts == [40, 40, 40, 16, 5, 5]


def test_algorithms_nearly_as_fast_as_the_best_are_timed_again():
    times = {(8, "ring"): [1.0, 9.0, 1.0], (8, "auto"): [1.2] * 3, (8, "native"): [1.4] * 3, (64, "ring"): [5.0]}
    assert _close(times) == {8: ["ring", "auto"]}


async def test_one_slow_call_in_many_does_not_decide():
    """Each rank's clock ticks once a look, but where the machine paused: then a call seems to take long."""

    class Clock:
        def __init__(self):
            self.now, self.looks = 0.0, 0

        def __call__(self):
            self.looks += 1
            self.now += 1000.0 if self.looks % 6 == 0 else 1.0
            return self.now

    groups = [Group(end, range(2), 0) for end in local_world(2)]
    one, other = await asyncio.gather(*(measure(group, (1 << 8,), 7, Clock()) for group in groups))
    assert one == other and set(one.points) == {"multi_ring", "rabenseifner", "recursive_doubling", "ring"}
    assert all(line == ((1 << 8, 1.0),) for line in one.points.values())
