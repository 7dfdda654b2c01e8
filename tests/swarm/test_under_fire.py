"""Whatever befalls a swarm, it trains as one process does, to the bit, and gets on.

Each seed is a story of its own; one that fails tells it. `python -m tests.swarm.story SEED` tells one again, and
`python -m tests.swarm.story SEED codec=blockwise8` where what travels is coded.
"""

import pytest

from pipelined.clock import run_virtual
from tests.swarm.story import Story

SEEDS, EACH, CODED = 500, 50, 20


@pytest.mark.parametrize("first", range(0, SEEDS, EACH))
def test_random_faults_change_nothing(first):
    for seed in range(first, first + EACH):
        run_virtual(Story(seed).run())


@pytest.mark.parametrize("coded", ["codec", "sums_codec"])
def test_eight_bits_change_what_is_computed_but_not_who_agrees(coded):
    """Coded between stages it is one process that codes there, too, to the bit; where sums are, replicas are equal."""
    for seed in range(CODED):
        run_virtual(Story(seed, **{coded: "blockwise8"}).run())


@pytest.mark.full
@pytest.mark.parametrize("first", range(SEEDS, 20 * SEEDS, SEEDS))
def test_more_random_faults_change_nothing(first):
    for seed in range(first, first + SEEDS):
        run_virtual(Story(seed).run())
