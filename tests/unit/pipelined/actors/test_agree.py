"""All ranks agree on an outcome: the first mistake of a rank, settings that differ, or no news."""

import asyncio

import pytest

from pipelined.actors.agree import agree, require_equal
from pipelined.errors import AgreedError, UsageError
from tests.unit.collectives.exchanges import check_cost, on_all


@pytest.mark.parametrize("failing", [(0,), (117, 250), (299,)])
def test_a_mistake_on_some_ranks_is_reported_on_all_with_the_rank_in_twice_log2_messages(failing):
    async def work(end):
        async def read():
            if end.rank in failing:
                raise UsageError(f"cannot read the file of rank {end.rank}")
            return end.rank

        return await agree(end, "read", read())

    got, ends = on_all(300, work)
    first = min(failing)
    said = f"rank {first}: cannot" if first else "cannot"
    assert {type(error) for error in got} == {AgreedError}
    assert {str(error) for error in got} == {f"{said} read the file of rank {first}"}
    check_cost(ends, 2)


def test_where_no_rank_makes_a_mistake_each_has_its_own_result():
    async def work(end):
        return await agree(end, "count", asyncio.sleep(0, end.rank))

    got, ends = on_all(300, work)
    assert got == list(range(300))
    check_cost(ends, 2)


def test_settings_that_differ_are_named_on_every_rank():
    async def work(end):
        settings = {"seed": str(end.rank // 3), "steps": "9"}
        await require_equal(end, "arguments", settings, "start all ranks alike")

    ended, _ = on_all(5, work)
    fact = "rank 3: other arguments than those of rank 0 (seed: 1 here, 0 on rank 0); start all ranks alike"
    assert [(type(each), str(each)) for each in ended] == [(AgreedError, fact)] * 5


def test_equal_settings_are_no_news():
    async def work(end):
        await require_equal(end, "arguments", {"seed": "1"}, "start all ranks alike")

    ended, ends = on_all(5, work)
    assert ended == [None] * 5
    assert sum(end.traffic.messages_sent for end in ends) == 3 * 4
