"""Teams over TCP equal the plain loop: all that their members move is sent as frames."""

import asyncio

import pytest

from tests.conformance.worlds import tcp_world
from tests.numerics.plain import plain
from tests.numerics.teams import TeamCase, assert_pieces, team_trained
from transports import new_event_loop


async def every_rank(case, all_reduce):
    ends = await tcp_world(case.plan.world_size)
    try:
        return await asyncio.gather(*(team_trained(case, end, all_reduce) for end in ends))
    finally:
        await asyncio.gather(*(end.close() for end in ends))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("case", "all_reduce"),
    [
        (TeamCase("one_f_one_b", 1, 1, 2, layers=1, dropout=0.2), "ring"),
        (TeamCase("gpipe", 1, 1, 1, layers=1, tensor=3, layout="mixed"), "auto"),
        (TeamCase("chimera", 2, 1, 2, layers=1, layout="mixed+zero3"), "ring"),
    ],
    ids=str,
)
def test_a_team_gives_the_numbers_of_one_process_over_tcp(case, all_reduce):
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        outcomes = runner.run(every_rank(case, all_reduce))
    expected = plain(case)
    for rank, outcome in enumerate(outcomes):
        assert_pieces(case, expected, outcome, rank)
