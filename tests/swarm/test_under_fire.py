"""Whatever befalls a swarm, it trains as one process does, to the bit, and gets on.

Each seed is a story of its own; one that fails tells it. `python -m tests.swarm.story SEED` tells one again.
"""

import pytest

from pipelined.clock import run_virtual
from tests.swarm.story import Story

SEEDS, EACH = 500, 50


@pytest.mark.parametrize("first", range(0, SEEDS, EACH))
def test_random_faults_change_nothing(first):
    for seed in range(first, first + EACH):
        run_virtual(Story(seed).run())


@pytest.mark.full
@pytest.mark.parametrize("first", range(SEEDS, 20 * SEEDS, SEEDS))
def test_more_random_faults_change_nothing(first):
    for seed in range(first, first + SEEDS):
        run_virtual(Story(seed).run())
