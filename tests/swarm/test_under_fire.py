"""Whatever befalls a swarm, it trains as one process does, to the bit, and gets on.

Each seed is a story of its own; one that fails tells it. `python -m tests.swarm.story SEED` tells one again, and
`python -m tests.swarm.story SEED codec=blockwise8` where what travels is coded.
"""

import os
import sys
from contextlib import ExitStack

import pytest

from pipelined.aio.clock import run_virtual
from tests.launching import started
from tests.swarm.story import Story

SEEDS, MORE = 50, 25
"""Stories that each run tells, and those of each group that --full tells and the slices take in turn, one a run."""
GROUPS = 140
CODED = [pytest.param(first, marks=pytest.mark.full if first else ()) for first in range(0, 24, 8)]


def tell(first, last):
    """Tell these seeds' stories, on every core that there is; whatever is said at all is that something is wrong."""
    cores = len(os.sched_getaffinity(0))
    words = [[sys.executable, "-m", "tests.swarm.stories", first + core, last, cores] for core in range(cores)]
    with ExitStack() as stack:
        tellers = [stack.enter_context(started(each)) for each in words]
        for teller in tellers:
            said, _ = teller.communicate()
            assert (teller.returncode, said) == (0, ""), said


@pytest.mark.in_turns(4)
@pytest.mark.timeout(300)
def test_random_faults_change_nothing():
    tell(0, SEEDS)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("first", CODED)
@pytest.mark.parametrize("coded", ["codec", "sums_codec"])
def test_eight_bits_change_the_result_and_peers_still_agree(coded, first):
    """Coded between stages it is one process that codes there, too, to the bit; where sums are, replicas are equal."""
    for seed in range(first, first + 8):
        run_virtual(Story(seed, **{coded: "blockwise8"}).run())


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + GROUPS * MORE, MORE))
def test_more_random_faults_change_nothing(first):
    tell(first, first + MORE)
