"""Sums on the virtual clock: when they begin, which rank waits for which, and that no rank waits for ever."""

import asyncio
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.simulation.virtual_sums import VirtualSums


def run(sums, joins):
    """Let each (rank, sum) join at its moment; returns (what, start, end) of all sums, and the object."""

    async def main():
        virtual, clock = VirtualSums(sums), VirtualClock()

        async def join(what, moment):
            await clock.sleep(moment)
            await virtual.join(what)

        await asyncio.gather(*(join(what, moment) for (_, what), moment in joins.items()))
        return [(done.key, done.start, done.end) for done in virtual.completed_sums], virtual

    return run_virtual(main())


def test_a_sum_begins_when_the_last_has_joined():
    done, virtual = run({"a": ((0, 1), 3)}, {(0, "a"): 1, (1, "a"): 5})
    assert done == [("a", 5, 8)]
    assert [virtual.overlap(0, *span) for span in [(0, 5), (4, 6), (6, 20), (5.5, 6)]] == [0, 1, 2, 0.5]
    assert virtual.overlap(2, 0, 100) == 0


def test_a_rank_takes_part_in_one_at_a_time_in_the_order_of_completion():
    sums = {"a": ((0, 1), 3), "b": ((1, 2), 3), "c": ((2, 3), 3)}
    joins = {(0, "a"): 0, (1, "a"): 2, (1, "b"): 0, (2, "b"): 1, (2, "c"): 3, (3, "c"): 3}
    assert run(sums, joins)[0] == [("b", 1, 4), ("a", 4, 7), ("c", 4, 7)]


moments = st.lists(st.integers(0, 9), min_size=12, max_size=12)


@given(moments, st.lists(st.integers(1, 5), min_size=6, max_size=6))
def test_whatever_the_order_all_end_and_no_rank_is_in_two_at_once(moments, lengths):
    pairs = list(combinations(range(4), 2))
    sums = dict(zip(pairs, zip(pairs, lengths, strict=True), strict=True))
    joins = {(rank, pair): moments.pop() for pair in pairs for rank in pair}
    done, _ = run(sums, joins)
    assert {what for what, _, _ in done} == set(pairs)
    for one, other in combinations(done, 2):
        if set(one[0]) & set(other[0]):
            assert one[2] <= other[1] or other[2] <= one[1]
    for what, start, end in done:
        assert start >= max(joins[rank, what] for rank in what) and end - start == sums[what][1]
