"""An all-reduce may sum divided updates if it consists of a reduce-scatter and an all-gather."""

import pytest

from collectives.algorithms import ALL_GATHER, REDUCE_SCATTER
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.training.sums.all_reduce_halves import HALVES, require_divisible

PLAN = Plan("gpipe", 1, 2, 1, 1)


def test_the_halves_are_algorithms_of_their_tables():
    for scatter, gather in HALVES.values():
        assert scatter in (*REDUCE_SCATTER.names, "auto") and gather in (*ALL_GATHER.names, "auto")


@pytest.mark.parametrize("algorithm", ["auto", "ring", "shared", "rabenseifner:4096,ring"])
def test_algorithms_of_two_halves_are_taken_also_by_size(algorithm):
    require_divisible(PLAN, algorithm)


@pytest.mark.parametrize("algorithm", ["hierarchical", "ring:4096,hierarchical"])
def test_another_algorithm_is_refused_with_the_known_ones(algorithm):
    with pytest.raises(
        UsageError, match=r"hierarchical has no reduce-scatter half.* auto, ring, rabenseifner, shared$"
    ):
        require_divisible(PLAN, algorithm)


def test_a_schedule_without_a_flush_is_refused():
    with pytest.raises(UsageError, match=r"pipedream_2bw keeps versions .*`shard_optimizer=` needs a schedule with"):
        require_divisible(Plan("pipedream_2bw", 2, 2, 1, 4), "auto")
