import asyncio

import pytest

from collectives.algorithms import names_in, parse_choice
from pipelined.measurement.timed.fastest_sums import choose_sums, fastest_sums
from pipelined.programs.plan import Plan
from pipelined.simulation import Parameters
from transports.local import world


@pytest.mark.parametrize(
    ("trials", "words"),
    [
        ([], "auto"),
        ([(100, {"ring": 2.0, "shared": 1.0})], "shared"),
        ([(100, {"ring": 2.0, "shared": 1.0}), (900, {"ring": 3.0, "shared": 4.0})], "shared:100,ring"),
        ([(100, {"ring": 1.0}), (900, {"ring": 3.0, "shared": 4.0})], "ring"),
        ([(8, {"ring": 1.0, "shared": 1.1}), (8, {"ring": 3.0, "shared": 1.0})], "shared"),
        ([(8, {"ring": 2.0, "shared": 1.0}), (8, {"ring": 3.0})], "ring"),
    ],
)
def test_each_size_gets_what_is_fastest_on_all_ranks_that_sum_it(trials, words):
    assert choose_sums(trials) == words


async def test_all_ranks_get_the_same_words_for_what_they_hold_together():
    plan = Plan("chimera", 4, 1, 1, 4)
    parameters = [Parameters((stage,), 500 * (stage + 1)) for stage in range(4)] + [Parameters((0, 3), 0)]

    choice, *others = await asyncio.gather(*(fastest_sums(end, plan, parameters) for end in world(4)))
    assert others == [choice] * 3
    assert names_in(choice) <= {"multi_ring", "rabenseifner", "recursive_doubling", "ring"}
    assert [most for most, _ in parse_choice(choice)][:-1] == sorted(
        {most for most, _ in parse_choice(choice)} - {float("inf")}
    )


async def test_a_plan_without_sums_measures_nothing():
    (end,) = world(1)
    assert (await fastest_sums(end, Plan("gpipe", 1, 1, 1, 1), [Parameters((0,), 8)])) == "auto"
